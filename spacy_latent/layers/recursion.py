"""States of trees whose nodes are composed of two halves, computed round by round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spacy_latent.kernels.autograd.derivatives import last_derivative
from spacy_latent.layers.shared_structures import Merges


class Recursion(torch.autograd.Function):
    """States of all rows, ``(leaves + merges, d)``, computed round by round in one tensor.

    The gradient computes each round again, under the same autocast, so only the states are kept.

    Args:
        merge: composes states of two halves, ``(m, d)`` each.
        weights: ``(M, 1)``, z of the arc of each merge of a head and a modifier, which is 1. Its
            gradient is for the change from the head's state to the merged state. None for merges
            without arcs, or if arcs need no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        merge: Callable[[Tensor, Tensor], Tensor],
        shared: Merges,
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
        kind = leaves.device.type
        dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        # Disable the cache, whose weights in half precision may belong to a graph that was freed.
        ctx.autocast = torch.autocast(kind, dtype, enabled, cache_enabled=False)
        ctx.save_for_backward(states, *parameters)
        return states

    @staticmethod
    @last_derivative("states that are composed of each other can be differentiated once")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        states, *parameters = ctx.saved_tensors
        shared, count = ctx.shared, ctx.count
        of_states = gradient.clone()
        # The other parameters are frozen.
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        totals = [torch.zeros_like(parameter) for parameter in learned]
        of_weights = gradient.new_zeros(len(shared.left), 1) if ctx.weighs else None
        for begin, end in reversed([*shared.rounds()]):
            left, right = shared.left[begin:end], shared.right[begin:end]
            halves = [states[rows].requires_grad_() for rows in (left, right)]
            given = of_states[count + begin : count + end]
            with ctx.autocast, torch.enable_grad():
                made = ctx.merge(*halves).to(states.dtype)
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
