"""Straight-through: the best structure forward, the gradient of something smooth backward."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.structures.base import Structure

Backward = Literal["identity", "marginals"]


def check_backward(name: str, backward: str) -> None:
    if backward not in ("identity", "marginals"):
        raise LatentError(f"{name}: backward is {backward!r}; expected 'identity' or 'marginals'.")


def needed_by_backward(backward: str) -> frozenset[str]:
    return frozenset({"map", "marginals"}) if backward == "marginals" else frozenset({"map"})


class GradientOf(torch.autograd.Function):
    """The value of ``z`` with the gradient of ``smooth``: z + (smooth − smooth) would round."""

    @staticmethod
    def forward(ctx: FunctionCtx, smooth: Tensor, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def straight_through(
    structure: Structure, scores: Tensor, lengths: Tensor, backward: Backward
) -> Tensor:
    """MAP(s), ``(B, *parts)``; dL/ds is dL/dz on parts ("identity") or its product with the full
    Hessian of the log-partition ("marginals")."""
    z = structure.map(scores, lengths)
    if backward == "marginals":
        smooth = structure.marginals(scores, lengths)
    else:
        allowed = structure.part_mask(scores, lengths) & ~scores.isneginf()
        smooth = scores.masked_fill(~allowed, 0.0)
    return GradientOf.apply(smooth, z)


class StraightThrough(Estimator):
    """z = MAP(s), hard; its gradient goes to the scores as it is (Hinton 2012; Bengio et al.
    2013) or through the backward of the marginals at s (Jang et al. 2017, as for softmax).

    backward ("identity" or "marginals"): "marginals" needs a structure with tractable marginals.
    """

    hard = True

    def __init__(self, backward: Backward = "identity") -> None:
        check_backward(self.name, backward)
        self.backward: Backward = backward

    def needed(self) -> frozenset[str]:
        return needed_by_backward(self.backward)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if is_train:
            z = straight_through(structure, scores, lengths, self.backward)
        else:
            z = structure.map(scores, lengths)
        return Draw.single(z)
