"""Thresholds of confidence whose precision holds on other text, with a named confidence.

The method is fixed sequence testing, as in Learn then Test (Angelopoulos et al. 2021): thresholds
are tested from the highest down, and the first failure ends the sequence. The number of tests needs
no correction, since a threshold is tested only if all higher ones passed. Each test is a lower
bound of Clopper and Pearson (1934) on the precision. Predictions of one text are not independent:
their number is reduced to the effective number of Korn and Graubard (1998), with the variance of
the jackknife. It is reduced further if the distribution over texts is skewed to the left, for
example if a few large texts are worse (Johnson 1978). The bound assumes that texts are independent,
and come from the same source as the texts on which the threshold is used. A text is a doc, or a
document of several docs if they name it (:mod:`spacy_latent.analysis.independent_texts`).

Functions get N predictions as two arrays: ``correct``, ``(N,)`` bool, and ``texts``, ``(N,)`` int,
the number from 0 of the text of each prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.thresholds import FEW, SMALL_SHARE, ThresholdResult, apply_threshold

# Number of thresholds that are tested. They depend on numbers of predictions, never on outcomes.
TESTED = 50
# With fewer texts, the dependence of predictions in one text cannot be estimated.
LEAST_TEXTS = 10
# Share of the skewness that a sample shows, since it seldom contains the largest texts: 4.5 of 14.6
# with 300 texts of lognormal sizes (σ = 1.2), if larger texts are worse.
SKEWNESS_SHOWN = 1 / 3
HALVINGS = 60


@dataclass(frozen=True)
class PromisedThreshold(ThresholdResult):
    """Threshold whose precision on other text is at least ``promised``.

    Attributes:
        confidence: probability, over draws of the calibration texts, that the precision holds.
        bound: lower bound of the precision at this confidence.
        full_recall: recall without a threshold.
        texts: number of independent texts with predictions.
        by_document: whether these texts are documents, of which a doc may be a piece.
        largest: share of all predictions that is in the text with most of them.
    """

    promised: float
    confidence: float
    bound: float
    full_recall: float
    texts: int
    by_document: bool
    largest: float


def lower_bound(right: int, count: int, confidence: float) -> float:
    """Return the lower bound of Clopper and Pearson (1934) of a share, one-sided.

    Args:
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
    """Return the least number of predictions that supports a precision if all of them are right."""
    return math.ceil(math.log1p(-confidence) / math.log(precision) - 1e-9)


def effective_number(correct: np.ndarray, texts: np.ndarray, correlation: float = 1.0) -> float:
    """Return the number of independent predictions that would be as much evidence on the precision.

    It is the number of predictions divided by the design effect. The design effect is the variance
    of the precision over draws of texts, by the jackknife, divided by its variance if predictions
    were independent. If all predictions are right or all are wrong, both variances are 0. The
    effect is then 1 + (m − 1) · correlation, with m the typical number of predictions of a text.
    The result is at most the number of predictions.

    Args:
        correlation: correlation of predictions of one text, see :func:`correlation_within`.
    """
    effect, typical = _design_effect(correct, texts)
    if effect is None:
        effect = 1.0 + (typical - 1.0) * correlation
    return len(correct) / max(1.0, effect)


def _effective_counts(
    correct: np.ndarray, texts: np.ndarray, correlation: float, confidence: float
) -> tuple[int, int]:
    """Return the effective numbers of right and of all predictions, as whole numbers."""
    effective = effective_number(correct, texts, correlation)
    effective *= skewness_factor(correct, texts, effective, confidence)
    # Round the number of all predictions first. Rounded separately, the share of right ones could
    # increase.
    count = math.floor(effective + 1e-9)
    return math.floor(count * float(correct.mean()) + 1e-9), count


def skewness_factor(
    correct: np.ndarray, texts: np.ndarray, effective: float, confidence: float
) -> float:
    """Return the factor by which the skewness of texts reduces the effective number.

    It is below 1 if texts are more skewed to the left than a binomial, whose skewness the bound of
    Clopper and Pearson already includes. Johnson (1978) widens an interval of z standard errors by
    (2z² + 1) / 6 times the skewness. The factor is the squared ratio of the original to the new
    width.
    """
    precision, z = float(correct.mean()), NormalDist().inv_cdf(confidence)
    if precision in (0.0, 1.0) or z <= 0.0:
        return 1.0
    _, more = _by_text(correct, texts)
    spread = float(more @ more) ** 0.5
    if not spread:
        return 1.0
    binomial = (1 - 2 * precision) / (effective * precision * (1 - precision)) ** 0.5
    excess = min(0.0, float((more**3).sum()) / spread**3 - binomial) / SKEWNESS_SHOWN
    return (z / (z - excess * (2 * z * z + 1) / 6)) ** 2


