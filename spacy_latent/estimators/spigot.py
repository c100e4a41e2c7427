"""SPIGOT, structured projection of intermediate gradients (Peng et al. 2018)."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import (
    MANY,
    IncompatiblePair,
    LatentError,
    check_flags,
    check_one_of,
    check_positive,
    check_whole,
)
from spacy_latent.estimators.noise import Noise, check_noise
from spacy_latent.estimators.target_difference import NoisyTargetDifference
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies
from spacy_latent.structures.relaxation import project_relaxed


class Spigot(NoisyTargetDifference):
    """The best structure, with a gradient by a projected step (Peng et al. 2018).

    Forward z = MAP(s). Backward z − Proj(z − ηg) with g the gradient at z.

    Args:
        step_size: η.
        projection ("exact" or "relaxed"): "exact" projects on the convex hull of the structures, by
            SparseMAP. "relaxed", as in the original, projects on the relaxed polytope with one
            choice per group of exclusive parts (for a tree, one head per word: a simplex each).
        max_norm: g of each item is scaled down to this norm first, as the original clips it; None
            for no bound.
        scale_by_batch: multiply g by the number of items, for losses that are means over them.
            Their gradients would otherwise shrink against the fixed size of the polytope. Most of
            spaCy's own losses are sums. Components solve texts of similar length together; items
            are then the texts of one such group, not of the whole batch.
        max_iter, tolerance: as for SparseMAP, used by the exact projection.
        noise: law of ε, or None. With noise z = MAP(s + ε) in training, as in PerturbAndMap, and
            the backward is computed at s + ε. This is an extension of the method: without it,
            scores that all prefer the same trivial structure never give another one.
        scale: scale of the noise.
        num_samples: with noise, the number K of structures drawn per item, each of weight 1/K.
    """

    def __init__(
        self,
        step_size: float = 1.0,
        projection: Literal["exact", "relaxed"] = "exact",
        max_norm: float | None = None,
        scale_by_batch: bool = False,
        max_iter: int = 200,
        tolerance: float = 1e-6,
        noise: Noise | None = None,
        scale: float = 1.0,
        num_samples: int = 1,
    ) -> None:
        check_whole(self.name, most=MANY, num_samples=num_samples)
        if noise is not None:
            check_noise(self.name, noise, scale, num_samples, 1)
        elif num_samples != 1:
            raise LatentError(
                f"Spigot: num_samples is {num_samples} without noise, so that all samples would be "
                "equal. Set noise, or num_samples = 1."
            )
        elif scale != 1.0:
            raise LatentError(
                f"Spigot: scale is {scale!r} without noise, whose scale it is. Set noise, or leave "
                "scale out."
            )
        check_one_of(self.name, ("exact", "relaxed"), projection=projection)
        check_positive(self.name, step_size=step_size, tolerance=tolerance)
        check_positive(self.name, or_null=True, max_norm=max_norm)
        check_whole(self.name, max_iter=max_iter)
        check_flags(self.name, scale_by_batch=scale_by_batch)
        self.step_size = step_size
        self.projection = projection
        self.max_norm = max_norm
        self.scale_by_batch = scale_by_batch
        self.max_iter = max_iter
        self.tolerance = tolerance
        self.noise: Noise | None = noise
        self.scale = scale
        self.num_samples = num_samples

    @property
    def solves(self) -> bool:
        return self.projection == "exact"

    def check(self, structure: Structure) -> None:
        super().check(structure)
        if self.projection == "relaxed" and not structure.exclusive_axes:
            raise IncompatiblePair(
                "Spigot with projection='relaxed'",
                structure.name,
                f"{structure.name} has no groups of exclusive parts, which the relaxed polytope "
                "is made of",
                "Spigot with projection='exact', or SparseMAP",
            )

    def project(self, structure: Structure, points: Tensor, lengths: Tensor) -> Tensor:
        """Return the nearest point to each of ``points`` (B, *parts); −inf forbids a part."""
        if self.projection == "relaxed":
            return project_relaxed(structure, points, lengths)
        return structure.sparsemap(points, lengths, self.max_iter, self.tolerance).mean

    def gradient_of_scores(
        self, structure: Structure, scores: Tensor, z: Tensor, gradient: Tensor, lengths: Tensor
    ) -> Tensor:
        # The gradient of each sample is divided by their number already.
        count = self.num_samples
        items = gradient.shape[0] // count if self.scale_by_batch else 1
        gradient = gradient * (count * items)
        if self.max_norm is not None:
            norm = gradient.flatten(1).norm(dim=1).view(-1, *[1] * (gradient.dim() - 1))
            gradient = gradient * (self.max_norm / norm.clamp_min(self.max_norm))
        points = (z - self.step_size * gradient).masked_fill(scores.isneginf(), -torch.inf)
        project = partial(self.project, structure)
        return (z - solve_copies(project, points, lengths, len(lengths) // count)) / count
