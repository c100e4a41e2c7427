"""SPIGOT around the marginals in place of the best structure (Mihaylova et al. 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import check_flags, check_one_of, check_positive, check_whole
from spacy_latent.estimators.target_difference import TargetDifference
from spacy_latent.structures.base import Structure


class SpigotMarginals(TargetDifference):
    """SPIGOT-CE and SPIGOT-EG: the gradient of a cross-entropy to an improved structure.

    The improved structure comes from a step along −g from the marginals μ at s (their section 4.3).
    With ``forward = "mean"`` the structure is μ, and g is the gradient at μ. With ``"map"`` it is
    MAP(s), and g is the gradient there. It is then inexact by as much as the loss is curved between
    MAP(s) and μ.

    With ``step = "exponentiated"`` and ``forward = "mean"`` the gradient is η times Domke's
    difference of marginals, (μ(s) − μ(s − ηg)) / η (2010, "Implicit differentiation by
    perturbation"). This tends to the gradient through the marginals, J·g with J their Jacobian, as
    η goes to 0. Here nothing is divided by η, so a small step also makes a small gradient.
    Divide the scorer's learning rate by η for updates of Domke's size. Adam, which normalises
    gradients, does not need it.

    The authors take several projected steps, and evaluate the gradient of the loss again at each
    point. A layer that other components build on gets one gradient, so this class takes one step.

    Args:
        step ("projected" or "exponentiated"): SPIGOT-CE, μ − Proj(μ − ηg) with the exact
            projection; or SPIGOT-EG, μ(s) − μ(s − ηg).
        step_size: η.
        scale_by_batch: multiply g by the number of items, for losses that are means over them.
            Components solve texts of similar length together; items are then the texts of one such
            group, not of the whole batch.
        max_iter, tolerance: as for SparseMAP, used by the projection.
        forward ("map" or "mean"): the structure in training. Prediction uses the best one.
    """

    requires = frozenset({"marginals"})
    hard_at_prediction = True

    def __init__(
        self,
        step: Literal["projected", "exponentiated"] = "projected",
        step_size: float = 1.0,
        scale_by_batch: bool = False,
        max_iter: int = 200,
        tolerance: float = 1e-6,
        forward: Literal["map", "mean"] = "map",
    ) -> None:
        check_one_of(self.name, ("projected", "exponentiated"), step=step)
        check_one_of(self.name, ("map", "mean"), forward=forward)
        check_positive(self.name, step_size=step_size, tolerance=tolerance)
        check_whole(self.name, max_iter=max_iter)
        check_flags(self.name, scale_by_batch=scale_by_batch)
        self.step = step
        self.step_size = step_size
        self.scale_by_batch = scale_by_batch
        self.max_iter = max_iter
        self.tolerance = tolerance
        self.forward = forward

    @property
    def hard(self) -> bool:  # type: ignore[override]
        return self.forward == "map"

    def value(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
        if self.forward == "mean":
            return structure.marginals(scores, lengths)
        return super().value(structure, scores, lengths)

    @property
    def solves(self) -> bool:
        return self.step == "projected"

    def gradient_of_scores(
        self, structure: Structure, scores: Tensor, z: Tensor, gradient: Tensor, lengths: Tensor
    ) -> Tensor:
        change = self.step_size * (gradient.shape[0] if self.scale_by_batch else 1) * gradient
        mean = structure.marginals(scores, lengths)
        if self.step == "exponentiated":
            return mean - structure.marginals(scores - change, lengths)
        points = (mean - change).masked_fill(scores.isneginf(), -torch.inf)
        solution = structure.sparsemap(points, lengths, self.max_iter, self.tolerance)
        return mean - solution.mean
