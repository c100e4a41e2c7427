"""Kernels of kernels.blocks that ``numba.cuda`` compiles when they are first launched: those that
did not come compiled with the package, and all of them under numba's simulator of a GPU.

The simulator puts itself in the place of ``cuda`` in the globals of a kernel: so ``sync`` and the
kernels are here, and bodies name neither. kernels.ahead_of_time has what comes of the same kernels
when the package is made.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from numba import cuda
from torch import Tensor

from spacy_latent.kernels.blocks import Maker

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


def view(argument: Any) -> Any:
    """The array of a tensor, without a copy; of one on the CPU under the simulator."""
    if not isinstance(argument, Tensor):
        return argument
    return cuda.as_cuda_array(argument) if argument.is_cuda else argument.numpy()


def stream_of(address: int) -> Any:
    """numba's, for an address of torch's; 0, the default, is the same for both."""
    return cuda.external_stream(address) if address else address
