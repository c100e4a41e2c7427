"""Scores of pairs of positions by a perceptron over differences of running sums.

The hidden layers of all pairs of a batch are many times larger than a cache, and writing and
reading them would take most of the time. Pairs are therefore computed in blocks of a few thousand,
in the same memory. The gradient computes the layers again. Pairs with padding are skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.autograd.derivatives import last_derivative
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.core.pool import ranges, spread
from spacy_latent.kernels.scores.counter_rows import (
    BOUNDED,
    LIMIT,
    SEEN,
    Rows,
    Terms,
    differences,
    differences_gradient,
    outputs,
    outputs_gradient,
)

# Estimated nanoseconds of a pair for each counter and for each weight, for sharing items among
# threads.
COUNTER_COST, WEIGHT_COST = 4.0, 0.02


@dataclass
class Weights:
    """Arguments of :func:`counter_pairs` on the CPU, detached.

    They are tensors for torch's products and arrays for kernels.
    """

    values: np.ndarray
    lengths: np.ndarray
    first: Tensor
    hidden: Tensor
    terms: Terms
    inner: bool

    @classmethod
    def read(cls, *tensors: Tensor, inner: bool) -> Weights:
        """Read the arguments of :func:`counter_pairs`, in their order."""
        on_cpu = [tensor.detach().cpu().contiguous() for tensor in tensors]
        values, lengths, first, hidden, *others = on_cpu
        heads, modifiers, output = (tensor.numpy() for tensor in others)
        terms = Terms(heads, modifiers, output)
        return cls(values.numpy(), lengths.numpy(), first, hidden, terms, inner)

    def cost(self) -> float:
        """Return the estimated nanoseconds of a pair."""
        weights = self.first.numel() + self.hidden.shape[0] * self.first.shape[1]
        return COUNTER_COST * self.values.shape[2] + WEIGHT_COST * weights


class _Layers:
    """The layers of one block of pairs at a time, in reused memory."""

    def __init__(self, given: Weights, most_pairs: int) -> None:
        self.given = given
        self._seen = given.first.new_empty(given.first.shape[0], most_pairs)
        self._one = given.first.new_empty(most_pairs, given.first.shape[1])
        self._two = torch.empty_like(self._one)

    def run(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs ``(8·K + 2, pairs)`` and the two layers ``(pairs, 1 or 2, H)``.

        The terms of heads and modifiers are not yet added to the second layer.
        """
        given, pairs = self.given, int(rows.begin[-1])
        count, units = given.values.shape[2], len(given.hidden)
        seen, one, two = self._seen[:, :pairs], self._one[:pairs], self._two[:pairs]
        differences(rows, given.values, given.lengths, given.inner, seen.numpy())
        seen[BOUNDED * count : SEEN * count].square_().neg_().exp_()
        seen[: BOUNDED * count].clamp_(-LIMIT, LIMIT)
        torch.mm(seen.t(), given.first, out=one).relu_()
        torch.mm(one.view(-1, units), given.hidden, out=two.view(-1, units))
        return seen, one.view(pairs, -1, units), two.view(pairs, -1, units)


def _score(
    start: int, stop: int, given: Weights, most_pairs: int, blocks: list[Rows], scores: np.ndarray
) -> None:
    """Write the scores of blocks of at most ``most_pairs`` pairs."""
    layers = _Layers(given, most_pairs)
    for block in blocks[start:stop]:
        _, _, two = layers.run(block)
        outputs(block, given.lengths, two.numpy(), given.terms, scores)


@dataclass
class Gradients:
    """Gradients of the fields of :class:`Weights`.

    Gradients of weights have a row for each range of items. Threads thus need not wait for each
    other, and sums depend neither on their order nor on their number.
    """

    values: np.ndarray
    heads: np.ndarray
    modifiers: np.ndarray
    first: dict[int, Tensor]
    hidden: dict[int, Tensor]
    output: dict[int, Tensor]

    @classmethod
    def of(cls, given: Weights) -> Gradients:
        """Return gradients of 0, to which parts are added."""
        values, terms = np.zeros_like(given.values), given.terms
        return cls(values, np.zeros_like(terms.heads), np.zeros_like(terms.modifiers), {}, {}, {})


def _total(parts: dict[int, Tensor], like: Tensor) -> Tensor:
    total = torch.zeros_like(like, device="cpu", memory_format=torch.contiguous_format)
    for start in sorted(parts):
        total += parts[start]
    return total


