"""The least and the greatest value between any two places of a sequence: O(n²) numbers, each from
the one before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor, library

from spacy_latent.kernels.pool import spread

# Nanoseconds of one number of the result, for sharing items among threads.
COST = 4.0


@njit(cache=True, nogil=True, fastmath=False)
def extremes(start, stop, values, lengths, least, greatest):
    """Items start .. stop−1. least, greatest: ``(B, n, n, K)``, 0 at padding."""
    channels = values.shape[2]
    for b in range(start, stop):
        n = lengths[b]
        least[b, n:] = 0.0
        greatest[b, n:] = 0.0
        least[b, :n, n:] = 0.0
        greatest[b, :n, n:] = 0.0
        for i in range(n):
            for k in range(channels):
                least[b, i, i, k] = values[b, i, k]
                greatest[b, i, i, k] = values[b, i, k]
            for j in range(i + 1, n):
                for k in range(channels):
                    low = min(least[b, i, j - 1, k], values[b, j, k])
                    high = max(greatest[b, i, j - 1, k], values[b, j, k])
                    least[b, i, j, k] = low
                    least[b, j, i, k] = low
                    greatest[b, i, j, k] = high
                    greatest[b, j, i, k] = high


@njit(cache=True, nogil=True, fastmath=False)
def extremes_gradient(start, stop, values, lengths, of_least, of_greatest, result):
    """Each gradient goes to the place of the extreme, the first of equal ones. result: ``(B, n,
    K)``. The places are found again: that takes less time than writing and reading them."""
    channels = values.shape[2]
    for b in range(start, stop):
        n = lengths[b]
        result[b] = 0.0
        for k in range(channels):
            for i in range(n):
                result[b, i, k] += of_least[b, i, i, k] + of_greatest[b, i, i, k]
                low, high = i, i
                for j in range(i + 1, n):
                    value = values[b, j, k]
                    if value < values[b, low, k]:
                        low = j
                    if value > values[b, high, k]:
                        high = j
                    result[b, low, k] += of_least[b, i, j, k] + of_least[b, j, i, k]
                    result[b, high, k] += of_greatest[b, i, j, k] + of_greatest[b, j, i, k]


def _costs(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return COST * values.shape[2] * (lengths + 1.0) ** 2


@library.custom_op("spacy_latent::running_extremes", mutates_args=())
def running_extremes(values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest value from place i to place j, both included, in either order.

    values: ``(B, n, K)``, float32 or float64; K sequences each. lengths: ``(B,)``. Padding is not
        read.
    RETURNS: two times ``(B, n, n, K)``; 0 at padding. The gradient of equal extremes goes to the
        first.
    """
    from spacy_latent.kernels import operators

    array, sizes = operators.read(values, lengths)
    batch, size, channels = array.shape
    least = np.empty((batch, size, size, channels), dtype=array.dtype)
    greatest = np.empty_like(least)
    spread(extremes, _costs(array, sizes), (array, sizes, least, greatest))
    to = values.device
    return torch.from_numpy(least).to(to), torch.from_numpy(greatest).to(to)


@library.custom_op("spacy_latent::running_extremes_gradient", mutates_args=())
def running_extremes_gradient(
    values: Tensor, lengths: Tensor, of_least: Tensor, of_greatest: Tensor
) -> Tensor:
    from spacy_latent.kernels import operators

    array, sizes = operators.read(values, lengths)
    low, high = (item.detach().cpu().contiguous().numpy() for item in (of_least, of_greatest))
    result = np.empty_like(array)
    spread(extremes_gradient, _costs(array, sizes), (array, sizes, low, high, result))
    return torch.from_numpy(result).to(values.device)


@running_extremes.register_fake
def _(values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    batch, size, channels = values.shape
    shape = (batch, size, size, channels)
    return values.new_empty(shape), values.new_empty(shape)


@running_extremes_gradient.register_fake
def _(values: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, of_least: Tensor, of_greatest: Tensor) -> tuple[Tensor | None, ...]:
    return running_extremes_gradient(*ctx.saved_tensors, of_least, of_greatest), None


running_extremes.register_autograd(_backward, setup_context=_keep)
