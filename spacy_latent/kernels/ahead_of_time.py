"""Kernels of kernels.blocks that come compiled with the package, launched through CuPy.

``ptx/`` has a file for each kernel and each dtype of scores: code for no processor in particular,
which the driver of a GPU turns into its own when it first loads it, and keeps. So whoever trains
needs neither numba-cuda nor a compiler. ``ptx/manifest.json`` says of each what arguments it was
compiled for, from which sources, and what it takes of a GPU. Both are made from the kernels of
kernels.just_in_time by ``python -m tests.compile_gpu_kernels``; a test compares the sources.

What numba compiles takes its arguments apart, see :func:`pack`. tests/device runs the code on a CPU
with what is packed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.blocks import Maker

FOLDER = Path(__file__).with_name("ptx")
MANIFEST = FOLDER / "manifest.json"
_SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}


def name_of(maker: Maker, dtype: torch.dtype) -> str:
    """Of a file, and of the kernel in it."""
    return f"{maker.__name__.removeprefix('make_')}_{_SUFFIXES[dtype]}"


def place_of(maker: Maker) -> str:
    return f"{maker.__module__}:{maker.__qualname__}"


@cache
def manifest() -> dict[str, Any]:
    """What is known of each kernel, by its name; nothing where the package came without them."""
    if not MANIFEST.is_file():
        return {}
    kernels: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf8"))["kernels"]
    return kernels


def find(maker: Maker) -> Compiled | None:
    """The kernel of a maker; None where it did not come with the package, or CuPy is missing."""
    known = manifest().get(name_of(maker, torch.float32))
    if known is None or known["maker"] != place_of(maker):
        return None
    try:
        import cupy  # noqa: F401
    except ImportError:
        return None
    return Compiled(maker)


def signature(arguments: Sequence[Any]) -> list[str]:
    """Types of arguments: "int64", "int64 x 3" for three in a tuple, "float32[2]" for a tensor of
    two axes."""
    found = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(f"{str(argument.dtype).removeprefix('torch.')}[{argument.dim()}]")
        elif isinstance(argument, tuple):
            found.append(f"int64 x {len(argument)}")
        else:
            found.append("int64")
    return found


def pack(arguments: Sequence[Any]) -> tuple[np.generic, ...]:
    """Arguments as numba's compiled kernels take them, each a number of eight bytes: integers, also
    those of a tuple, one by one; of an array two owners, which are none, the count of its elements,
    the bytes of one, its address, its shape, and its strides in bytes.

    The tensors must be contiguous, and live until the kernel has run.
    """
    packed: list[np.generic] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            if not argument.is_contiguous():
                raise ValueError(
                    f"A kernel was given a tensor of shape {tuple(argument.shape)} that is not "
                    "contiguous: pass a contiguous copy."
                )
            width = argument.element_size()
            packed += [np.uint64(0), np.uint64(0), np.int64(argument.numel()), np.int64(width)]
            packed.append(np.uint64(argument.data_ptr()))
            packed += [np.int64(size) for size in argument.shape]
            packed += [np.int64(width * step) for step in argument.stride()]
        elif isinstance(argument, tuple):
            packed += [np.int64(value) for value in argument]
        else:
            packed.append(np.int64(argument))
    return tuple(packed)


class Compiled:
    """The kernel of a maker, launched as those of ``numba.cuda`` are: ``kernel[blocks, threads,
    stream](start, room, scores, ...)``, with the address of a stream and with tensors.

    Raises TypeError for arguments of other types than those it was compiled for: it would read and
    write where they are not.
    """

    def __init__(self, maker: Maker) -> None:
        self.maker = maker

    def __getitem__(self, configuration: tuple[int, int, int]) -> Callable[..., None]:
        return partial(self._launch, *configuration)

    def _launch(self, blocks: int, threads: int, stream: int, *arguments: Any) -> None:
        import cupy

        scores = arguments[2]
        name = name_of(self.maker, scores.dtype)
        given, expected = signature(arguments), manifest()[name]["arguments"]
        if given != expected:
            raise TypeError(
                f"{name} was compiled for {', '.join(expected)}; it was given {', '.join(given)}. "
                "Compile it anew: python -m tests.compile_gpu_kernels."
            )
        # The index of a tensor on the CPU is None: then it is CuPy's current device.
        with cupy.cuda.Device(scores.device.index), cupy.cuda.ExternalStream(stream):
            _function(name)((blocks,), (threads,), pack(arguments))


@cache
def _function(name: str) -> Any:
    """CuPy loads it on each device where it is first called."""
    import cupy

    return cupy.RawModule(path=str(FOLDER / f"{name}.ptx")).get_function(name)
