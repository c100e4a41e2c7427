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

from spacy_latent.models.tag_losses import bound_chain, tag_loss
from spacy_latent.pipeline.learnt_calibration import NEAR, EntityCalibration, beginning_tags
from spacy_latent.structures.feasibility import infeasible_items

if TYPE_CHECKING:
    from spacy_latent.analysis.calibration import JudgedEntities
    from spacy_latent.structures.tag_sequence import TagSequence

FOLDS = 5
# Standard deviation of the Gaussian priors on the logarithm of the temperature and on the biases.
# A label without entities in held-out text keeps a finite bias.
SPREAD = 1.0
STEPS = 60
# Least slope of the log-odds: the order of confidences is kept.
LEAST_SLOPE = 0.05

# ---------------------------------------------------------------- temperature and biases


@dataclass
class ScoredDocs:
    """Scores of docs with similar length, and the tags that their annotation allows.

    Attributes:
        docs: indices of the docs.
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
    """

    def __init__(
        self,
        kind: str,
        tags: Sequence[str],
        transitions: Tensor,
        groups: Sequence[ScoredDocs],
    ) -> None:
        self.kind = "crf" if kind == "perceptron" else kind
        self.tags = tags
        self.transitions = transitions.double()
        self.groups = groups
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
        """Return the values of all docs in their order, ``(D,)``.

        Args:
            values: values of the docs of each group.
        """
        return torch.cat(list(values))[self.order]

    def best(self, biases: bool, weights: Tensor) -> Tensor:
        """Return the point that minimises the sum of the losses and of the penalty towards zero.

        Args:
            weights: weights of the docs, ``(D,)``.
        """
        count = len(self.begins) if biases else 0
        point = torch.zeros(1 + count, dtype=torch.float64, requires_grad=True)
        search = torch.optim.LBFGS([point], max_iter=STEPS, line_search_fn="strong_wolfe")

        def value() -> Tensor:
            search.zero_grad()
            total = (self.losses(point) * weights).sum()
            total = total + 0.5 * (point / SPREAD).square().sum()
            total.backward()
            return total

        search.step(value)
        return point.detach()

    def held_out(self, biases: bool) -> Tensor:
        """Return the loss of each doc at the point fitted on the other folds, ``(D,)``."""
        fold = torch.arange(self.size) % FOLDS
        found = torch.zeros(self.size, dtype=torch.float64)
        for k in range(FOLDS):
            mine = fold == k
            if mine.any():
                point = self.best(biases, (~mine).double())
                found[mine] = self.losses(point)[mine]
        return found

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
            one, several = (self.held_out(own)[self.counted] for own in (False, True))
            gain = one - several
            error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
            biases = float(gain.mean()) > error
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
) -> EntityCalibration:
    """Fit slope and shift of the log-odds (Platt 1999) by Newton's method.

    Penalties draw them to 1 and 0, as for the biases.

    Args:
        labels: labels of the entities, for a shift of each label; empty for no such shifts.
    """
    names = sorted(set(labels))
    said = np.clip(np.asarray(probabilities, dtype="float64"), NEAR, 1 - NEAR)
    right = np.asarray(correct, dtype="float64")
    odds = np.log(said) - np.log1p(-said)
    own = [np.asarray([label == name for label in labels], dtype="float64") for name in names]
    shared = np.stack([np.ones_like(odds), *own], 1)
    zero = np.zeros(1 + len(names))
    slope, *rest = _newton(np.column_stack([odds, shared]), np.array([1.0, *zero]), 0.0, right)
    if slope < LEAST_SLOPE:
        # The shifts of the chosen slope.
        slope, rest = LEAST_SLOPE, _newton(shared, zero, LEAST_SLOPE * odds, right)
    shift, *shifts = rest
    return EntityCalibration(slope=slope, shift=shift, shifts=dict(zip(names, shifts)))


def _newton(
    inputs: np.ndarray, start: np.ndarray, offset: np.ndarray | float, right: np.ndarray
) -> list[float]:
    """Fit the weights ``(W,)`` of a logistic regression of ``right`` ``(N,)`` on inputs ``(N, W)``.

    A penalty draws the weights to ``start``.

    Args:
        offset: term that is added to the log-odds, ``(N,)``.
    """
    point = start

    def loss(at: np.ndarray) -> float:
        found = offset + inputs @ at
        drawn = 0.5 * ((at - start) ** 2).sum() / SPREAD**2
        return float((np.logaddexp(0, found) - right * found).sum() + drawn)

    for _ in range(STEPS):
        value = np.exp(-np.logaddexp(0, -(offset + inputs @ point)))
        gradient = inputs.T @ (value - right) + (point - start) / SPREAD**2
        curvature = (inputs.T * (value * (1 - value))) @ inputs + np.eye(len(point)) / SPREAD**2
        step = np.linalg.solve(curvature, gradient)
        # If the curvature is small, a whole step may overshoot the minimum.
        while loss(point - step) > loss(point) and np.abs(step).max() > 1e-9:
            step /= 2
        point = point - step
        if np.abs(step).max() < 1e-9:
            break
    return point.tolist()


def choose_confidence(
    found: JudgedEntities, mapped: bool | None = None
) -> tuple[EntityCalibration, dict[str, float]]:
    """Choose slope and shifts that held-out entities support, and return them with the losses.

    The candidates are no change; a slope and a shift; and these with a shift for each label. Each
    has to reduce the mean loss of entities that are left out, in five folds. The reduction must
    exceed the standard error of the difference to the previous candidate. The loss is −log of the
    probability of the true outcome.

    Args:
        mapped: True for a slope and a shift in any case, False for no change.
    """
    said, right = np.asarray(found.probabilities), np.asarray(found.correct, dtype=bool)
    names = np.asarray(found.labels, dtype=object)
    plain = EntityCalibration()
    if mapped is False or not len(said):
        return plain, {}
    fold = np.arange(len(said)) % FOLDS
    options = {"slope and shift": False, "slope and shifts of labels": True}
    losses = {"probability": _surprise(said, right)}
    for option, by_label in options.items():
        losses[option] = np.zeros(len(said))
        for k in range(FOLDS):
            rest, mine = fold != k, fold == k
            made = fit_confidence(said[rest], right[rest], names[rest] if by_label else ())
            pairs = zip(said[mine].tolist(), names[mine])
            losses[option][mine] = _surprise(
                [made.confidence(*pair) for pair in pairs], right[mine]
            )
    best = "slope and shift" if mapped else "probability"
    for option in options:
        gain = losses[best] - losses[option]
        error = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
        if float(gain.mean()) > error:
            best = option
    told = {option: float(loss.mean()) for option, loss in losses.items()}
    if best == "probability":
        return plain, told
    return fit_confidence(said, right, names if options[best] else ()), told


def _surprise(said: Sequence[float] | np.ndarray, right: np.ndarray) -> np.ndarray:
    sure = np.clip(np.asarray(said, dtype="float64"), NEAR, 1 - NEAR)
    return -np.log(np.where(right, sure, 1 - sure))
