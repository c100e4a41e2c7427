"""Hard dependency trees composed by a gated recursive cell: heads take modifiers one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.errors import LatentError
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width
from spacy_latent.layers.gated_recursive_tree import GatedRecursiveTree
from spacy_latent.layers.shared_structures import SharedMerges, share_merges


class GatedRecursiveHeads(Composer):
    """The vector of a token over all that hangs on it, by the cell of :class:`GatedRecursiveTree`.

    A token begins with its own state. It takes the modifiers on its right, from the nearest on,
    each with all that hangs on that: the cell of (own state, modifier's); then those on its left,
    the cell of (modifier's, own state). So a sum over modifiers is the last sum and one modifier
    more, and is learned where a function of all of them at once is not.

    An arc that is there gets a gradient where z has one, one that is not there does not. Else what
    several trees of an item have in common is composed once.

    hidden_width: of the cell's hidden layer; None for four times the output's.
    """

    parts = "arcs"
    requires_hard = True

    def __init__(
        self, width: int, output_width: int | None, hidden_width: int | None = None
    ) -> None:
        super().__init__()
        self.cell = GatedRecursiveTree(width, output_width, hidden_width)
        self.output_width = self.cell.output_width

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        return self.compose_range(vectors, z, lengths, None)

    def compose_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        shared = share_merges(z, lengths if item is None else lengths[item], len(vectors), item)
        leaves = self.cell.leaves(vectors)[0].flatten(0, 1)
        weights = None
        if z.requires_grad:
            weights = z[shared.arcs.unbind(1)].to(leaves)[:, None]
        leaf = set(self.cell.leaf.parameters())
        parameters = [parameter for parameter in self.cell.parameters() if parameter not in leaf]
        states = _Recursion.apply(self._merged, shared, leaves, weights, *parameters)
        return states.index_select(0, shared.result.flatten()).unflatten(0, shared.result.shape)

    def _merged(self, left: Tensor, right: Tensor) -> Tensor:
        return self.cell.merge((left, left[:, :0]), (right, right[:, :0]))[0]

    def _cost(self, vectors: Tensor, z: Tensor) -> float:
        weights = sum(parameter.numel() for parameter in self.cell.parameters())
        return len(z) * vectors.shape[1] * weights / 20 if vectors.device.type == "cpu" else 0.0


class _Recursion(torch.autograd.Function):
    """States of all rows, ``(leaves + merges, d)``, round by round in one piece of memory; the
    gradient computes each round again, so that nothing but the states is kept.

    weights: ``(M, 1)``, 1 in value, how much of its head's state a merge replaces; or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        merge: Callable[[Tensor, Tensor], Tensor],
        shared: SharedMerges,
        leaves: Tensor,
        weights: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        count = len(leaves)
        states = leaves.new_empty(count + len(shared.left), leaves.shape[1])
        states[:count] = leaves
        for begin, end in shared.rounds():
            left, right = (states[rows[begin:end]] for rows in (shared.left, shared.right))
            states[count + begin : count + end] = merge(left, right)
        ctx.merge, ctx.shared, ctx.count = merge, shared, count
        ctx.weighs = weights is not None
        ctx.save_for_backward(states, *parameters)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        states, *parameters = ctx.saved_tensors
        shared, count = ctx.shared, ctx.count
        of_states = gradient.clone()
        # The others are frozen.
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        totals = [torch.zeros_like(parameter) for parameter in learned]
        of_weights = gradient.new_zeros(len(shared.left), 1) if ctx.weighs else None
        for begin, end in reversed([*shared.rounds()]):
            left, right = shared.left[begin:end], shared.right[begin:end]
            halves = [states[rows].requires_grad_() for rows in (left, right)]
            given = of_states[count + begin : count + end]
            with torch.enable_grad():
                made = ctx.merge(*halves)
            slopes = torch.autograd.grad(made, [*halves, *learned], given, allow_unused=True)
            for rows, slope in zip((left, right), slopes):
                of_states.index_add_(0, rows, slope)
            for total, slope in zip(totals, slopes[2:]):
                if slope is not None:
                    total += slope
            if of_weights is not None:
                first, last = halves
                before = torch.where(shared.on_right[begin:end, None], first, last)
                change = given * (made - before).detach()
                of_weights[begin:end] = change.sum(1, keepdim=True)
        rest = iter(totals)
        of_parameters = [next(rest) if one.requires_grad else None for one in parameters]
        return None, None, of_states[:count], of_weights, *of_parameters


def build_gated_recursive_heads_v1(
    output_width: int | None = None, hidden_width: int | None = None
) -> ComposerBuilder:
    """output_width: None keeps the input's width. hidden_width: see
    :class:`GatedRecursiveHeads`."""
    check_output_width("GatedRecursiveHeads", output_width)
    if hidden_width is not None and hidden_width < 1:
        raise LatentError(
            f"GatedRecursiveHeads: hidden_width is {hidden_width}; expected at least 1, or null "
            "for four times the output's."
        )
    return partial(GatedRecursiveHeads, output_width=output_width, hidden_width=hidden_width)
