"""Launching of kernels.blocks, on the stream and the device of torch's tensors.

Kernels that come compiled with the package are launched through CuPy, see kernels.ahead_of_time;
others are compiled by numba-cuda, see kernels.just_in_time. Imported only where there is a GPU, or
its simulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numba
import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from spacy_latent.kernels import ahead_of_time
from spacy_latent.kernels.blocks import Body, Maker

# Bytes of room at once: with more items than that serves, they are done in turn.
LARGEST_ROOM = 2**30
# Its names are made when it is imported.
_config: Any = numba.config


def best_kernel(maker: Maker) -> Any:
    """Of ``Blocks.best``."""
    compiled = ahead_of_time.find(maker)
    if compiled is not None:
        return compiled
    from spacy_latent.kernels import just_in_time

    return just_in_time.best_kernel(maker)


def total_kernel(maker: Maker) -> Any:
    """Of ``Blocks.total``."""
    compiled = ahead_of_time.find(maker)
    if compiled is not None:
        return compiled
    from spacy_latent.kernels import just_in_time

    return just_in_time.total_kernel(maker)


def launch(kernel: Any, threads: int, room: int, arguments: tuple[Any, ...]) -> None:
    """A block for each item. arguments: from the scores on; tensors on one device."""
    scores = arguments[0]
    at_once = max(1, min(len(scores), LARGEST_ROOM // (8 * max(room, 1))))
    workspace = torch.empty((at_once, max(room, 1)), dtype=torch.float64, device=scores.device)
    with torch.cuda.device(scores.device) if scores.is_cuda else nullcontext():
        stream: Any = torch.cuda.current_stream().cuda_stream if scores.is_cuda else 0
        given: Sequence[Any] = (workspace, *arguments)
        if not isinstance(kernel, ahead_of_time.Compiled):
            from spacy_latent.kernels import just_in_time

            stream = just_in_time.stream_of(stream)
            given = [just_in_time.view(argument) for argument in given]
        for start in range(0, len(scores), at_once):
            blocks = min(at_once, len(scores) - start)
            kernel[blocks, threads, stream](start, *given)


def make_probe(jit: Any, sync: Any) -> Body:
    @jit
    def probe(item, thread, threads, room, scores, lengths, options, best, status):
        room[thread] = scores[item, thread]
        sync()
        other = math.exp(room[(thread + 1) % threads])
        best[item, thread] = lengths[item] + options[0] + int(other + 0.5)
        if other == -np.inf:
            status[item] = 1

    return probe


def trouble() -> str | None:
    """Why a small kernel does not give on a GPU what it should; None where it does. Raises the
    error of a launch that fails."""
    if _config.DISABLE_CUDA:
        return "NUMBA_DISABLE_CUDA is set"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    # Also where something traces first, with tensors that hold nothing.
    with _disable_current_modes():
        scores = torch.zeros((2, 32), device="cuda")
        lengths = torch.tensor([4, 5], device="cuda")
        best = torch.zeros((2, 32), dtype=torch.int32, device="cuda")
        status = torch.zeros(2, dtype=torch.int8, device="cuda")
        launch(best_kernel(make_probe), 32, 32, (scores, lengths, (7,), best, status))
        if best.tolist() != [[12] * 32, [13] * 32] or status.tolist() != [0, 0]:
            return "a small kernel gives wrong numbers"
        return None
