"""Smoothed dynamic programs (Mensch and Blondel 2018): Bellman's recursion with max_Ω for max.

max_Ω(x) = max over the simplex of p·x − γΩ(p). With Ω the negative entropy the value is γ times the
log-partition of scores / γ. With Ω = ½(‖p‖² − 1) it is neither the value of a Gibbs distribution
nor SparseMAP: each step of the recursion is sparse by itself. Both Ω are 0 for a sure choice, and
nowhere positive. So max_Ω exceeds max by at least 0 and, over K numbers, by at most γ·log K or
γ(1 − 1/K) / 2. A smoothed value exceeds the best score by at most the sum of these bounds over the
maxima on the longest path of the recursion. For a chain these are n maxima over K numbers. (Without
its −1 the quadratic max_Ω would be below max.)

A structure supports it if "smoothed" is in its ``tractable``. It then has
``smoothed_maximum(scores, lengths, maximum)``, the recursion with ``maximum`` over the last axis in
place of max. With the negative entropy, kernels of the log-partition do the same for a compiled
structure. With the quadratic Ω they do if it has a ``smoothed_family``, without operations of torch
for each step. A subclass with another recursion sets ``smoothed_family`` to None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.errors import InvalidScores, NotTractable, check_one_of, is_number
from spacy_latent.kernels.autograd.derivatives import is_transformed
from spacy_latent.kernels.autograd.tracing import INFEASIBLE, not_compiled, not_traced, refuse
from spacy_latent.structures.base import Structure
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.copies import repeat
from spacy_latent.structures.derivatives import recordable, recording
from spacy_latent.structures.relaxation import project_simplex
from spacy_latent.structures.totals import exact_potential, exact_scores

Regularizer = Literal["entropic", "quadratic"]


def smoothed_value(
    structure: Structure,
    scores: Tensor,
    lengths: Tensor,
    regularizer: Regularizer = "entropic",
    gamma: float = 1.0,
) -> Tensor:
    """Return the smoothed value of each item, ``(B,)``, in the dtype of ``scores``.

    It is differentiable twice. Its gradient is the expected structure under the random walk that
    the recursion induces. The gradient of the expected structure is the product with its Hessian
    (their algorithms 1 and 2, here by differentiating the recursion).

    Args:
        gamma: γ, larger is smoother; with γ to 0 the value tends to the score of the best
            structure.
    """
    _check("smoothed_value", structure, regularizer, gamma)
    if isinstance(structure, CompiledStructure) and (
        regularizer == "entropic" or structure.smoothed_family is not None
    ):
        prepared, lengths = structure.check(scores, lengths)
        found = structure.smoothed_by_kernels(prepared, lengths, regularizer, gamma)
        return found.to(scores.dtype)
    masked, lengths = structure.masked(scores, lengths)
    if not masked.numel():
        # A sum of no scores, which has a gradient as other values do.
        return masked.flatten(1).sum(1).to(scores.dtype)
    able: Any = structure
    # Differences of sums lose digits that shares of the maximum need.
    value: Tensor = able.smoothed_maximum(masked.double(), lengths, maximum(regularizer, gamma))
    # Halves may be too narrow for a finite value.
    value = refuse(value, value.isneginf(), INFEASIBLE, structure.name)
    return value.to(scores.dtype)


@not_compiled
def smoothed_expectation(
    structure: Structure,
    scores: Tensor,
    lengths: Tensor,
    regularizer: Regularizer = "entropic",
    gamma: float = 1.0,
) -> Tensor:
    """Return the gradient of :func:`smoothed_value`, ``(B, *parts)``, the expected structure.

    It is differentiable.
    """
    structure.check_tensors(scores, lengths)
    if is_transformed():
        # A tensor that a transform wraps cannot be made a leaf.
        def total_of(given: Tensor) -> Tensor:
            return smoothed_value(structure, given, lengths, regularizer, gamma).sum()

        found: Tensor = torch.func.grad(total_of)(scores)
        return found
    keep = scores.requires_grad and torch.is_grad_enabled()
    with recording():
        # A tensor of its own, since hooks on the caller's scores are for the gradient of the loss.
        leaf = scores.view_as(scores) if keep else recordable(scores).detach().requires_grad_()
        own, sizes = recordable(structure), recordable(lengths)
        total = smoothed_value(own, leaf, sizes, regularizer, gamma).sum()
        if not total.requires_grad:
            structure.refuse_unrecorded("smoothed_maximum", scores, lengths)
            return torch.zeros_like(scores)
        (result,) = torch.autograd.grad(total, leaf, create_graph=keep)
    if keep and not result.requires_grad:
        # It is constant, as in an empty batch. Its gradient is 0, and not missing.
        result = torch.where(torch.ones_like(result, dtype=torch.bool), result, scores)
    return result


@not_traced
def smoothed_sample(
    structure: Structure,
    scores: Tensor,
    lengths: Tensor,
    regularizer: Regularizer = "entropic",
    gamma: float = 1.0,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return exact independent samples of the random walk that the recursion induces.

    A sample is a backward pass in which each maximum gives its whole gradient to one of its
    choices, drawn by the gradient of max_Ω. So its mean is :func:`smoothed_expectation`. With
    "entropic" it is a sample of p(z) ∝ exp(z·s / γ), which ``structure.sample`` draws in less time.

    Args:
        num_samples: time and memory grow with it, as with a larger batch.
        generator: as for ``structure.sample``.

    Returns:
        ``(num_samples, B, *parts)``, 0/1, in the dtype of ``scores``, without a gradient.
    """
    _check("smoothed_sample", structure, regularizer, gamma)
    structure.check_tensors(scores, lengths)
    structure._check_draws("smoothed_sample", num_samples, generator)

    def draw(x: Tensor) -> Tensor:
        chosen: Tensor = _Drawn.apply(x, regularizer, gamma, generator)
        return chosen

    with recording():
        able: Any = recordable(structure)
        masked, sizes = able.masked(recordable(scores).detach(), recordable(lengths))
        copies = repeat(masked.double(), num_samples).requires_grad_()
        value = able.smoothed_maximum(copies, repeat(sizes, num_samples), draw)
        items = value[: len(scores)].isneginf().nonzero().flatten().tolist()
        if items:
            structure.raise_infeasible(items)
        if not value.requires_grad:
            structure.refuse_unrecorded("smoothed_maximum", scores, lengths)
            return scores.new_zeros((num_samples, *scores.shape))
        (z,) = torch.autograd.grad(value.sum(), copies)
    return z.to(scores.dtype).view(num_samples, *scores.shape)


