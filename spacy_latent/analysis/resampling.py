"""Scores of counts summed over texts, and their intervals by resampling the texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ROUNDS = 1000
# Number of resamples drawn at a time, to bound the memory.
CHUNK = 50
# The rule of three (Hanley and Lippman-Hand 1983): if none of n texts has a property, up to UNSEEN
# / n of all texts may have it, with 95 % confidence. Resamples of the texts cannot show such a
# property. If at least UNSEEN texts differ from the others, resamples are enough.
UNSEEN = 3
# Scores of one text that differ by less count as equal.
SAME = 1e-9

# Function from summed counts, ``(..., c)``, to scores, ``(...)``.
Value = Callable[[np.ndarray], np.ndarray]


def accuracy(totals: np.ndarray) -> np.ndarray:
    """Return right / all of sums ``(..., 2)``; NaN without any."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return totals[..., 0] / totals[..., 1]


def f_score(totals: np.ndarray) -> np.ndarray:
    """Return the F1 of sums ``(..., 3)``: right, predicted, in the reference; NaN without any."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return 2 * totals[..., 0] / (totals[..., 1] + totals[..., 2])


def mean_over(value: Value, trainings: int) -> Value:
    """Return the function from the counts of several trainings, side by side, to their mean score.

    Summing the counts of all trainings would not give the mean: a training that finds nothing would
    hardly lower an F1. A training whose score is NaN counts as 1 if another training has a score,
    since it correctly predicts nothing.
    """

    def mean(totals: np.ndarray) -> np.ndarray:
        each = value(totals.reshape(*totals.shape[:-1], trainings, -1))
        unknown = np.isnan(each)
        found = np.where(unknown, 1.0, each).mean(-1)
        return np.where(unknown.all(-1), np.nan, found)

    return mean


def resampled(values: Value, counts: np.ndarray, seed: int) -> np.ndarray:
    """Return the scores of :data:`ROUNDS` resamples of the D texts, from counts ``(D, c)``.

    Texts are drawn with replacement (Efron 1979).
    """
    weights = _weights(len(counts), seed)
    parts = [values(weights[i : i + CHUNK] @ counts) for i in range(0, ROUNDS, CHUNK)]
    return np.concatenate(parts)


# Cached, since all intervals of a report use the same resamples.
@lru_cache(maxsize=1)
def _weights(size: int, seed: int) -> np.ndarray:
    """Return how often each text is drawn in each resample, ``(ROUNDS, size)``; on average once."""
    rng = np.random.default_rng(seed)
    weights = np.empty((ROUNDS, size), dtype="uint8")
    for start in range(0, ROUNDS, CHUNK):
        rounds = min(CHUNK, ROUNDS - start)
        drawn = rng.multinomial(size, np.full(size, 1 / size), size=rounds)
        weights[start : start + rounds] = np.minimum(drawn, 255)
    return weights


def interval(value: Value, counts: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Return a score and the ends of its 95 % interval: (score, low, high).

    The interval comes from the bootstrap over texts. If nearly all texts are alike, the rule of
    three widens it.
    """
    return intervals([counts], seed, value)[0]


def _score(
    value: Value, counts: np.ndarray, score: float, low: float, high: float
) -> tuple[float, float, float]:
    """Return a score and its interval, widened for texts that the sample may lack.

    An interval of width 0, for example if all texts are right, would suggest certainty.
    """
    own = value(counts[counts.any(-1)])
    margin = _margin(own)
    if not (own > score + SAME).any():
        high = max(high, min(score + margin, 1.0))
    if not (own < score - SAME).any():
        low = min(low, max(score - margin, 0.0))
    return score, low, high


def _margin(own: np.ndarray) -> float:
    """Return the largest change of the mean of these numbers by texts that were not seen.

    It is 0 if at least :data:`UNSEEN` of the seen texts differ from the median.
    """
    if not len(own) or (np.abs(own - np.median(own)) > SAME).sum() >= UNSEEN:
        return 0.0
    return UNSEEN / len(own)


def intervals(
    counts: Sequence[np.ndarray], seed: int = 0, value: Value = accuracy
) -> list[tuple[float, float, float]]:
    """Return scores with their 95 % intervals, as :func:`interval`, all from the same resamples.

    Args:
        counts: several counts ``(D, c)`` of the same texts.
    """
    both = np.stack(counts, 1)
    if not len(both):
        return [(math.nan, math.nan, math.nan) for _ in counts]
    shape = both.shape[1:]

    def values(totals: np.ndarray) -> np.ndarray:
        return value(totals.reshape(len(totals), *shape))

    drawn = resampled(values, both.reshape(len(both), -1), seed)
    middle = value(both.sum(0))
    return [
        _score(value, own, float(middle[i]), *_percentiles(drawn[:, i]))
        for i, own in enumerate(counts)
    ]


def confidence_interval(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927).

    Args:
        successes: number of successes, or a proportion times ``trials``.
    """
    if not trials:
        return 0.0, 1.0
    z = 1.959964
    share = successes / trials
    middle = share + z * z / (2 * trials)
    spread = z * ((share * (1 - share) + z * z / (4 * trials)) / trials) ** 0.5
    scale = 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


@dataclass(frozen=True)
class Drop:
    """Difference before − after, with its 95 % interval by the paired bootstrap over texts.

    Attributes:
        docs: number of texts that count.
        differ: number of these texts whose own score changes.
    """

    before: float
    after: float
    drop: float
    low: float
    high: float
    docs: int
    differ: int


def paired_drop(value: Value, before: np.ndarray, after: np.ndarray, seed: int = 0) -> Drop:
    """Return the difference of two scores of the same texts, from counts ``(D, c)``.

    If nearly all texts are alike, and no text is better or no text is worse, the rule of three
    widens the interval.
    """
    if not len(before):
        nan = math.nan
        return Drop(nan, nan, nan, nan, nan, docs=0, differ=0)
    width = before.shape[1]

    def differences(totals: np.ndarray) -> np.ndarray:
        return value(totals[..., :width]) - value(totals[..., width:])

    both = np.concatenate([before, after], 1)
    low, high = _percentiles(resampled(differences, both, seed))
    first, second = float(value(before.sum(0))), float(value(after.sum(0)))
    counted = both.any(-1)
    # A text with nothing to find and no predictions counts as right.
    ours, theirs = (np.nan_to_num(value(rows[counted]), nan=1.0) for rows in (before, after))
    each, drop = ours - theirs, first - second
    differ = np.abs(each) > SAME
    # Unseen texts are assumed to differ by at most the largest observed difference; if no text
    # differs, by the largest possible one, 1.
    margin = _margin(each) * float(np.abs(each).max() if differ.any() else 1.0)
    if not (each > max(drop, 0.0) + SAME).any():
        high = max(high, min(drop + margin, 1.0))
    if not (each < min(drop, 0.0) - SAME).any():
        low = min(low, max(drop - margin, -1.0))
    return Drop(first, second, drop, low, high, len(each), int(differ.sum()))


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)