def _add_gradients(
    start: int, stop: int, given: Weights, change: np.ndarray, result: Gradients
) -> None:
    """Add the gradients of the items start .. stop−1."""
    rows = Rows.of(start, stop, given.lengths)
    most_pairs, units = rows.most_pairs(), len(given.hidden)
    layers = _Layers(given, most_pairs)
    of_first, of_hidden = torch.zeros_like(given.first), torch.zeros_like(given.hidden)
    of_output = np.zeros_like(given.terms.output)
    of_terms = Terms(result.heads, result.modifiers, of_output)
    of_layer = given.first.new_empty(most_pairs, given.first.shape[1])
    of_seen = given.first.new_empty(SEEN * given.values.shape[2], most_pairs)
    for block in rows.blocks():
        seen, one, two = layers.run(block)
        outputs_gradient(block, given.lengths, two.numpy(), given.terms, change, of_terms)
        below, of_two = one.view(-1, units), two.view(-1, units)
        of_hidden.addmm_(below.t(), of_two)
        of_one, of_pairs = of_layer[: len(two)], of_seen[:, : len(two)]
        of_below = of_one.view(-1, units)
        torch.mm(of_two, given.hidden.t(), out=of_below)
        torch.ops.aten.threshold_backward.grad_input(of_below, below, 0, grad_input=of_below)
        of_first.addmm_(seen, of_one)
        torch.mm(given.first[: len(of_seen)], of_one.t(), out=of_pairs)
        options = (given.values, given.lengths, given.inner)
        differences_gradient(block, *options, seen.numpy(), of_pairs.numpy(), result.values)
    result.first[start], result.hidden[start] = of_first, of_hidden
    result.output[start] = torch.from_numpy(of_output)


@torch_operator("counter_pairs")
def _counter_pairs(
    values: Tensor,
    lengths: Tensor,
    first: Tensor,
    hidden: Tensor,
    heads: Tensor,
    modifiers: Tensor,
    output: Tensor,
    inner: bool,
) -> Tensor:
    given = Weights.read(values, lengths, first, hidden, heads, modifiers, output, inner=inner)
    batch, size, _ = given.values.shape
    scores = np.zeros((batch, size, size), dtype=given.values.dtype)
    rows = Rows.of(0, batch, given.lengths)
    # The last digits of a matrix product depend on its number of rows. So blocks are the same for
    # any number of threads.
    blocks = list(rows.blocks())
    costs = given.cost() * np.array([block.begin[-1] for block in blocks], dtype=float)
    if blocks:
        spread(_score, costs, (given, rows.most_pairs(), blocks, scores))
    return torch.from_numpy(scores).to(values.device)


