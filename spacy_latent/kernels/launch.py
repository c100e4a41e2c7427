"""Launching of kernels.blocks with ``numba.cuda``, on the stream and the device of torch's tensors.

Imported only where there is a GPU, or its simulator. The simulator puts itself in the place of
``cuda`` in the globals of a kernel: so ``sync`` and the kernels are here, and bodies name neither.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import cuda
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from spacy_latent.kernels.blocks import Body, Maker

# Bytes of room at once: with more items than that serves, they are done in turn.
LARGEST_ROOM = 2**30

# A small batch is no mistake.
warnings.filterwarnings("ignore", message="Grid size .* under-utilization")

_device = cuda.jit(device=True)


@_device
def sync():
    cuda.syncthreads()


@cache
def best_kernel(maker: Maker) -> Any:
    body = maker(_device, sync)

    @cuda.jit
    def kernel(start, room, scores, lengths, options, best, status):
        block = cuda.blockIdx.x
        body(
            start + block,
            cuda.threadIdx.x,
            cuda.blockDim.x,
            room[block],
            scores,
            lengths,
            options,
            best,
            status,
        )

    return kernel


@cache
def total_kernel(maker: Maker) -> Any:
    body = maker(_device, sync)

    @cuda.jit
    def kernel(
        start, room, scores, lengths, options, along, operation, log_partition, result, status
    ):
        block = cuda.blockIdx.x
        body(
            start + block,
            cuda.threadIdx.x,
            cuda.blockDim.x,
            room[block],
            scores,
            lengths,
            options,
            along,
            operation,
            log_partition,
            result,
            status,
        )

    return kernel


def _view(argument: Any) -> Any:
    """The array of a tensor, without a copy; of one on the CPU under the simulator."""
    if not isinstance(argument, Tensor):
        return argument
    return cuda.as_cuda_array(argument) if argument.is_cuda else argument.numpy()


def launch(kernel: Any, threads: int, room: int, arguments: tuple[Any, ...]) -> None:
    """A block for each item. arguments: from the scores on; tensors on one device."""
    scores = arguments[0]
    at_once = max(1, min(len(scores), LARGEST_ROOM // (8 * max(room, 1))))
    workspace = torch.empty((at_once, max(room, 1)), dtype=torch.float64, device=scores.device)
    with torch.cuda.device(scores.device) if scores.is_cuda else nullcontext():
        stream: Any = torch.cuda.current_stream().cuda_stream if scores.is_cuda else 0
        if stream:
            stream = cuda.external_stream(stream)
        views = [_view(argument) for argument in (workspace, *arguments)]
        for start in range(0, len(scores), at_once):
            blocks = min(at_once, len(scores) - start)
            kernel[blocks, threads, stream](start, *views)


def _make_probe(jit: Any, sync: Any) -> Body:
    @jit
    def probe(item, thread, threads, room, scores, lengths, options, best, status):
        room[thread] = math.exp(scores[item, thread])
        sync()
        other = room[(thread + 1) % threads]
        best[item, thread] = lengths[item] + options[0] + int(other + 0.5)
        if other == -np.inf:
            status[item] = 1

    return probe


def trouble() -> str | None:
    """Why a small kernel does not give on a GPU what it should; None where it does."""
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if not cuda.is_available():
        found = " ".join(str(cuda.cuda_error() or "").split())
        return f"numba.cuda finds no GPU that it has a driver and a compiler for. {found}".strip()
    # Also where something traces first, with tensors that hold nothing.
    with _disable_current_modes():
        scores = torch.zeros((2, 32), device="cuda")
        lengths = torch.tensor([4, 5], device="cuda")
        best = torch.zeros((2, 32), dtype=torch.int32, device="cuda")
        status = torch.zeros(2, dtype=torch.int8, device="cuda")
        launch(best_kernel(_make_probe), 32, 32, (scores, lengths, (7,), best, status))
        if best.tolist() != [[12] * 32, [13] * 32] or status.tolist() != [0, 0]:
            return "a small kernel gives wrong numbers"
        return None
