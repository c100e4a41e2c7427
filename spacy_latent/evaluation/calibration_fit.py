"""Fit of temperatures, slopes and shifts to judged predictions, and its gain on others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spacy_latent.analysis.thresholds import ENOUGH
from spacy_latent.pipeline.learnt_calibration import NEAR, ConfidenceMap

if TYPE_CHECKING:
    from spacy_latent.analysis.independent_texts import IndependentTexts
    from spacy_latent.analysis.judged_entities import JudgedEntities

FOLDS = 5
# Largest number of neighbouring docs that are left out of a fit together.
RUN = 10
# Standard deviation of the Gaussian priors on the logarithm of the temperature and on the biases.
# A label without entities in held-out text keeps a finite bias.
SPREAD = 1.0
# The same for the slope and the shifts of entities and spans, which are fitted after the
# temperature. `python -m benchmarks calibration_rules` compares it with a wider prior.
MAP_SPREAD = 0.3
STEPS = 60
# Logarithms of the temperatures at which probabilities are computed: .5 to 10.
LOGARITHMS = np.arange(-0.7, 2.31, 0.1)
TEMPERATURES = np.exp(LOGARITHMS).tolist()
UNCHANGED = int(np.abs(LOGARITHMS).argmin())
# Least slope of the log-odds. It is above 0, so that the order of confidences does not change.
LEAST_SLOPE = 0.05

# ---------------------------------------------------------------- gains on what is left out


@dataclass(frozen=True)
class Gain:
    """Reduction of a mean loss on what was left out of a fit.

    Attributes:
        mean: the reduction, in nats.
        error: its standard error over texts; infinite for a single text.
    """

    mean: float
    error: float

    @property
    def is_sure(self) -> bool:
        """True if the gain is larger than its error."""
        return self.mean > self.error


def gain_of(before: np.ndarray, after: np.ndarray, texts: np.ndarray | None = None) -> Gain:
    """Return the gain of the losses ``after`` over those ``before``, both ``(N,)``.

    Args:
        texts: text of each loss, ``(N,)``; None if each is of a text of its own. Losses of one text
            are not independent.
    """
    if not len(before):
        return Gain(0.0, math.inf)
    each = np.asarray(before, dtype="float64") - np.asarray(after, dtype="float64")
    mean = float(each.mean())
    place = np.arange(len(each)) if texts is None else np.unique(texts, return_inverse=True)[1]
    sums = np.bincount(place, each - mean)
    count = len(sums)
    error = math.sqrt(sums @ sums * count / (count - 1)) / len(each) if count > 1 else math.inf
    return Gain(mean, error)


def folds_of(documents: IndependentTexts) -> np.ndarray:
    """Return the fold of each doc, ``(D,)`` int64.

    If docs name ten or more documents, these are assigned to the folds in turn. Otherwise runs of
    docs are assigned in turn, since neighbours are often pieces of one document.
    """
    numbers, least = np.asarray(documents.numbers, dtype="int64"), 2 * FOLDS
    if documents.are_documents and documents.count >= least:
        return numbers % FOLDS
    numbers = np.arange(len(numbers))
    return numbers // min(RUN, max(1, len(numbers) // least)) % FOLDS


# ---------------------------------------------------------------- a temperature alone


@dataclass(frozen=True)
class TemperatureFit:
    """Logarithm of a temperature with the least loss of predictions.

    Attributes:
        best: the logarithm.
        gain: gain of predictions left out of the fit.
        by_fold: for each fold the logarithm fitted to the other folds, ``(FOLDS,)``.
    """

    best: float
    gain: Gain
    by_fold: np.ndarray

    @property
    def kept(self) -> float:
        """The logarithm that is applied, 0 without a sure gain."""
        return self.best if self.gain.is_sure else 0.0

    @classmethod
    def of(
        cls, said: np.ndarray, right: np.ndarray, texts: np.ndarray, folds: np.ndarray
    ) -> TemperatureFit:
        """Fit to N predictions with their probabilities at T temperatures.

        Args:
            said: probabilities at :data:`TEMPERATURES`, ``(N, T)``.
            right: whether each prediction is right, ``(N,)`` bool.
            texts: text of each, ``(N,)``.
            folds: fold of each text, ``(D,)``.
        """
        losses = np.stack([surprise(column, right) for column in said.T], 1)
        fold = folds[texts]
        of_folds = np.stack([losses[fold == k].sum(0) for k in range(FOLDS)])
        whole = of_folds.sum(0)
        by_fold = np.array([_lowest(whole - own) for own in of_folds])
        left_out = surprise(at_temperature(said, by_fold[fold]), right)
        return cls(_lowest(whole), gain_of(losses[:, UNCHANGED], left_out, texts), by_fold)


def _lowest(losses: np.ndarray) -> float:
    """Return the logarithm of the temperature with the least loss, between the computed ones.

    A Gaussian prior draws it to 0, as in :class:`~spacy_latent.evaluation.score_fit.ScoreFit`.
    """
    drawn = losses + 0.5 * (LOGARITHMS / SPREAD) ** 2
    i = int(np.clip(drawn.argmin(), 1, len(drawn) - 2))
    left, middle, right = drawn[i - 1 : i + 2]
    curvature = left - 2 * middle + right
    # The vertex of the parabola through three points.
    offset = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(LOGARITHMS[i] + np.clip(offset, -1, 1) * (LOGARITHMS[1] - LOGARITHMS[0]))


def at_temperature(said: np.ndarray, logarithms: np.ndarray | float) -> np.ndarray:
    """Interpolate probabilities ``(N,)`` at a temperature, or at a temperature for each of them.

    Args:
        said: probabilities at :data:`TEMPERATURES`, ``(N, T)``.
        logarithms: logarithms of the temperatures, one or ``(N,)``.
    """
    place = (np.broadcast_to(logarithms, len(said)) - LOGARITHMS[0]) / (
        LOGARITHMS[1] - LOGARITHMS[0]
    )
    below = np.clip(place.astype("int64"), 0, len(LOGARITHMS) - 2)
    share, rows = place - below, np.arange(len(said))
    return (1 - share) * said[rows, below] + share * said[rows, below + 1]


# ---------------------------------------------------------------- confidence


def fit_confidence(
    probabilities: Sequence[float] | np.ndarray,
    correct: Sequence[bool] | np.ndarray,
    labels: Sequence[str] | np.ndarray = (),
    spread: float = MAP_SPREAD,
) -> ConfidenceMap:
    """Fit slope and shift of the log-odds (Platt 1999) by Newton's method.

    Args:
        labels: labels of the entities, for a shift of each label; empty for no such shifts.
        spread: standard deviation of the Gaussian priors that draw them to 1 and 0.
    """
    names = sorted(set(labels))
    said = np.clip(np.asarray(probabilities, dtype="float64"), NEAR, 1 - NEAR)
    right = np.asarray(correct, dtype="float64")
    odds = np.log(said) - np.log1p(-said)
    own = [np.asarray([label == name for label in labels], dtype="float64") for name in names]
    shared = np.stack([np.ones_like(odds), *own], 1)
    zero = np.zeros(1 + len(names))
    slope, *rest = _newton(
        np.column_stack([odds, shared]), np.array([1.0, *zero]), 0.0, right, spread
    )
    if slope < LEAST_SLOPE:
        # Compute the shifts for the chosen slope.
        slope, rest = LEAST_SLOPE, _newton(shared, zero, LEAST_SLOPE * odds, right, spread)
    shift, *shifts = rest
    return ConfidenceMap(slope=slope, shift=shift, shifts=dict(zip(names, shifts)))


def _newton(
    inputs: np.ndarray,
    start: np.ndarray,
    offset: np.ndarray | float,
    right: np.ndarray,
    spread: float,
) -> list[float]:
    """Fit the weights ``(W,)`` of a logistic regression of ``right`` ``(N,)`` on inputs ``(N, W)``.

    A Gaussian prior with this spread draws the weights to ``start``.

    Args:
        offset: term that is added to the log-odds, ``(N,)``.
    """
    point = start

    def loss(at: np.ndarray) -> float:
        found = offset + inputs @ at
        drawn = 0.5 * ((at - start) ** 2).sum() / spread**2
        return float((np.logaddexp(0, found) - right * found).sum() + drawn)

    for _ in range(STEPS):
        value = np.exp(-np.logaddexp(0, -(offset + inputs @ point)))
        gradient = inputs.T @ (value - right) + (point - start) / spread**2
        curvature = (inputs.T * (value * (1 - value))) @ inputs + np.eye(len(point)) / spread**2
        step = np.linalg.solve(curvature, gradient)
        # If the curvature is small, a whole step may overshoot the minimum.
        while loss(point - step) > loss(point) and np.abs(step).max() > 1e-9:
            step /= 2
        point = point - step
        if np.abs(step).max() < 1e-9:
            break
    return point.tolist()


def choose_confidence(
    found: JudgedEntities, folds: np.ndarray, mapped: bool | None = None
) -> tuple[ConfidenceMap, dict[str, float]]:
    """Choose the slope and shifts with the least loss of entities left out of the fit.

    The candidates are no change; a slope and a shift; and these with a shift for each label, if
    there are several. They are fitted to all folds but one, in turn. The loss is −log of the
    probability of the true outcome.

    Args:
        folds: fold of each text, ``(D,)``.
        mapped: True for a slope and a shift in any case, False for no change.

    Returns:
        The choice, fitted to all entities, and the mean loss of each candidate.
    """
    said, right = np.asarray(found.probabilities), np.asarray(found.correct, dtype=bool)
    if mapped is False or not len(said):
        return ConfidenceMap(), {}
    options = {"slope and shift": False}
    if len(set(found.labels)) > 1:
        options["slope and shifts of labels"] = True
    losses = {
        option: float(surprise(_left_out(found, by_label, folds), right).mean())
        for option, by_label in options.items()
    }
    all_losses = {"probability": float(surprise(said, right).mean()), **losses}
    best = min(losses if mapped else all_losses, key=all_losses.__getitem__)
    if best == "probability":
        return ConfidenceMap(), all_losses
    return fit_confidence(said, right, found.labels if options[best] else ()), all_losses


def fit_map(found: JudgedEntities, folds: np.ndarray) -> tuple[ConfidenceMap, np.ndarray, Gain]:
    """Fit a slope and a shift, and replace them by 1 and 0 unless predictions left out surely gain.

    They are 1 and 0 as well if there are fewer than 50 predictions.

    Args:
        folds: fold of each text, ``(D,)``.

    Returns:
        The map, the confidence of each prediction by a map fitted to the other folds, ``(N,)``, and
        the gain of these confidences over the given probabilities.
    """
    right = np.asarray(found.correct, dtype=bool)
    if len(right) < ENOUGH:
        return ConfidenceMap(), np.asarray(found.probabilities), Gain(0.0, math.inf)
    left_out = _left_out(found, False, folds, SPREAD)
    losses = surprise(found.probabilities, right), surprise(left_out, right)
    gain = gain_of(*losses, _texts(found))
    if not gain.is_sure:
        return ConfidenceMap(), left_out, gain
    return fit_confidence(found.probabilities, right, spread=SPREAD), left_out, gain


def left_out_confidences(
    found: JudgedEntities, made: ConfidenceMap, folds: np.ndarray
) -> np.ndarray:
    """Return the confidence of each entity by a fit to the other folds, ``(N,)``.

    Args:
        made: result of :func:`choose_confidence`, which says what is fitted.
    """
    if made == ConfidenceMap():
        return np.asarray(found.probabilities, dtype="float64")
    return _left_out(found, bool(made.shifts), folds)


def _texts(found: JudgedEntities) -> np.ndarray:
    return np.asarray(found.texts if found.texts else range(len(found.probabilities)), "int64")


def _left_out(
    found: JudgedEntities, by_label: bool, folds: np.ndarray, spread: float = MAP_SPREAD
) -> np.ndarray:
    said, right = np.asarray(found.probabilities), np.asarray(found.correct, dtype=bool)
    names, fold = np.asarray(found.labels, dtype=object), folds[_texts(found)]
    confidences = np.zeros(len(said))
    for k in range(FOLDS):
        rest, mine = fold != k, fold == k
        made = fit_confidence(said[rest], right[rest], names[rest] if by_label else (), spread)
        pairs = zip(said[mine].tolist(), names[mine])
        confidences[mine] = [made.confidence(*pair) for pair in pairs]
    return confidences


def surprise(said: Sequence[float] | np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return −log of the probability of each outcome, ``(N,)``."""
    sure = np.clip(np.asarray(said, dtype="float64"), NEAR, 1 - NEAR)
    return -np.log(np.where(right, sure, 1 - sure))
