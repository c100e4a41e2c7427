"""Straight-through: the best structure forward, the gradient of a smooth function backward."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from spacy_latent.errors import check_one_of
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.kernels.autograd.derivatives import is_transformed
from spacy_latent.structures.base import Structure

Backward = Literal["identity", "marginals"]
BACKWARDS = get_args(Backward)


def needed_by_backward(backward: str) -> frozenset[str]:
    """Return the operations that a structure needs for this kind of gradient."""
    return frozenset({"map", "marginals"}) if backward == "marginals" else frozenset({"map"})


class GradientOf(torch.autograd.Function):
    """The value of ``z`` with the gradient of ``smooth``: z + (smooth − smooth) would round."""

    @staticmethod
    def forward(ctx: FunctionCtx, smooth: Tensor, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GradientOfTransformed(torch.autograd.Function):
    """The function :class:`GradientOf` for the transforms of torch.func.

    It is a separate class, since torch reads the signature of ``forward`` at each call if there is
    a ``setup_context``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(smooth: Tensor, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None

    @staticmethod
    def jvp(ctx: FunctionCtx, tangent: Tensor, _: Tensor | None) -> Tensor:
        return tangent.clone()


def with_gradient_of(smooth: Tensor, z: Tensor) -> Tensor:
    """Return the value of ``z`` with the gradient of ``smooth``, see :class:`GradientOf`."""
    made = (_GradientOfTransformed if is_transformed() else GradientOf).apply(smooth, z)
    assert isinstance(made, Tensor)
    return made


def straight_through(
    structure: Structure, scores: Tensor, lengths: Tensor, backward: Backward
) -> Tensor:
    """Return MAP(s), ``(B, *parts)``, with a straight-through gradient.

    dL/ds is dL/dz on parts ("identity") or its product with the full Hessian of the log-partition
    ("marginals").
    """
    z = structure.map(scores, lengths)
    if backward == "marginals":
        smooth = structure.marginals(scores, lengths)
    else:
        allowed = structure.part_mask(scores, lengths) & ~scores.isneginf()
        smooth = scores.masked_fill(~allowed, 0.0)
    return with_gradient_of(smooth, z)


class StraightThrough(Estimator):
    """The best structure z = MAP(s), hard, with a straight-through gradient.

    The gradient goes to the scores as it is (Hinton 2012; Bengio et al. 2013) or through the
    backward of the marginals at s (Jang et al. 2017, as for softmax).

    Args:
        backward ("identity" or "marginals"): "marginals" needs a structure with tractable
            marginals.
    """

    hard = True

    def __init__(self, backward: Backward = "identity") -> None:
        check_one_of(self.name, BACKWARDS, backward=backward)
        self.backward: Backward = backward

    def needed(self) -> frozenset[str]:
        return needed_by_backward(self.backward)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        return Draw.single(straight_through(structure, scores, lengths, self.backward))
