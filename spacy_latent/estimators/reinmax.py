"""ReinMax, straight-through of second order for independent choices (Liu et al. 2023)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.factorised import (
    Factorised,
    FactorisedEstimator,
    is_factorised,
    over_choices,
)
from spacy_latent.kernels.autograd.tracing import refuse_transforms
from spacy_latent.structures.base import Structure


class ReinMax(FactorisedEstimator):
    """Straight-through from an exact sample z ~ p, with a gradient of second order.

    The gradient is 2·J((z + p)/2)·g − ½·J(p)·g (Liu et al. 2023), with J(q)·g = q∘(g − Σ q∘g) and
    the sum over the parts of a choice. Straight-through has J(p)·g, which takes the loss for linear
    around z. Here differences of the loss are approximated by the mean of its slopes at both ends
    (Heun's method). In expectation the gradient is then exact if L is quadratic in each choice. At
    prediction z = MAP(s).

    The structure is OneOfN, IndependentHeads, ManyToOneAlignment or Bits without a budget.

    Args:
        num_samples: K, each of weight 1/K.
    """

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        self.check(structure)
        assert is_factorised(structure)
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        z = self.samples(structure, scores, lengths)
        return Draw.equal(second_order(structure, z, scores, lengths))


def second_order(structure: Factorised, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return ``z``, ``(K, B, *parts)``, with the gradient of :class:`ReinMax`."""
    refuse_transforms("ReinMax", scores)
    return _SecondOrder.apply(scores, z, structure.marginals(scores.detach(), lengths), structure)


class _SecondOrder(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, z: Tensor, marginals: Tensor, structure: Factorised
    ) -> Tensor:
        ctx.save_for_backward(z, marginals)
        ctx.structure = structure
        return z.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        z, p = ctx.saved_tensors

        def product(q: Tensor) -> Tensor:
            return q * (gradient - over_choices(ctx.structure, q * gradient))

        return (2 * product((z + p) / 2) - 0.5 * product(p)).sum(0), None, None, None
