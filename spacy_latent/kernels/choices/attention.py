"""Attention other than softmax and sparsemax.

The mappings are α-entmax, and the proximal steps of fusedmax and oscarmax. Rows are float32 or
float64, −inf if forbidden. All computations are in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.kernels.autograd.arrays import read, read_float64
from spacy_latent.kernels.autograd.families import check
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.gpu_transfers import fetch, send, send_together
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE

# Estimated nanoseconds of one number of a row, for sharing rows among threads.
ENTMAX_COST, PROXIMAL_COST = 60.0, 20.0
TOTAL_VARIATION, ORDERED = 0, 1


@kernel
def _read(scores, n, values, places):
    """Write the allowed scores of a row, and their indices; return the status and their number."""
    count, wrong = 0, 0
    for j in range(n):
        value = float(scores[j])
        wrong += 0 if value < np.inf else 1
        if value > -np.inf:
            values[count] = value
            places[count] = j
            count += 1
    if wrong:
        return NOT_FINITE, 0
    return (FEASIBLE if count or not n else INFEASIBLE), count


@kernel
def entmax_rows(start, stop, batch, alphas, result, status):
    """Write p[j] = max(0, (α − 1)·s[j] − τ)^(1/(α − 1)) with Σp = 1 (Peters et al. 2019).

    τ comes from Newton's method within a bracket that every step narrows. For α ≤ 2 the sum is
    convex in τ, and steps from the left never overshoot. Each row has its own α > 1.
    """
    scores, lengths, _ = batch
    size = scores.shape[1]
    values, places = np.empty(size), np.empty(size, dtype=np.int64)
    for r in range(start, stop):
        alpha = alphas[r]
        power = 1.0 / (alpha - 1.0)
        result[r] = 0.0
        status[r], count = _read(scores[r], lengths[r], values, places)
        if count == 0:
            continue
        top = values[0]
        for j in range(count):
            top = max(top, values[j])
        for j in range(count):
            values[j] = (alpha - 1.0) * (values[j] - top)
        low, high = -1.0, -((1.0 / count) ** (alpha - 1.0))
        threshold = low
        for _ in range(200):
            total, slope = 0.0, 0.0
            for j in range(count):
                above = values[j] - threshold
                if above > 0.0:
                    share = above**power
                    total += share
                    slope += power * share / above
            if total >= 1.0:
                low = threshold
            if total <= 1.0:
                high = threshold
            if high <= low:
                break
            step = threshold + (total - 1.0) / slope if slope > 0.0 else low
            if not low < step < high:
                step = 0.5 * (low + high)
            if step == threshold or step <= low or step >= high:
                break
            threshold = step
        total = 0.0
        for j in range(count):
            above = values[j] - threshold
            values[j] = above**power if above > 0.0 else 0.0
            total += values[j]
        for j in range(count):
            result[r, places[j]] = values[j] / total


@kernel
def _total_variation(y, count, strength, x, block):
    """Write argmin ½‖x − y‖² + strength·Σ|x[j+1] − x[j]|, and the run of equal values of each.

    The method is the taut string (Davies and Kovac 2001): the shortest path through a tube of
    radius ``strength`` around the cumulative sums of y. Its slopes are x.
    """
    run, begin, height = 0, 0, 0.0
    total_at_begin = 0.0
    while begin < count:
        steepest_low, flattest_high = -np.inf, np.inf
        at_low, at_high = begin, begin
        low_height, high_height = 0.0, 0.0
        total = total_at_begin
        end, slope, new_height = count, 0.0, 0.0
        for i in range(begin + 1, count + 1):
            total += y[i - 1]
            radius = strength if i < count else 0.0
            low = (total - radius - height) / (i - begin)
            high = (total + radius - height) / (i - begin)
            if low > flattest_high:
                end, slope, new_height = at_high, flattest_high, high_height
                break
            if high < steepest_low:
                end, slope, new_height = at_low, steepest_low, low_height
                break
            if low >= steepest_low:
                steepest_low, at_low, low_height = low, i, total - radius
            if high <= flattest_high:
                flattest_high, at_high, high_height = high, i, total + radius
            slope, new_height = low, total
        for i in range(begin, end):
            x[i] = slope
            block[i] = run
            total_at_begin += y[i]
        run += 1
        begin, height = end, new_height


@kernel
def _ordered(y, count, strength, x, block):
    """Write argmin ½‖x − y‖² + strength·Σ_{i<j} max(x[i], x[j]), and the group of each value.

    A group has equal values. The method is isotonic regression of the sorted numbers (as in Zeng
    and Figueiredo 2014 for magnitudes).
    """
    order = np.argsort(-y[:count])
    sums, sizes = np.empty(count), np.empty(count, dtype=np.int64)
    groups = 0
    for i in range(count):
        sums[groups] = y[order[i]] - strength * (count - 1 - i)
        sizes[groups] = 1
        groups += 1
        while groups > 1 and sums[groups - 2] * sizes[groups - 1] <= (
            sums[groups - 1] * sizes[groups - 2]
        ):
            sums[groups - 2] += sums[groups - 1]
            sizes[groups - 2] += sizes[groups - 1]
            groups -= 1
    i = 0
    for g in range(groups):
        mean = sums[g] / sizes[g]
        for _ in range(sizes[g]):
            j = order[i]
            x[j] = mean
            block[j] = g
            i += 1


@kernel
def proximal_rows(start, stop, batch, result, blocks, status):
    """Apply proximal steps to rows start .. stop−1.

    Forbidden numbers and padding become −inf. ``blocks`` gets the block of equal results of each
    number, −1 for these two.
    """
    scores, lengths, (kind, strength) = batch
    size = scores.shape[1]
    values, places = np.empty(size), np.empty(size, dtype=np.int64)
    moved, block = np.empty(size), np.empty(size, dtype=np.int64)
    for r in range(start, stop):
        result[r] = -np.inf
        blocks[r] = -1
        status[r], count = _read(scores[r], lengths[r], values, places)
        if kind == TOTAL_VARIATION:
            _total_variation(values, count, strength, moved, block)
        else:
            _ordered(values, count, strength, moved, block)
        for j in range(count):
            result[r, places[j]] = moved[j]
            blocks[r, places[j]] = block[j]


@kernel
def proximal_gradient_rows(start, stop, blocks, upstream, result):
    """Write the mean of the upstream gradient over each block."""
    size = blocks.shape[1]
    sums, sizes = np.empty(size), np.empty(size)
    for r in range(start, stop):
        sums[:] = 0.0
        sizes[:] = 0.0
        for j in range(size):
            b = blocks[r, j]
            if b >= 0:
                sums[b] += upstream[r, j]
                sizes[b] += 1.0
        for j in range(size):
            b = blocks[r, j]
            result[r, j] = 0.0
            if b >= 0:
                result[r, j] = sums[b] / sizes[b]


@torch_operator("entmax")
def entmax(scores: Tensor, lengths: Tensor, alphas: Tensor, name: str) -> Tensor:
    """Return α-entmax of rows ``(R, N)``.

    α > 1 is given for each row, ``(R,)``, or for all, ``()``.
    """
    array, sizes = read(scores, lengths)
    alpha = np.broadcast_to(read_float64(alphas), len(array))
    wrong = np.flatnonzero(~((alpha > 1.0) & (alpha < np.inf)))
    if len(wrong):
        raise InvalidScores(
            f"{name}.entmax: alpha is {alpha[wrong[0]]:g} for item(s) {wrong.tolist()[:10]} of the "
            "batch; expected numbers above 1. Softmax, which is alpha = 1, is marginals."
        )
    result, status = np.empty_like(array), np.zeros(len(array), dtype=np.int8)
    costs = ENTMAX_COST * (sizes + 1.0)
    spread(entmax_rows, costs, ((array, sizes, ()), alpha, result, status))
    check(name, status)
    return send(torch.from_numpy(result), scores.device)


@torch_operator("proximal")
def proximal(
    scores: Tensor, lengths: Tensor, kind: int, strength: float, name: str
) -> tuple[Tensor, Tensor]:
    """Return rows ``(R, N)`` after a proximal step, and their blocks of equal numbers."""
    array, sizes = read(scores, lengths)
    result, status = np.empty_like(array), np.zeros(len(array), dtype=np.int8)
    blocks = np.empty(array.shape, dtype=np.int32)
    costs = PROXIMAL_COST * (sizes + 1.0)
    batch = (array, sizes, (kind, strength))
    spread(proximal_rows, costs, (batch, result, blocks, status))
    check(name, status)
    made = send_together([torch.from_numpy(result), torch.from_numpy(blocks)], scores.device)
    return made[0], made[1]


@torch_operator("proximal_gradient")
def proximal_gradient(blocks: Tensor, upstream: Tensor) -> Tensor:
    """Return the upstream gradient ``(R, N)``, averaged over each block."""
    together, change = (fetch(item).contiguous().numpy() for item in (blocks, upstream))
    result = np.empty_like(change)
    costs = np.full(len(result), 3.0 * (result.shape[1] + 1.0))
    spread(proximal_gradient_rows, costs, (together, change, result))
    return send(torch.from_numpy(result), upstream.device)


@entmax.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@proximal.register_fake
def _(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    result = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return result, torch.empty_like(result, dtype=torch.int32)


@proximal_gradient.register_fake
def _(blocks: Tensor, upstream: Tensor) -> Tensor:
    return torch.empty_like(upstream, memory_format=torch.contiguous_format)


def _keep_probabilities(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[2])


def _entmax_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients for the scores and for α (Correia et al. 2019).

    With u = p^(2−α) on the support, the first is u·(g − Σug/Σu). With q = u/Σu, the second is the
    product of g with (p − q)/(α − 1)² − (p log p − q Σ p log p)/(α − 1).
    """
    output, alphas = ctx.saved_tensors
    # A single α may be on the CPU while the scores are on a GPU.
    alpha = alphas[:, None] if alphas.dim() else alphas
    inside = output > 0
    safe = torch.where(inside, output.clamp_min(1e-300), 1.0)
    u = torch.where(inside, safe.pow(2 - alpha), 0.0).to(output.dtype)
    total = u.sum(1, keepdim=True).clamp_min(1e-30)
    mean = (u * upstream).sum(1, keepdim=True) / total
    of_scores = torch.where(inside, u * (upstream - mean), 0.0)
    if not ctx.needs_input_grad[2]:
        return of_scores, None, None, None
    # In float64 like alphas, since the difference is small for α near 1.
    share, logs = (u / total).double(), (safe * safe.log()).double()
    excess = (output - share) / (alpha - 1).square()
    slope = excess - (logs - share * logs.sum(1, keepdim=True)) / (alpha - 1)
    of_alphas = (upstream * slope).sum(1 if alphas.dim() else None)
    return of_scores, None, of_alphas.to(alphas.device), None


def _keep_blocks(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _proximal_backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    (blocks,) = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return proximal_gradient(blocks, upstream), None, None, None, None
    # The mean of each block again, by operations that are twice differentiable.
    inside = blocks >= 0
    index = torch.where(inside, blocks, 0).long()
    nothing = torch.zeros_like(upstream)
    sums = nothing.scatter_add(1, index, torch.where(inside, upstream, 0.0))
    sizes = nothing.scatter_add(1, index, inside.to(upstream.dtype)).clamp_min(1.0)
    result = torch.where(inside, (sums / sizes).gather(1, index), 0.0)
    return result, None, None, None, None


entmax.register_autograd(_entmax_backward, setup_context=_keep_probabilities)
proximal.register_autograd(_proximal_backward, setup_context=_keep_blocks)
