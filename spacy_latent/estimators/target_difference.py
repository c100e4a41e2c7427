"""The base class of estimators by the difference of two best structures."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.perturbed_best import PerturbedBest
from spacy_latent.kernels.autograd.tracing import refuse_transforms
from spacy_latent.structures.base import Structure

# A score lower than the highest of its item by this much stands for −inf. Models mask by −1e6,
# −1e30 and values in between, and noise may be added to these.
MASK = 5e5


class TargetDifference(Estimator):
    """Forward z = MAP(s); backward :meth:`gradient_of_scores`, by further MAP calls."""

    hard = True

    @abstractmethod
    def gradient_of_scores(
        self, structure: Structure, scores: Tensor, z: Tensor, gradient: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return dL/ds, ``(B, *parts)``, from z = :meth:`value` and g = dL/dz.

        Forbidden parts have scores of −inf and a gradient of 0.
        """

    def value(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the structure of the forward pass, ``(B, *parts)``; by default MAP(scores)."""
        return structure.map(scores, lengths)

    def best(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return :meth:`value` with the gradient of :meth:`gradient_of_scores`."""
        refuse_transforms(self.name, scores)
        return _Difference.apply(scores, structure, lengths, self)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        return Draw.single(self.best(structure, scores, lengths))


class NoisyTargetDifference(TargetDifference, PerturbedBest):
    """Differences of best structures for K perturbed copies of the scores."""

    __call__ = PerturbedBest.__call__


class _Difference(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, structure: Structure, lengths: Tensor, estimator: TargetDifference
    ) -> Tensor:
        z = estimator.value(structure, scores, lengths)
        allowed = structure.part_mask(scores, lengths) & ~scores.isneginf()
        ctx.save_for_backward(scores, z, allowed, lengths)
        ctx.structure, ctx.estimator = structure, estimator
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        scores, z, allowed, lengths = ctx.saved_tensors
        dtype = scores.dtype
        if scores.element_size() < 4:
            # A step may be larger than the largest number in half precision.
            scores, z, gradient = scores.float(), z.float(), gradient.float()
        gradient = gradient.masked_fill(~allowed, 0.0)
        scores = scores.masked_fill(~allowed, -torch.inf)
        result = ctx.estimator.gradient_of_scores(ctx.structure, scores, z, gradient, lengths)
        return result.to(dtype), None, None, None


def not_masked(scores: Tensor) -> Tensor:
    """Return a mask of the scores, ``(B, *parts)``, that count as magnitudes.

    −inf and scores lower than the highest of their item by ``MASK`` or more are masks and do not
    count.
    """
    axes = tuple(range(1, scores.dim()))
    if not scores.numel():
        return torch.ones_like(scores, dtype=torch.bool)
    return scores > scores.amax(axes, keepdim=True) - MASK


def norms(values: Tensor, counted: Tensor) -> Tensor:
    """Return the norm of each item's ``counted`` numbers, in a shape that broadcasts over items."""
    own = values.masked_fill(~counted, 0.0)
    return own.flatten(1).norm(dim=1).view(-1, *[1] * (values.dim() - 1))