def correlation_within(correct: np.ndarray, texts: np.ndarray) -> float:
    """Return the correlation, 0 to 1, between the correctness of two predictions of one text.

    It is 1 if it cannot be estimated: if all predictions are right, if all are wrong, or if each
    text has one prediction.
    """
    effect, typical = _design_effect(correct, texts)
    if effect is None or typical <= 1.0:
        return 1.0
    return min(1.0, max(0.0, (effect - 1.0) / (typical - 1.0)))


def _by_text(correct: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the size of each text, and its number of right predictions minus the expected one."""
    sizes = np.bincount(texts)
    # Compute in whole numbers, so that texts with the mean precision have exactly 0.
    right = np.bincount(texts, correct).astype("int64")
    more = (right * len(correct) - sizes * int(correct.sum())) / len(correct)
    return sizes[sizes > 0], more[sizes > 0]


def _design_effect(correct: np.ndarray, texts: np.ndarray) -> tuple[float | None, float]:
    """Return the design effect, None if all are right or wrong, and the size of a typical text."""
    count, precision = len(correct), float(correct.mean())
    sizes, more = _by_text(correct, texts)
    typical = float(np.square(sizes).sum() / count)
    if len(sizes) == 1:
        return float(count), typical
    if precision in (0.0, 1.0):
        return None, typical
    # Unbiased like the jackknife, so that the effect is 1 if each text has one prediction.
    variance = count * precision * (1 - precision) * count / (count - 1)
    # Jackknife: the change of the precision without a text, times the number of predictions.
    changes = more / (1 - sizes / count)
    return float(changes @ changes) * (len(sizes) - 1) / len(sizes) / variance, typical


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

    The first threshold keeps twice as many predictions as would support the precision if all were
    right, and at least 20 and one in ten of all. The last threshold is 0, which keeps all. The
    sequence is empty if the predictions come from fewer than LEAST_TEXTS texts.

    Args:
        precision: requested precision, in (0, 1).
        confidence: confidence of the bounds, in (0, 1).
        few: whether the sequence begins with fewer predictions: as many as would support the
            precision if all were right.
    """
    said = np.asarray(found.probabilities, dtype="float64")
    order = np.argsort(-said, kind="stable")
    said, correct = said[order], np.asarray(found.correct, dtype=bool)[order]
    texts = _texts_of(found)[order]
    if len(np.unique(texts)) < min(LEAST_TEXTS, len(said)):
        return []
    shared = correlation_within(correct, texts) if len(said) else 1.0
    first = needed(precision, confidence)
    if not few:
        if max(first, FEW) > len(said):
            return []
        # Twice the number that is enough if all are right, so that one error does not end the
        # sequence at once. The number does not depend on outcomes.
        first = min(len(said), max(2 * first, FEW, math.ceil(SMALL_SHARE * len(said))))
    if first > len(said):
        return []
    # Keep all entities of equal confidence.
    ends = np.append(np.flatnonzero(np.diff(said)) + 1, len(said))
    wanted = np.linspace(first, len(said), TESTED)
    made: list[ThresholdTest] = []
    for end in np.unique(ends[np.searchsorted(ends, wanted - 1e-6)]).tolist():
        right, count = _effective_counts(correct[:end], texts[:end], shared, confidence)
        # The test passes if the lower bound is at least the precision.
        passed = right > 0 and _log_tail(right, count, precision) <= math.log1p(-confidence)
        threshold = 0.0 if end == len(said) else float(said[end - 1 : end + 1].mean())
        made.append(ThresholdTest(threshold, right, count, passed))
        if not passed:
            break
    return made


def bound_of_all(found: JudgedEntities, confidence: float) -> float:
    """Return the lower bound of the precision of all predictions, at least one."""
    correct = np.asarray(found.correct, dtype=bool)
    texts = _texts_of(found)
    counts = _effective_counts(correct, texts, correlation_within(correct, texts), confidence)
    return lower_bound(*counts, confidence)


def _texts_of(found: JudgedEntities) -> np.ndarray:
    """Return the number of each prediction's text, from 0; each has its own if none is given."""
    given = np.asarray(found.texts or range(len(found.correct)), dtype="int64")
    return np.unique(given, return_inverse=True)[1]


def promised_threshold(
    found: JudgedEntities, precision: float, confidence: float, few: bool = False
) -> PromisedThreshold | None:
    """Return the lowest threshold whose precision holds on other text.

    For the arguments see :func:`tests_of`.

    Returns:
        The threshold, or None if the texts support none.
    """
    passed = [one for one in tests_of(found, precision, confidence, few) if one.passed]
    if not passed:
        return None
    last = passed[-1]
    _, sizes = np.unique(_texts_of(found), return_counts=True)
    return PromisedThreshold(
        **vars(apply_threshold(found, last.threshold)),
        promised=precision,
        confidence=confidence,
        bound=lower_bound(last.right, last.count, confidence),
        full_recall=apply_threshold(found, 0.0).recall,
        texts=len(sizes),
        by_document=found.by_document,
        largest=float(sizes.max() / sizes.sum()),
    )
