"""Fit of a calibration of probabilities of entities, from scores and annotation.

The scores of a chain of tags are divided by a temperature (Guo et al. 2017). Each label may get a
bias on the tags that begin an entity. The scores are linear in both (in 1 / temperature), so the
component's own loss is convex in them. At its minimum, the expected scores and the expected numbers
of entities equal the values in the annotation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spacy_latent.analysis.calibration import ENOUGH
from spacy_latent.models.tag_losses import bound_chain, tag_loss
from spacy_latent.pipeline.learnt_calibration import NEAR, EntityCalibration, beginning_tags
from spacy_latent.structures.feasibility import infeasible_items

if TYPE_CHECKING:
    from spacy_latent.analysis.calibration import JudgedEntities
    from spacy_latent.analysis.independent_texts import IndependentTexts
    from spacy_latent.structures.tag_sequence import TagSequence

FOLDS = 5
# Most neighbouring docs that are left out of a fit together.
RUN = 10
# Standard deviation of the Gaussian priors on the logarithm of the temperature and on the biases.
# A label without entities in held-out text keeps a finite bias.
SPREAD = 1.0
# The same for the slope and the shifts of entities and spans, whose temperature is fitted before.
# `python -m benchmarks calibration_rules` compares it with a wider one.
MAP_SPREAD = 0.3
STEPS = 60
# Logarithms of the temperatures at which probabilities are computed: .5 to 10.
LOGARITHMS = np.arange(-0.7, 2.31, 0.1)
TEMPERATURES = np.exp(LOGARITHMS).tolist()
UNCHANGED = int(np.abs(LOGARITHMS).argmin())
# Least slope of the log-odds: the order of confidences is kept.
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

    Documents are dealt to the folds in turn if docs name ten or more. Otherwise runs of docs are,
    since neighbours are often of one document.
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
        gain: gain of what is left out of the fit.
        by_fold: logarithms fitted to all folds but one, ``(FOLDS,)``.
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

    A Gaussian prior draws it to 0, as in :class:`ScoreFit`.
    """
    drawn = losses + 0.5 * (LOGARITHMS / SPREAD) ** 2
    i = int(np.clip(drawn.argmin(), 1, len(drawn) - 2))
    left, middle, right = drawn[i - 1 : i + 2]
    curvature = left - 2 * middle + right
    # The vertex of the parabola through three points.
    offset = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(LOGARITHMS[i] + np.clip(offset, -1, 1) * (LOGARITHMS[1] - LOGARITHMS[0]))


def at_temperature(said: np.ndarray, logarithms: np.ndarray | float) -> np.ndarray:
    """Return probabilities at a temperature, or at one for each, between computed ones, ``(N,)``.

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


# ---------------------------------------------------------------- temperature and biases


@dataclass
class ScoredDocs:
    """Scores of docs with similar length, and the tags that their annotation allows.

    Attributes:
        scores: ``(B, N, K)``.
        allowed: ``(B, N, K)`` bool.
        lengths: ``(B,)``.
        counts: ``(B,)`` float64, 1 if a sequence agrees with the annotation, else 0.
    """

    docs: list[int]
    scores: Tensor
    lengths: Tensor
    allowed: Tensor
    counts: Tensor


class ScoreFit:
    """Fit of temperature and biases on docs with annotation.

    Args:
        kind: loss of the component. The perceptron has no probabilities, so the loss of a CRF is
            used for it.
        transitions: ``(K + 2, K)``.
        folds: fold of each doc, ``(D,)``.
    """

    def __init__(
        self,
        kind: str,
        tags: Sequence[str],
        transitions: Tensor,
        groups: Sequence[ScoredDocs],
        folds: np.ndarray,
    ) -> None:
        self.kind = "crf" if kind == "perceptron" else kind
        self.tags = tags
        self.transitions = transitions.double()
        self.groups = groups
        self.folds = torch.from_numpy(folds)
        self.size = sum(len(group.docs) for group in groups)
        places = [place for group in groups for place in group.docs]
        self.order = torch.tensor(places).argsort()
        # Docs that do not count have a loss of 0, and are left out of means.
        self.counted = self._in_order([group.counts > 0 for group in groups])
        self.begins = beginning_tags((len(tags) - 1) // 4).double()

    def losses(self, point: Tensor) -> Tensor:
        """Return the loss of each doc, ``(D,)`` float64.

        Args:
            point: logarithm of 1 / temperature, and the biases or no biases, ``(1 + L,)`` or
                ``(1,)``.
        """
        scale = point[0].exp()
        shift = point[1:] @ self.begins if len(point) > 1 else point.new_zeros(())
        chain = bound_chain(self.transitions * scale, self.tags)
        values = []
        for group in self.groups:
            # Scores of −inf stay −inf, and have no gradient.
            is_open = ~group.scores.isneginf()
            own = torch.where(is_open, group.scores, 0.0) * scale + shift
            scores = torch.where(is_open, own, -torch.inf)
            each = tag_loss(self.kind, chain, scores, group.lengths, group.allowed)
            values.append(each * group.counts)
        return self._in_order(values)

    def _in_order(self, values: Sequence[Tensor]) -> Tensor:
        """Return the values of all docs in their order, ``(D,)``."""
        return torch.cat(list(values))[self.order]

    def best(self, biases: bool, weights: Tensor, start: Tensor | None = None) -> Tensor:
        """Return the point that minimises the sum of the losses and of the penalty towards zero.

        Args:
            weights: weights of the docs, ``(D,)``.
            start: point at which the search begins; None for zero.
        """
        count = len(self.begins) if biases else 0
        point = torch.zeros(1 + count, dtype=torch.float64)
        if start is not None:
            point += start
        point.requires_grad_()
        search = torch.optim.LBFGS([point], max_iter=STEPS, line_search_fn="strong_wolfe")

        def value() -> Tensor:
            search.zero_grad()
            total = (self.losses(point) * weights).sum()
            total = total + 0.5 * (point / SPREAD).square().sum()
            total.backward()
            return total

        search.step(value)
        return point.detach()

    def cross_fit(self, start: Tensor) -> tuple[list[Tensor], Tensor]:
        """Fit the point on all folds but one, in turn.

        Args:
            start: point at which the search begins, with or without biases.

        Returns:
            The point of each fold, and the loss of each doc at the point fitted on the other folds,
            ``(D,)``.
        """
        found = torch.zeros(self.size, dtype=torch.float64)
        points = []
        for k in range(FOLDS):
            mine = self.folds == k
            point = self.best(len(start) > 1, (~mine).double(), start)
            points.append(point)
            if mine.any():
                with torch.no_grad():
                    found[mine] = self.losses(point)[mine]
        return points, found

    def choose(self, biases: bool | None) -> tuple[Tensor, dict[str, float]]:
        """Choose the point, and return it with mean losses by name.

        The losses are means over the docs that count. "as trained" is the loss without calibration.
        If ``biases`` is None, "temperature" and "temperature and biases" are losses of held-out
        docs, with calibrations fitted on the other folds. Otherwise "calibrated" is the loss of the
        same docs at the point.

        Args:
            biases: whether labels get biases. None for biases if they reduce the mean loss of
                held-out docs, in five folds, by more than the standard error of the difference.
        """
        everything = torch.ones(self.size, dtype=torch.float64)
        with torch.no_grad():
            plain = self.losses(torch.zeros(1, dtype=torch.float64))
        told = {"as trained": float(plain[self.counted].mean())}
        if biases is None:
            zero = torch.zeros(1 + len(self.begins), dtype=torch.float64)
            one, several = (self.cross_fit(start)[1][self.counted] for start in (zero[:1], zero))
            biases = gain_of(one.numpy(), several.numpy()).is_sure
            told["temperature"] = float(one.mean())
            told["temperature and biases"] = float(several.mean())
            return self.best(biases, everything), told
        point = self.best(biases, everything)
        with torch.no_grad():
            told["calibrated"] = float(self.losses(point)[self.counted].mean())
        return point, told


def feasible(
    chain: TagSequence, scores: Tensor, lengths: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the tags that annotation allows, and which docs count.

    If no sequence agrees with the annotation of a doc, all tags are allowed and the doc does not
    count.
    """
    counts = torch.ones(len(lengths), dtype=torch.float64)
    agreeing = scores.masked_fill(~allowed, -torch.inf)
    bad = infeasible_items(chain.best_tags, agreeing, lengths)
    if bad:
        allowed = allowed.clone()
        allowed[bad] = True
        counts[bad] = 0.0
    return allowed, counts


