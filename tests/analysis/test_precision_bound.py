"""Thresholds of confidence with a promised precision on new texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.precision_bound import (
    bound_of_all,
    correlation_within,
    effective_number,
    lower_bound,
    needed,
    promised_threshold,
    skewness_factor,
)
from spacy_latent.analysis.thresholds import threshold_for

RESAMPLINGS = 200


def drawn(
    generator: np.random.Generator, docs: int, shared: float, mean: float = 4
) -> JudgedEntities:
    """Return random entities of docs.

    Args:
        shared: Standard deviation of an effect that all entities of a doc share. It makes them
            right or wrong together.
        mean: Mean number of entities in a doc.
    """
    texts = np.repeat(np.arange(docs), generator.poisson(mean, docs))
    odds = generator.normal(1.8, 1.8, len(texts))
    own = generator.normal(0, shared, docs)[texts] if shared else 0.0
    right = generator.random(len(texts)) < 1 / (1 + np.exp(-odds - own))
    said = 1 / (1 + np.exp(-odds))
    labels = ["A"] * len(texts)
    return JudgedEntities(
        said.tolist(), right.tolist(), labels, int(right.sum()), texts=texts.tolist()
    )


@pytest.mark.parametrize("shared", [0.0, 1.0])
@pytest.mark.parametrize(("docs", "precision"), [(300, 0.9), (300, 0.95), (1000, 0.97)])
def test_the_promise_is_kept_as_often_as_was_named(
    docs: int, precision: float, shared: float
) -> None:
    generator = np.random.default_rng(7)
    everything = drawn(generator, 50_000, shared)
    said, right = np.array(everything.probabilities), np.array(everything.correct)

    def holds(threshold: float) -> bool:
        return bool(right[said >= threshold].mean() >= precision)

    kept, estimated, given = 0, 0, 0
    for _ in range(RESAMPLINGS):
        found = drawn(generator, docs, shared)
        promised = promised_threshold(found, precision, 0.9)
        if promised is not None:
            given += 1
            kept += holds(promised.threshold)
        point = threshold_for(found, precision)
        assert point is not None
        estimated += holds(point.threshold)
    # The tolerance is two standard errors of a share of .9.
    assert given >= 20 and kept >= (0.9 - 2 * (0.9 * 0.1 / given) ** 0.5) * given
    # A threshold from point estimates reaches the precision much less often.
    assert estimated < 0.55 * RESAMPLINGS


def test_the_promise_holds_over_documents_and_not_over_their_pieces() -> None:
    """The promise needs the documents if all entities of a document are right or wrong together.

    Each doc is a piece of a document, with two entities.
    """
    generator = np.random.default_rng(3)
    shared, precision, documents = 1.5, 0.8, 100
    everything = drawn(generator, 20_000, shared, 20)
    said, right = np.array(everything.probabilities), np.array(everything.correct)
    broken = {"documents": 0, "docs": 0}
    for _ in range(RESAMPLINGS):
        found = drawn(generator, documents, shared, 20)
        # Number the docs within documents. No document has 1000 of them.
        texts = np.array(found.texts)
        first = np.searchsorted(texts, texts)
        docs = texts * 1000 + (np.arange(len(texts)) - first) // 2
        for kind, numbers in (("documents", texts), ("docs", docs)):
            promised = promised_threshold(replace(found, texts=numbers.tolist()), precision, 0.9)
            if promised is not None:
                broken[kind] += right[said >= promised.threshold].mean() < precision
    # The tolerance is two standard errors above one in ten.
    assert broken["documents"] <= (0.1 + 2 * (0.9 * 0.1 / RESAMPLINGS) ** 0.5) * RESAMPLINGS
    assert broken["docs"] > 0.2 * RESAMPLINGS


def test_the_promise_is_kept_if_few_texts_are_large_and_worse() -> None:
    """Sizes are lognormal, and the log-odds of being right fall by half the log of the size."""
    generator = np.random.default_rng(4)
    precision = 0.8

    def skewed(docs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sizes = np.ceil(generator.lognormal(1, 1.2, docs)).astype(int)
        texts = np.repeat(np.arange(docs), sizes)
        odds = generator.normal(1.8, 1.8, len(texts))
        own = (generator.normal(0, 1, docs) - 0.5 * (np.log(sizes) - 1))[texts]
        right = generator.random(len(texts)) < 1 / (1 + np.exp(-odds - own))
        return 1 / (1 + np.exp(-odds)), right, texts

    said, right, _ = skewed(50_000)
    given, broken, above = 0, 0, 0
    for number in range(3 * RESAMPLINGS):
        own, correct, texts = skewed(100)
        labels = ["A"] * len(own)
        found = JudgedEntities(own.tolist(), correct.tolist(), labels, 1, texts=texts.tolist())
        above += bound_of_all(found, 0.9) > right.mean()
        # A promise tests many thresholds and is slow, so it has fewer resamplings.
        promised = promised_threshold(found, precision, 0.9) if number < RESAMPLINGS else None
        if promised is not None:
            given += 1
            broken += right[said >= promised.threshold].mean() < precision
    assert given > 0.9 * RESAMPLINGS
    # The tolerance is two standard errors above one in ten. The effective number alone, without the
    # correction for skewness, would fail in 15 and 17 of a hundred resamplings.
    for wrong, times in ((broken, RESAMPLINGS), (above, 3 * RESAMPLINGS)):
        assert wrong <= (0.1 + 2 * (0.9 * 0.1 / times) ** 0.5) * times


def test_more_texts_cost_less_recall() -> None:
    generator = np.random.default_rng(0)

    def recall(docs: int) -> float:
        found = promised_threshold(drawn(generator, docs, 0.0), 0.9, 0.9)
        assert found is not None and found.bound >= 0.9 and found.recall < found.full_recall
        return found.recall

    few, many = (np.mean([recall(docs) for _ in range(20)]) for docs in (300, 3000))
    assert few < many


def test_bound_of_clopper_and_pearson() -> None:
    # If all n are right, bound ^ n = 1 − confidence.
    assert lower_bound(76, 76, 0.9) == pytest.approx(0.1 ** (1 / 76))
    assert needed(0.97, 0.9) == 76 and lower_bound(75, 75, 0.9) < 0.97 <= lower_bound(76, 76, 0.9)
    assert lower_bound(0, 10, 0.9) == 0.0
    # If one of two is right, P(at least one) = 1 − (1 − p)².
    assert lower_bound(1, 2, 0.9) == pytest.approx(1 - 0.9**0.5)
    assert lower_bound(95_000, 100_000, 0.9) == pytest.approx(0.95 - 1.28 * 0.00069, abs=1e-4)


def test_what_is_right_together_counts_less() -> None:
    correct = np.array([True] * 80 + [False] * 20)
    alone = np.arange(100)
    assert effective_number(correct, alone) == pytest.approx(100, rel=0.02)
    # Each text has ten predictions, which are all right or all wrong.
    assert effective_number(correct, alone // 10) == pytest.approx(9, rel=0.1)
    assert effective_number(correct, np.zeros(100, dtype="int64")) == 1.0
    # The effective number is never above the number of predictions.
    assert effective_number(correct, np.arange(100) % 20) == 100


def found_in(correct: np.ndarray, texts: np.ndarray) -> JudgedEntities:
    rows = [0.9] * len(correct), correct.tolist(), ["A"] * len(correct)
    return JudgedEntities(*rows, int(correct.sum()), texts=texts.tolist())


@pytest.mark.parametrize(("right", "count"), [(20, 20), (95, 100), (9, 10), (300, 1000)])
def test_texts_of_one_prediction_each_have_the_bound_of_clopper_and_pearson(
    right: int, count: int
) -> None:
    found = found_in(np.arange(count) < right, np.arange(count))
    assert bound_of_all(found, 0.9) == lower_bound(right, count, 0.9)


def test_no_bound_is_above_the_precision_itself() -> None:
    generator = np.random.default_rng(0)
    for _ in range(500):
        count = int(generator.integers(1, 300))
        texts = generator.integers(0, generator.integers(1, count + 1), count)
        correct = generator.random(count) < generator.random()
        confidence = float(generator.choice([0.5, 0.8, 0.95]))
        bound = bound_of_all(found_in(correct, texts), confidence)
        assert 0 <= bound <= correct.mean()


def test_texts_of_equal_precision_are_not_skewed() -> None:
    correct, texts = np.tile(np.arange(10) < 9, 20), np.arange(200) // 10
    assert skewness_factor(correct, texts, 200, 0.9) == 1.0
    assert skewness_factor(correct[:10], texts[:10], 1, 0.9) == 1.0


def test_a_large_text_that_is_worse_costs_more_than_one_that_is_better() -> None:
    texts = np.concatenate([np.arange(100).repeat(5), np.full(50, 100)])
    small = np.arange(500) % 10 < 8
    factors = [
        skewness_factor(np.append(small, large), texts, 200, 0.9)
        for large in (np.arange(50) < 25, np.arange(50) < 50)
    ]
    assert factors[0] < 0.7 and factors[1] == 1.0
    # The bound already has the skewness of a binomial distribution: one prediction in each text.
    assert skewness_factor(small, np.arange(500), 500, 0.9) == pytest.approx(1.0)
    # The factor is 1 if all predictions are right, and at a confidence of one half.
    assert skewness_factor(np.ones(9, dtype=bool), np.arange(9), 9, 0.9) == 1.0
    assert skewness_factor(np.append(small, small[:50]), texts, 200, 0.5) == 1.0


def test_predictions_that_are_all_right_count_as_their_texts_tell() -> None:
    right, texts = np.ones(100, dtype=bool), np.arange(100) // 10
    # The correlation within texts is unknown, so the effective number is the number of texts.
    assert effective_number(right, texts) == pytest.approx(10)
    assert effective_number(right, texts, correlation=0.0) == 100
    assert effective_number(right, np.zeros(100, dtype="int64")) == 1.0
    together = np.repeat(np.arange(10) < 7, 10)
    assert correlation_within(together, texts) == 1.0 == correlation_within(right, texts)
    generator = np.random.default_rng(0)
    apart = generator.random(10_000) < 0.7
    assert correlation_within(apart, np.arange(10_000) // 10) < 0.02


@pytest.mark.parametrize("docs", [1, 3, 10, 20])
@pytest.mark.parametrize("rates", [(1.0, 0.5, 0.75), (0.995, 0.6, 0.7)])
def test_the_promise_is_kept_with_few_texts(docs: int, rates: tuple[float, float, float]) -> None:
    """Texts of 200 predictions are good or bad, and their joint precision is below 0.9."""
    generator = np.random.default_rng(1)
    good, bad, share = rates
    broken = 0
    for _ in range(RESAMPLINGS):
        rate = np.where(generator.random(docs) < share, good, bad)
        texts = np.repeat(np.arange(docs), 200)
        right = generator.random(len(texts)) < rate[texts]
        found = JudgedEntities(
            [0.9] * len(texts),
            right.tolist(),
            ["A"] * len(texts),
            int(right.sum()),
            texts=texts.tolist(),
        )
        broken += promised_threshold(found, 0.9, 0.9) is not None
    assert broken <= 0.1 * RESAMPLINGS


def test_what_texts_cannot_support_is_none() -> None:
    right = JudgedEntities([0.99] * 75, [True] * 75, ["A"] * 75, 75)
    assert promised_threshold(right, 0.97, 0.9) is None
    more = JudgedEntities([0.99] * 76, [True] * 76, ["A"] * 76, 76)
    found = promised_threshold(more, 0.97, 0.9)
    assert found is not None and (found.threshold, found.kept) == (0.0, 76)
    # The most confident predictions are wrong, so lower thresholds are not tested.
    wrong = JudgedEntities(
        [0.99] * 100 + [0.5] * 900, [False] * 100 + [True] * 900, ["A"] * 1000, 1000
    )
    assert promised_threshold(wrong, 0.8, 0.9) is None
    # 24 sure predictions of 154 are too few, unless that is allowed.
    few = JudgedEntities([0.99] * 24 + [0.5] * 130, [True] * 24 + [False] * 130, ["A"] * 154, 99)
    assert promised_threshold(few, 0.97, 0.9) is None
    assert promised_threshold(few, 0.9, 0.9, few=True) is not None
    assert promised_threshold(JudgedEntities(), 0.5, 0.9) is None


def test_the_bound_of_all_needs_no_threshold() -> None:
    # The most confident predictions are wrong.
    said = [0.9] * 60 + np.linspace(0.5, 0.4, 940).tolist()
    found = JudgedEntities(said, [False] * 60 + [True] * 940, ["A"] * 1000, 940)
    assert promised_threshold(found, 0.9, 0.9) is None
    assert bound_of_all(found, 0.9) == pytest.approx(lower_bound(940, 1000, 0.9), abs=1e-3)
    assert 0.9 < bound_of_all(found, 0.9) < 0.94


def test_one_error_among_the_most_confident_is_no_end() -> None:
    said = np.linspace(1.0, 0.5, 700)
    correct = np.arange(700) != 3
    found = JudgedEntities(said.tolist(), correct.tolist(), ["A"] * 700, 700)
    promised = promised_threshold(found, 0.97, 0.9)
    assert promised is not None and promised.threshold == 0
