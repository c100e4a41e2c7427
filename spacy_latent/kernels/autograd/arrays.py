"""Tensors as arrays for kernels, and results as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import fetch, send


def empty(shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """Return an uninitialised tensor on the CPU, aligned to whole vectors."""
    # torch aligns the memory to whole vectors.
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def read(scores: Tensor, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return contiguous arrays on the CPU, copied only if needed."""
    return fetch(scores).contiguous().numpy(), fetch(lengths).contiguous().numpy()


def read_float64(values: Tensor) -> np.ndarray:
    """Return a contiguous float64 array on the CPU.

    NumPy converts it, since torch's threads would go on spinning on the core of the next kernel.
    """
    return np.ascontiguousarray(fetch(values).numpy(), dtype=np.float64)


def like(array: np.ndarray, values: Tensor) -> Tensor:
    """Return a tensor with the dtype and the device of ``values``.

    NumPy converts it, see :func:`read_float64`.
    """
    return send(in_precision_of(array, values), values.device)


def in_precision_of(array: np.ndarray, values: Tensor) -> Tensor:
    """Return a CPU tensor with the dtype of ``values`` (see :func:`like`)."""
    return torch.from_numpy(array.astype(_dtype_of_numpy(values.dtype), copy=False))


@cache
def _dtype_of_numpy(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
