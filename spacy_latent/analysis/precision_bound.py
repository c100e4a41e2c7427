"""Thresholds of confidence whose precision holds on other text, with a named confidence.

Fixed sequence testing, as in Learn then Test (Angelopoulos et al. 2021): the thresholds are tested
from the highest down, and the first that fails ends the sequence. So many tests need no
correction, since a threshold is tested only if all higher ones passed. Each test is a lower bound
of Clopper and Pearson (1934) on the precision. Predictions of one text are not independent: their
number is reduced to the effective number of Korn and Graubard (1998). Texts count as independent,
and as drawn from the same source as the texts on which the threshold is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from spacy_latent.analysis.calibration import (
    FEW,
    SMALL_SHARE,
    JudgedEntities,
    ThresholdResult,
    apply_threshold,
)

# Number of thresholds that are tested. They depend on numbers of predictions, never on outcomes.
TESTED = 50
HALVINGS = 60


@dataclass(frozen=True)
class PromisedThreshold(ThresholdResult):
    """Threshold whose precision on other text is at least ``promised``.

    Attributes:
        promised: the requested precision.
        confidence: share of the choices of texts in which the precision holds.
        bound: lower bound of the precision at this confidence.
        full_recall: recall without a threshold.
    """

    promised: float
    confidence: float
    bound: float
    full_recall: float


def lower_bound(right: int, count: int, confidence: float) -> float:
    """Return the lower bound of Clopper and Pearson (1934) of a share, one-sided.

    Args:
        right: number of successes.
        count: number of trials.
        confidence: probability, at least, that the share is above the bound.
    """
    if not right:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _log_tail(right, count, middle) <= math.log1p(-confidence):
            low = middle
        else:
            high = middle
    return low


def _log_tail(right: int, count: int, share: float) -> float:
    """Return the logarithm of the probability of at least ``right`` of ``count`` successes."""
    if share <= 0.0:
        return -math.inf
    if share >= 1.0:
        return 0.0
    wrong = np.arange(1, count - right + 1)
    choices = np.concatenate([[0.0], np.log((count - wrong + 1) / wrong).cumsum()])
    each = np.arange(len(choices))
    terms = choices + each * math.log1p(-share) + (count - each) * math.log(share)
    return float(np.logaddexp.reduce(terms))


def needed(precision: float, confidence: float) -> int:
    """Return the least number of predictions, all of them right, that support a precision."""
    return math.ceil(math.log1p(-confidence) / math.log(precision) - 1e-9)


def effective_number(correct: np.ndarray, texts: np.ndarray) -> float:
    """Return the number of independent predictions with the same evidence of the precision.

    It is the number of predictions divided by the design effect. The design effect is the variance
    of the precision over draws of texts, divided by its variance if predictions were independent.
    It is at most the number of predictions.

    Args:
        correct: ``(N,)`` bool.
        texts: ``(N,)`` int, number of the text of each prediction.
    """
    count, precision = len(correct), float(correct.mean())
    variance = count * precision * (1 - precision)
    if not variance:
        return float(count)
    _, place = np.unique(texts, return_inverse=True)
    sums = np.bincount(place, correct - precision)
    if len(sums) == 1:
        return 1.0
    effect = float(sums @ sums) * len(sums) / (len(sums) - 1) / variance
    return count / max(1.0, effect)


@dataclass(frozen=True)
class ThresholdTest:
    """Result of the test of one threshold.

    Attributes:
        threshold: least confidence of a kept prediction.
        right, count: effective numbers of right and of all predictions kept.
        passed: whether the lower bound reaches the precision.
    """

    threshold: float
    right: int
    count: int
    passed: bool


def tests_of(
    found: JudgedEntities, precision: float, confidence: float, few: bool = False
) -> list[ThresholdTest]:
    """Test thresholds from the highest down, until one fails.

    The sequence begins where twice as many predictions are kept as would support the precision if
    all were right, at least 20 and one in ten of all. It ends at 0, so that all are kept.

    Args:
        found: predictions.
        precision: requested precision, in (0, 1).
        confidence: confidence of the bounds, in (0, 1).
        few: whether the sequence may begin with fewer, as many as would do if all were right.
    """
    said = np.asarray(found.probabilities, dtype="float64")
    order = np.argsort(-said, kind="stable")
    said, correct = said[order], np.asarray(found.correct, dtype=bool)[order]
    texts = np.asarray(found.texts if found.texts else range(len(said)), dtype="int64")[order]
    first = needed(precision, confidence)
    if not few:
        if max(first, FEW) > len(said):
            return []
        # Twice the number that would do if all were right, so that one error does not end the
        # sequence at once. It depends on no outcome.
        first = min(len(said), max(2 * first, FEW, math.ceil(SMALL_SHARE * len(said))))
    if first > len(said):
        return []
    # Entities of equal confidence are all kept.
    ends = np.append(np.flatnonzero(np.diff(said)) + 1, len(said))
    wanted = np.linspace(first, len(said), TESTED)
    made: list[ThresholdTest] = []
    for end in np.unique(ends[np.searchsorted(ends, wanted - 1e-6)]).tolist():
        effective = effective_number(correct[:end], texts[:end])
        right = math.floor(correct[:end].sum() * (effective / end) + 1e-9)
        count = math.floor(effective + 1e-9)
        # That is, the lower bound is at least the precision.
        passed = right > 0 and _log_tail(right, count, precision) <= math.log1p(-confidence)
        threshold = 0.0 if end == len(said) else float(said[end - 1 : end + 1].mean())
        made.append(ThresholdTest(threshold, right, count, passed))
        if not passed:
            break
    return made


def promised_threshold(
    found: JudgedEntities, precision: float, confidence: float, few: bool = False
) -> PromisedThreshold | None:
    """Return the lowest threshold whose precision holds on other text.

    The arguments are those of :func:`tests_of`.

    Returns:
        The threshold, or None if the texts support none.
    """
    passed = [one for one in tests_of(found, precision, confidence, few) if one.passed]
    if not passed:
        return None
    last = passed[-1]
    return PromisedThreshold(
        **vars(apply_threshold(found, last.threshold)),
        promised=precision,
        confidence=confidence,
        bound=lower_bound(last.right, last.count, confidence),
        full_recall=apply_threshold(found, 0.0).recall,
    )


__all__ = [
    "PromisedThreshold",
    "effective_number",
    "lower_bound",
    "needed",
    "promised_threshold",
    "tests_of",
]
