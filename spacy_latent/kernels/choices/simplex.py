"""Projections of rows onto the simplex and onto the capped simplex."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.autograd.arrays import read
from spacy_latent.kernels.autograd.families import check
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE

# Estimated nanoseconds of one number of a row, for sharing rows among threads.
COST = 3.0


@kernel(fastmath=ANY_ORDER)
def _above(row, n, threshold):
    """Return how many numbers lie above the threshold, and their sum."""
    count, total = 0.0, 0.0
    for j in range(n):
        inside = row[j] > threshold
        count += 1.0 if inside else 0.0
        total += row[j] if inside else 0.0
    return count, total


@kernel
def sparsemax_threshold(row, n):
    """Return the sparsemax threshold of ``n`` numbers whose largest is 0 (Michelot 1986).

    The excesses over the threshold sum to 1. Each step drops the numbers below the threshold of the
    remaining numbers, until there are none.
    """
    # A number more than 1 below the largest has probability 0.
    threshold = -1.0
    known = n + 1.0
    while True:
        count, total = _above(row, n, threshold)
        # By rounding, a number equal to the threshold may be on either side of it.
        if count >= known:
            return threshold
        known = count
        threshold = (total - 1.0) / count


@kernel
def sparsemax_rows(start, stop, batch, result, status):
    """Project rows start .. stop−1 of ``scores`` ``(R, N)`` onto the simplex of their length.

    Padding becomes 0.
    """
    scores, lengths, _ = batch
    row = np.empty(scores.shape[1])
    for r in range(start, stop):
        n = lengths[r]
        result[r, n:] = 0.0
        status[r] = FEASIBLE
        top, wrong = -np.inf, 0
        for j in range(n):
            value = float(scores[r, j])
            row[j] = value
            wrong += 0 if value < np.inf else 1
            top = value if value > top else top
        if wrong:
            status[r] = NOT_FINITE
            continue
        if n == 0:
            continue
        if top == -np.inf:
            status[r] = INFEASIBLE
            continue
        # Relative to the largest number, so that no digits are lost and no sum overflows.
        for j in range(n):
            row[j] -= top
        threshold = sparsemax_threshold(row, n)
        for j in range(n):
            result[r, j] = max(row[j] - threshold, 0.0)


@kernel(fastmath=ANY_ORDER)
def sparsemax_gradient_rows(start, stop, output, upstream, result):
    """Write 1_S(g − mean of g over S), S the support of the output."""
    n = output.shape[1]
    for r in range(start, stop):
        count, total = 0.0, 0.0
        for j in range(n):
            inside = output[r, j] > 0.0
            count += 1.0 if inside else 0.0
            total += float(upstream[r, j]) if inside else 0.0
        mean = total / max(count, 1.0)
        for j in range(n):
            result[r, j] = upstream[r, j] - mean if output[r, j] > 0.0 else 0.0


@kernel
def capped_simplex_rows(start, stop, batch, result, status):
    """Project rows onto {0 ≤ p ≤ 1, Σp = k} if ``exactly``, else onto {0 ≤ p ≤ 1, Σp ≤ k}.

    k is the smaller of ``largest`` and the length. With fewer than k allowed (not −inf) scores, the
    row is INFEASIBLE if ``exactly``, else k is their number. Σ clip(s − τ, 0, 1) falls with τ, and
    is linear between the numbers s and s − 1. Bisection finds the two of them around τ.
    """
    scores, lengths, (largest, exactly) = batch
    breaks = np.empty(2 * scores.shape[1])
    for r in range(start, stop):
        n = lengths[r]
        result[r, n:] = 0.0
        status[r] = FEASIBLE
        allowed, wrong, most = 0, 0, 0.0
        for j in range(n):
            value = float(scores[r, j])
            wrong += 0 if value < np.inf else 1
            if value > -np.inf:
                breaks[2 * allowed] = value
                breaks[2 * allowed + 1] = value - 1.0
                allowed += 1
                most += min(max(value, 0.0), 1.0)
        if wrong:
            status[r] = NOT_FINITE
            continue
        k = min(largest, n)
        if exactly and allowed < k:
            status[r] = INFEASIBLE
            continue
        if not exactly:
            k = min(k, allowed)
        threshold = 0.0
        if allowed == k and exactly:
            threshold = -np.inf
        elif exactly or most > k:
            own = np.sort(breaks[: 2 * allowed])
            # The last breakpoint at which the sum is still at least k.
            low, high = 0, 2 * allowed - 1
            while low < high:
                middle = (low + high + 1) // 2
                total = 0.0
                for i in range(n):
                    total += min(max(float(scores[r, i]) - own[middle], 0.0), 1.0)
                if total >= k:
                    low = middle
                else:
                    high = middle - 1
            threshold = own[low]
            total, free = 0.0, 0.0
            for i in range(n):
                value = float(scores[r, i])
                total += min(max(value - threshold, 0.0), 1.0)
                # Compare value − 1 with the threshold, as the breakpoint was computed: value −
                # threshold may round to above 1.
                free += 1.0 if value > threshold and value - 1.0 <= threshold else 0.0
            if free > 0.0:
                threshold += (total - k) / free
        for j in range(n):
            value = float(scores[r, j])
            result[r, j] = min(max(value - threshold, 0.0), 1.0) if value > -np.inf else 0.0


def _project(
    kernel: Any, scores: Tensor, lengths: Tensor, options: tuple[Any, ...], name: str
) -> Tensor:
    array, sizes = read(scores, lengths)
    result, status = np.empty_like(array), np.zeros(len(array), dtype=np.int8)
    spread(kernel, COST * (sizes + 1.0), ((array, sizes, options), result, status))
    check(name, status)
    return send(torch.from_numpy(result), scores.device)


@torch_operator("sparsemax")
def sparsemax(scores: Tensor, lengths: Tensor, name: str) -> Tensor:
    """Return the projections of rows ``(R, N)`` onto the simplex."""
    return _project(sparsemax_rows, scores, lengths, (), name)


@torch_operator("sparsemax_gradient")
def sparsemax_gradient(output: Tensor, upstream: Tensor) -> Tensor:
    """Return the gradient for the scores ``(R, N)``, from the output of sparsemax."""
    array, change = read(output, upstream)
    result = np.empty_like(array)
    costs = np.full(len(array), COST * (array.shape[1] + 1.0))
    spread(sparsemax_gradient_rows, costs, (array, change, result))
    return send(torch.from_numpy(result), output.device)


@torch_operator("capped_simplex")
def capped_simplex(scores: Tensor, lengths: Tensor, k: int, exactly: bool, name: str) -> Tensor:
    """Return the projections of rows ``(R, N)`` onto the capped simplex."""
    return _project(capped_simplex_rows, scores, lengths, (k, exactly), name)


@sparsemax.register_fake
@capped_simplex.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@sparsemax_gradient.register_fake
def _(output: Tensor, upstream: Tensor) -> Tensor:
    return torch.empty_like(output, memory_format=torch.contiguous_format)


def _keep_output(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.options = inputs[2:]


def _sparsemax_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (output,) = ctx.saved_tensors
    if torch.is_grad_enabled():
        # The same gradient by operations that are twice differentiable.
        return _centred(upstream, (output > 0).to(upstream.dtype)), None, None
    return sparsemax_gradient(output, upstream), None, None


def _capped_simplex_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradient of a projection on the capped simplex.

    It is g on the parts strictly between 0 and 1, less its mean there if the sum is at its bound.
    """
    (output,) = ctx.saved_tensors
    k, exactly, _ = ctx.options
    free = ((output > 0) & (output < 1)).to(upstream.dtype)
    total = output.sum(1, keepdim=True)
    bound = torch.ones_like(total, dtype=torch.bool) if exactly else total >= k * (1 - 1e-6)
    return torch.where(bound, _centred(upstream, free), upstream * free), None, None, None, None


def _centred(upstream: Tensor, free: Tensor) -> Tensor:
    """Return the numbers of each row where ``free`` is 1 less their mean, and 0 elsewhere."""
    masked = upstream * free
    mean = masked.sum(1, keepdim=True) / free.sum(1, keepdim=True).clamp_min(1.0)
    return masked - mean * free


sparsemax.register_autograd(_sparsemax_backward, setup_context=_keep_output)
capped_simplex.register_autograd(_capped_simplex_backward, setup_context=_keep_output)