class _Drawn(torch.autograd.Function):
    """max_Ω over the last axis whose backward gives the gradient to one choice, drawn by p."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        regularizer: Regularizer,
        gamma: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        ctx.save_for_backward(_shares(x, regularizer, gamma))
        ctx.generator = generator
        return maximum(regularizer, gamma)(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (shares,) = ctx.saved_tensors
        # The walk passes few maxima. Those without any choice are not among them.
        passed = gradient.nonzero(as_tuple=True)
        sums = shares[passed].cumsum(-1)
        uniform = torch.rand(len(sums), 1, dtype=sums.dtype, generator=ctx.generator, device="cpu")
        # A choice of probability 0 adds nothing to the sum before it, and so is never the first
        # beyond the threshold.
        place = (sums <= uniform.to(sums.device) * sums[:, -1:]).sum(-1)
        result, chosen = torch.zeros_like(shares), (*passed, place)
        result[chosen] = gradient[passed]
        return result, None, None, None


def fenchel_young_loss(
    structure: Structure,
    scores: Tensor,
    gold: Tensor,
    lengths: Tensor,
    regularizer: Regularizer = "entropic",
    gamma: float = 1.0,
) -> Tensor:
    """Return the smoothed value less the score of the ``gold`` structure, 0/1, ``(B,)``.

    It is never negative. With "entropic" and γ = 1 it is the negative log-likelihood. The gradient
    is the expected structure less the gold one (Blondel et al. 2020).
    """
    value = smoothed_value(structure, exact_scores(structure, scores), lengths, regularizer, gamma)
    return (value - exact_potential(structure, gold, scores, lengths)).to(scores.dtype)


def maximum(regularizer: Regularizer, gamma: float) -> Callable[[Tensor], Tensor]:
    """Return the function max_Ω over the last axis; it is −inf if all values are −inf."""
    return partial(_entropic if regularizer == "entropic" else _quadratic, gamma=gamma)


def _entropic(x: Tensor, gamma: float) -> Tensor:
    nothing = x.isneginf().all(-1)
    safe = torch.where(nothing[..., None], 0.0, x)
    return torch.where(nothing, -torch.inf, gamma * (safe / gamma).logsumexp(-1))


def _quadratic(x: Tensor, gamma: float) -> Tensor:
    nothing = x.isneginf().all(-1)
    top = torch.where(nothing, 0.0, x.detach().amax(-1))
    below = _below(x, top, gamma)
    p = project_simplex(below)
    value = (p * below).sum(-1) - 0.5 * (p.square().sum(-1) - 1.0)
    return torch.where(nothing, -torch.inf, top + gamma * value)


def _below(x: Tensor, top: Tensor, gamma: float) -> Tensor:
    # A score that is more than γ below the largest has no share, and no gradient.
    return ((x - top[..., None]) / gamma).clamp_min(-2.0)


def _shares(x: Tensor, regularizer: Regularizer, gamma: float) -> Tensor:
    """Return p of max_Ω over the last axis, its gradient; rows of −inf alone have no meaning."""
    if regularizer == "entropic":
        return (x / gamma).softmax(-1)
    return project_simplex(_below(x, x.amax(-1), gamma))


def _check(name: str, structure: Structure, regularizer: str, gamma: float) -> None:
    check_regularizer(name, regularizer, gamma)
    if "smoothed" not in structure.tractable:
        raise NotTractable(
            structure.name, "smoothed dynamic program", "marginals or sparsemap, if tractable"
        )


def check_regularizer(name: str, regularizer: str, gamma: float) -> None:
    """Raise an error for an unknown regularizer, or for γ that is not above 0 and finite."""
    check_one_of(name, get_args(Regularizer), error=InvalidScores, regularizer=regularizer)
    if not is_number(gamma) or not 0 < gamma < math.inf:
        raise InvalidScores(f"{name}: gamma is {gamma!r}; expected a finite number above 0.")
