"""Scores of summed counts, and their intervals by resampling the texts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spacy_latent.analysis.resampling import (
    accuracy,
    confidence_interval,
    f_score,
    interval,
    intervals,
    mean_over,
    paired_drop,
)


def test_nothing_to_count_is_not_a_number() -> None:
    assert math.isnan(accuracy(np.zeros(2))) and math.isnan(f_score(np.zeros(3)))
    assert all(map(math.isnan, interval(accuracy, np.zeros((0, 2)))))
    assert math.isnan(paired_drop(accuracy, np.zeros((0, 2)), np.zeros((0, 2))).drop)
    assert [list(map(math.isnan, row)) for row in intervals([np.zeros((0, 2))])] == [[True] * 3]


def test_an_interval_is_as_wide_as_theory_has_it() -> None:
    right = np.arange(400) < 300
    counts = np.stack([right, np.ones(400)], 1)
    value, low, high = interval(accuracy, counts)
    half = 1.96 * (0.75 * 0.25 / 400) ** 0.5
    assert value == 0.75
    assert low == pytest.approx(0.75 - half, abs=0.006)
    assert high == pytest.approx(0.75 + half, abs=0.006)
    assert interval(accuracy, counts) == (value, low, high), "the same seed gives the same"
    assert interval(accuracy, counts, seed=1) != (value, low, high)
    assert intervals([counts, 0 * counts + [0, 1]])[0][0] == 0.75


def test_the_score_of_several_trainings_is_the_mean_of_theirs() -> None:
    all_right, collapsed = np.ones((50, 3)), np.tile([0.0, 0.0, 1.0], (50, 1))
    both = np.concatenate([all_right, collapsed], 1)
    mean = mean_over(f_score, 2)
    assert interval(mean, both)[0] == 0.5 == (f_score(all_right.sum(0)) + 0.0) / 2
    assert paired_drop(mean, both, both).drop == 0.0
    nothing = np.zeros((1, 3))
    assert mean(np.concatenate([nothing, collapsed[:1]], 1)).tolist() == [0.5]
    assert np.isnan(mean(np.concatenate([nothing, nothing], 1)))


def test_pairs_make_a_drop_narrower() -> None:
    rng = np.random.default_rng(0)
    before = (rng.random(400) < 0.7).astype(float)
    after = before.copy()
    after[:20] = 0.0
    lost = float(before[:20].sum()) / 400
    ones = np.ones(400)
    found = paired_drop(accuracy, np.stack([before, ones], 1), np.stack([after, ones], 1))
    assert found.drop == pytest.approx(lost) == pytest.approx(found.before - found.after)
    assert 0 < found.low < found.drop < found.high
    assert found.high - found.low < 0.05 < 4 * 1.96 * (0.7 * 0.3 / 400) ** 0.5
    same = paired_drop(accuracy, np.stack([before, ones], 1), np.stack([before, ones], 1))
    # If none of 400 texts differs, a rate of up to 3/400 is still possible.
    assert (same.drop, same.low, same.high) == (0, -3 / 400, 3 / 400)
    assert (same.docs, same.differ) == (400, 0)


@pytest.mark.parametrize("size", [1, 15, 300])
def test_what_no_text_shows_is_not_certain(size: int) -> None:
    right, wrong = np.array([[1.0, 1.0]] * size), np.array([[0.0, 1.0]] * size)
    room = min(1.0, 3 / size)
    assert interval(accuracy, right) == (1.0, pytest.approx(1 - room), 1.0)
    assert interval(accuracy, wrong) == (0.0, 0.0, pytest.approx(room))
    assert intervals([right, wrong]) == [interval(accuracy, right), interval(accuracy, wrong)]
    same = paired_drop(accuracy, right, right)
    assert (same.low, same.high) == (pytest.approx(-room), pytest.approx(room))
    better = paired_drop(accuracy, right, wrong)
    assert (better.drop, better.high) == (1.0, 1.0)
    assert better.low == pytest.approx(max(1 - 3 / size, -1.0)) and better.differ == size
    worse = paired_drop(accuracy, wrong, right)
    assert (worse.low, worse.high) == (-1.0, pytest.approx(-better.low))


def test_one_direction_that_no_text_shows_is_not_ruled_out() -> None:
    """The interval is wider than the resamples if no text shows one direction of change.

    Two of 15 texts are better afterwards and none is worse, so no resample has a drop above 0.
    """
    before = np.stack([np.arange(15) >= 2, np.ones(15)], 1).astype(float)
    after = np.ones((15, 2))
    found = paired_drop(accuracy, before, after)
    assert found.drop == pytest.approx(-2 / 15) and found.high == pytest.approx(-2 / 15 + 3 / 15)
    assert found.low < -0.2 and found.differ == 2
    # If one text is worse, the resamples show drops.
    before[14, 0], after[14, 0] = 1.0, 0.0
    found = paired_drop(accuracy, before, after)
    assert found.drop == pytest.approx(-1 / 15) and found.differ == 3
    assert -1 / 15 < found.high <= 3 / 15


def test_where_texts_are_unlike_resamples_tell() -> None:
    """The interval comes from resamples if many texts change.

    One token of 20 is lost in 40 of 60 texts, and none is gained.
    """
    rng = np.random.default_rng(0)
    size = np.full(60, 20.0)
    after = np.stack([rng.integers(10, 18, 60), size], 1).astype(float)
    before = after + np.stack([np.arange(60) % 3 > 0, 0 * size], 1)
    found = paired_drop(accuracy, before, after)
    half = 1.96 * 0.05 * (2 / 3 * 1 / 3 / 60) ** 0.5
    assert found.differ == 40 and found.drop == pytest.approx(0.05 * 2 / 3)
    assert found.low == pytest.approx(found.drop - half, abs=0.001)
    # If one text changes, unseen texts are assumed to change by at most as much.
    one = after + np.stack([np.arange(60) == 7, 0 * size], 1)
    found = paired_drop(accuracy, one, after)
    assert found.drop == pytest.approx(0.05 / 60)
    assert found.low == pytest.approx(found.drop - 0.05 * 3 / 60)


def test_texts_without_anything_to_count_do_not_count() -> None:
    right = np.array([[1.0, 1.0]] * 15 + [[0.0, 0.0]] * 300)
    assert interval(accuracy, right)[1] == pytest.approx(1 - 3 / 15)
    assert paired_drop(accuracy, right, right).docs == 15
    # Texts without gold entities count: to predict nothing is right there, and an entity is wrong.
    nothing, wrong = np.zeros((10, 3)), np.array([[0.0, 1.0, 0.0]] * 10)
    some = np.array([[1.0, 1.0, 1.0]] * 10)
    found = paired_drop(f_score, np.concatenate([some, nothing]), np.concatenate([some, wrong]))
    assert (found.docs, found.differ) == (20, 10) and found.drop > 0


def test_interval_holds_the_share_and_narrows() -> None:
    low, high = confidence_interval(80, 100)
    assert 0.7 < low < 0.8 < high < 0.9
    assert confidence_interval(8000, 10000)[0] > low
    assert confidence_interval(0, 0) == (0.0, 1.0)