@torch_operator("counter_pairs_gradient")
def _counter_pairs_gradient(
    values: Tensor,
    lengths: Tensor,
    first: Tensor,
    hidden: Tensor,
    heads: Tensor,
    modifiers: Tensor,
    output: Tensor,
    inner: bool,
    change: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of all arguments except the lengths, in order."""
    given = Weights.read(values, lengths, first, hidden, heads, modifiers, output, inner=inner)
    result = Gradients.of(given)
    along = change.detach().cpu().contiguous().numpy()
    # Late in training, most items have certain structures, and gradients of exactly 0.
    given = replace(given, lengths=np.where(along.any((1, 2)), given.lengths, 0))
    costs = 3 * (0.5 * given.lengths * (given.lengths - 1.0) * given.cost())
    parts = ranges(costs)

    def add_gradients(first: int, last: int) -> None:
        for start, stop in parts[first:last]:
            _add_gradients(start, stop, given, along, result)

    spread(add_gradients, np.array([costs[start:stop].sum() for start, stop in parts]), ())
    to = values.device
    return (
        torch.from_numpy(result.values).to(to),
        _total(result.first, first).to(to),
        _total(result.hidden, hidden).to(to),
        torch.from_numpy(result.heads).to(to),
        torch.from_numpy(result.modifiers).to(to),
        _total(result.output, output).to(to),
    )


@_counter_pairs.register_fake
def _(values: Tensor, *_: Any) -> Tensor:
    batch, size, _count = values.shape
    return values.new_empty((batch, size, size))


@_counter_pairs_gradient.register_fake
def _(values: Tensor, lengths: Tensor, *others: Any) -> tuple[Tensor, ...]:
    inputs = (values, *others[:-2])
    return tuple(torch.empty_like(item, memory_format=torch.contiguous_format) for item in inputs)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.inner = inputs
    ctx.save_for_backward(*tensors)


@last_derivative("scores of pairs of counters can be differentiated once")
def _backward(ctx: Any, change: Tensor) -> tuple[Tensor | None, ...]:
    given = (*ctx.saved_tensors, ctx.inner, change)
    of_values, *others = _counter_pairs_gradient(*given)
    return of_values, None, *others, None


_counter_pairs.register_autograd(_backward, setup_context=_keep)


def counter_pairs(
    values: Tensor,
    lengths: Tensor,
    first: Tensor,
    hidden: Tensor,
    heads: Tensor,
    modifiers: Tensor,
    output: Tensor,
    inner: bool = False,
) -> Tensor:
    """Return the scores of pairs by the perceptron, ``(B, n, n)``, [h, m].

    A score is outputᵀ relu(hiddenᵀ relu(firstᵀ x) + heads[h] + modifiers[m]), or 0 for padding and
    for h = m. On a GPU it is computed by torch's operations, in O(B·n²·H) memory.

    For positions i < j, the input x holds for each of the K counters: v_j − v_i; the minimum of v_i
    … v_{j−1} less v_i, and less v_j; and the same for the maximum. All of these are clipped to −1 …
    1. Then follow exp(−d²), exp(−4(d − 1)²) and exp(−4(d + 1)²) for d = v_j − v_i, and at the end
    exp(i − j) and 1.

    Args:
        values: ``(B, n, K)``, the counters v, float32 or float64 like all others.
        lengths: ``(B,)`` int64; padding is not read.
        first: ``(8·K + 2, H)`` for h = i and m = j alone; with H more columns also for h = j and m
            = i.
        hidden: ``(H, H)``.
        heads, modifiers: ``(B, n, H)``.
        output: ``(H,)``.
        inner: whether extremes leave out v_i. Over an empty range they count as 1 and −1.
    """
    score = pairs_by_tensors if values.is_cuda else _counter_pairs
    return score(values, lengths, first, hidden, heads, modifiers, output, inner)


def pairs_by_tensors(
    values: Tensor,
    lengths: Tensor,
    first: Tensor,
    hidden: Tensor,
    heads: Tensor,
    modifiers: Tensor,
    output: Tensor,
    inner: bool = False,
) -> Tensor:
    """Return the scores of :func:`counter_pairs` for all pairs at once, on any device."""
    batch, size, _ = values.shape
    place = torch.arange(size, device=values.device)
    padding = place >= lengths[:, None].to(values.device)
    values, heads, modifiers = (
        item.masked_fill(padding[..., None], 0.0) for item in (values, heads, modifiers)
    )
    i, j = torch.triu_indices(size, size, 1, device=values.device)
    skipped = place[None, :] < place[:, None] + int(inner)
    all_between = values[:, None].expand(-1, size, -1, -1)
    least = all_between.masked_fill(skipped[..., None], math.inf).cummin(2).values[:, i, j - 1]
    greatest = all_between.masked_fill(skipped[..., None], -math.inf).cummax(2).values[:, i, j - 1]
    own, other = values[:, i], values[:, j]
    ends = [other - own, least - own, least - other, greatest - own, greatest - other]
    near = torch.exp((i - j).to(values.dtype))
    position = torch.stack([near, torch.ones_like(near)], -1).expand(batch, -1, -1)
    steps = torch.cat([other - own, 2 * (other - own - 1), 2 * (other - own + 1)], -1)
    seen = [torch.cat(ends, -1).clamp(-LIMIT, LIMIT), torch.exp(-(steps**2)), position]
    layer = torch.relu(torch.cat(seen, -1) @ first).unflatten(-1, (-1, len(hidden))) @ hidden
    scores = values.new_zeros(batch, size, size)
    for order, (h, m) in enumerate(((i, j), (j, i))[: layer.shape[2]]):
        units = torch.relu(layer[:, :, order] + heads[:, h] + modifiers[:, m])
        scores[:, h, m] = (units @ output).to(scores.dtype)
    return scores.masked_fill(padding[:, :, None] | padding[:, None, :], 0.0)
