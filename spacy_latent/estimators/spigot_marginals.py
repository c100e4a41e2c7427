"""SPIGOT around the marginals in place of the best structure (Mihaylova et al. 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import LatentError, check_flags
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.target_difference import TargetDifference, check_positive
from spacy_latent.structures.base import Structure


class SpigotMarginals(TargetDifference):
    """The best structure, with the gradient of a cross-entropy to an improved structure.

    Forward z = MAP(s). The improved structure comes from a step along −g, with g the gradient at z
    and μ the marginals at s (their section 4.3).

    The authors take several projected steps, and evaluate the gradient of the loss again at each
    point, from μ on. A layer that other components build on gets one gradient, the one at z. This
    class therefore takes one step, and g is inexact by as much as the loss is curved between z and
    μ.

    Args:
        step ("projected" or "exponentiated"): SPIGOT-CE, μ − Proj(μ − ηg) with the exact
            projection; or SPIGOT-EG, μ(s) − μ(s − ηg).
        step_size: η.
        scale_by_batch: multiply g by the number of items, for losses that are means over them.
        max_iter, tolerance: as for SparseMAP, used by the projection.
    """

    requires = frozenset({"marginals"})

    def __init__(
        self,
        step: Literal["projected", "exponentiated"] = "projected",
        step_size: float = 1.0,
        scale_by_batch: bool = False,
        max_iter: int = 200,
        tolerance: float = 1e-6,
    ) -> None:
        if step not in ("projected", "exponentiated"):
            raise LatentError(
                f"{self.name}: step is {step!r}; expected 'projected' or 'exponentiated'."
            )
        check_positive(self.name, step_size=step_size, max_iter=max_iter, tolerance=tolerance)
        check_flags(self.name, scale_by_batch=scale_by_batch)
        self.step = step
        self.step_size = step_size
        self.scale_by_batch = scale_by_batch
        self.max_iter = max_iter
        self.tolerance = tolerance

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

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if is_train:
            z = self.best(structure, scores, lengths)
        else:
            z = structure.map(scores, lengths)
        return Draw.single(z)