# ---------------------------------------------------------------- confidence


def fit_confidence(
    probabilities: Sequence[float] | np.ndarray,
    correct: Sequence[bool] | np.ndarray,
    labels: Sequence[str] | np.ndarray = (),
    spread: float = MAP_SPREAD,
) -> EntityCalibration:
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
        # The shifts of the chosen slope.
        slope, rest = LEAST_SLOPE, _newton(shared, zero, LEAST_SLOPE * odds, right, spread)
    shift, *shifts = rest
    return EntityCalibration(slope=slope, shift=shift, shifts=dict(zip(names, shifts)))


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
) -> tuple[EntityCalibration, dict[str, float]]:
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
        return EntityCalibration(), {}
    options = {"slope and shift": False}
    if len(set(found.labels)) > 1:
        options["slope and shifts of labels"] = True
    losses = {
        option: float(surprise(_left_out(found, by_label, folds), right).mean())
        for option, by_label in options.items()
    }
    told = {"probability": float(surprise(said, right).mean()), **losses}
    best = min(losses if mapped else told, key=told.__getitem__)
    if best == "probability":
        return EntityCalibration(), told
    return fit_confidence(said, right, found.labels if options[best] else ()), told


def fit_map(found: JudgedEntities, folds: np.ndarray) -> tuple[EntityCalibration, np.ndarray, Gain]:
    """Fit a slope and a shift, which change nothing unless predictions left out surely gain.

    They also change nothing if there are fewer than 50 predictions.

    Args:
        folds: fold of each text, ``(D,)``.

    Returns:
        The map, the confidence of each prediction by a map fitted to the other folds, ``(N,)``, and
        the gain of these confidences over the given probabilities.
    """
    right = np.asarray(found.correct, dtype=bool)
    if len(right) < ENOUGH:
        return EntityCalibration(), np.asarray(found.probabilities), Gain(0.0, math.inf)
    left_out = _left_out(found, False, folds, SPREAD)
    losses = surprise(found.probabilities, right), surprise(left_out, right)
    gain = gain_of(*losses, _texts(found))
    if not gain.is_sure:
        return EntityCalibration(), left_out, gain
    return fit_confidence(found.probabilities, right, spread=SPREAD), left_out, gain


def left_out_confidences(
    found: JudgedEntities, made: EntityCalibration, folds: np.ndarray
) -> np.ndarray:
    """Return the confidence of each entity by a fit to the other folds, ``(N,)``.

    Args:
        made: result of :func:`choose_confidence`, which says what is fitted.
        folds: fold of each text, as there.
    """
    if made == EntityCalibration():
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
