"""Layers with a backward pass of their own raise an error for second derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import NotDifferentiable
from spacy_latent.kernels.autograd.derivatives import last_derivative
from spacy_latent.layers.gated_recursive_heads import build_gated_recursive_heads_v1
from spacy_latent.layers.parallel import call_in_parallel
from spacy_latent.structures.projective_tree import ProjectiveTree


def test_of_what_is_composed_in_ranges() -> None:
    weight = torch.ones(3, requires_grad=True)
    inputs = [(torch.full((3,), float(part), requires_grad=True),) for part in (1, 2)]
    made = call_in_parallel(lambda given: given.square() * weight, inputs, [weight])
    (gradient,) = torch.autograd.grad(torch.cat(made).sum(), weight, create_graph=True)
    torch.testing.assert_close(gradient, torch.full((3,), 5.0))
    with pytest.raises(NotDifferentiable, match="ranges"):
        gradient.sum().backward()


def test_of_trees_composed_round_by_round() -> None:
    torch.manual_seed(0)
    vectors, lengths = torch.randn(1, 4, 6, requires_grad=True), torch.tensor([4])
    composer = build_gated_recursive_heads_v1()(6)
    z = ProjectiveTree(single_root=True).map(torch.randn(1, 5, 5), lengths)
    total = composer(vectors, z, lengths).square().sum()
    (gradient,) = torch.autograd.grad(total, vectors, create_graph=True)
    with pytest.raises(NotDifferentiable, match="once"):
        gradient.square().sum().backward()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return 2 * values

    @staticmethod
    @last_derivative("the double can be differentiated once")
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor]:
        return (2 * gradient,)


def test_a_gradient_that_was_recorded_may_be_written_to() -> None:
    values = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(Twice.apply(values).sum(), values, create_graph=True)
    gradient.mul_(3.0)
    assert torch.equal(gradient.detach(), torch.full((2,), 6.0))
    with pytest.raises(NotDifferentiable, match="detach"):
        gradient.sum().backward()
