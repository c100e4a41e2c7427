"""A GPU for the kernels that come compiled with the package: a CuPy that is not there, whose
functions run their PTX on the CPU and find fault with it, see tests.device.ptx_to_c."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from spacy_latent.kernels import ahead_of_time
from tests.device.ptx_to_c import FAULTS, Translated, translate

# None on Windows, where the libraries of some are not safe to leave by a jump.
COMPILER = None if sys.platform == "win32" else shutil.which("cc") or shutil.which("gcc")
# Accesses to memory: more than a launch of the tests has by far.
MOST_STEPS = 2**31


class Fault(AssertionError):
    """What a real GPU would have done wrong, or not always done right."""


class Array(NamedTuple):
    """As it arrived at a kernel."""

    address: int
    width: int
    shape: tuple[int, ...]


class Launch(NamedTuple):
    """What CuPy was asked for."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    stream: int
    device: int | None


class Emulator:
    """Runs kernels. folder: for what is compiled. without: the barrier at which no thread of the
    kernel ``only`` waits, 1 for the first; 0 for none. launches: all so far. waits: how often
    threads waited in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.without = 0
        self.only = ""
        self.launches: list[Launch] = []
        self.waits = 0
        self._kernels: dict[Path, tuple[Translated, ctypes.CDLL]] = {}

    def load(self, path: Path) -> tuple[Translated, ctypes.CDLL]:
        if path not in self._kernels:
            made = translate(path.read_text(encoding="utf8"))
            source = self.folder / f"{path.stem}.c"
            source.write_text(made.code, encoding="utf8")
            library = source.with_suffix(".so")
            assert COMPILER is not None
            # Nothing is to be fused that the kernel does one by one.
            flags = ["-O0", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC"]
            command = [COMPILER, *flags, str(source), "-o", str(library), "-lm"]
            subprocess.run(command, check=True, timeout=300)
            self._kernels[path] = made, ctypes.CDLL(str(library))
        return self._kernels[path]

    def barriers(self, path: Path) -> int:
        return self.load(path)[0].barriers

    def run(self, path: Path, launch: Launch) -> None:
        """Raises Fault for the first that is found."""
        self.launches.append(launch)
        made, library = self.load(path)
        assert launch.name == made.name
        for value in launch.arguments:
            # CuPy passes scalars of NumPy as they are; Python's own it would convert.
            assert isinstance(value, np.generic) and value.dtype.kind in "iu" and value.nbytes == 8
        numbers = [int(value) for value in launch.arguments]
        assert len(numbers) == made.parameters
        arrays = _unpack(numbers, ahead_of_time.manifest()[launch.name]["arguments"])
        (blocks,), (threads,) = launch.grid, launch.block
        described = [
            number
            for index, array in enumerate(arrays)
            for number in (
                array.address,
                prod(array.shape) * array.width,
                prod(array.shape[1:]) * array.width,
                array.width,
                # Of the workspace.
                int(index == 0),
            )
        ]
        report = (ctypes.c_int64 * 6)()
        library.run(
            _unsigned(numbers),
            ctypes.c_int(blocks),
            ctypes.c_int(threads),
            ctypes.c_uint64(len(self.launches)),
            ctypes.c_int(self.without if launch.name == self.only else 0),
            ctypes.c_int64(MOST_STEPS),
            ctypes.c_int(len(arrays)),
            _unsigned(described),
            report,
        )
        self.waits += report[5]
        if report[0]:
            raise Fault(
                f"{FAULTS[report[0]]} in {launch.name}: array {report[1]}, element {report[2]}, "
                f"threads {report[3]} and {report[4]}, after {report[5]} barriers"
            )


def _unsigned(numbers: Sequence[int]) -> Any:
    return (ctypes.c_uint64 * len(numbers))(*(number % 2**64 for number in numbers))


def _unpack(numbers: Sequence[int], signature: Sequence[str]) -> list[Array]:
    """The arrays among arguments, by the types that the kernel was compiled for."""
    arrays, rest = [], list(numbers)

    def take(count: int) -> list[int]:
        taken, rest[:count] = rest[:count], []
        assert len(taken) == count
        return taken

    for kind in signature:
        dtype, _, axes = kind.partition("[")
        if not axes:
            take(int(kind.partition(" x ")[2] or 1))
            continue
        count = int(axes.rstrip("]"))
        *owners, elements, width, address = take(5)
        shape, strides = take(count), take(count)
        assert owners == [0, 0] and width == np.dtype(dtype).itemsize
        assert elements == prod(shape) and address % width == 0
        rows = [width * prod(shape[axis + 1 :]) for axis in range(count)]
        assert all(s == row or n < 2 for s, row, n in zip(strides, rows, shape))
        arrays.append(Array(address, width, tuple(shape)))
    assert not rest
    return arrays


def emulated_cupy(emulator: Emulator) -> ModuleType:
    """The module, with what the launcher takes of it."""
    streams: list[int] = []
    devices: list[int | None] = []

    def context(entered: list[Any]) -> Callable[..., Any]:
        class Context:
            def __init__(self, value: int | None = None) -> None:
                self.value = value

            def __enter__(self) -> None:
                entered.append(self.value)

            def __exit__(self, *_: object) -> None:
                assert entered.pop() == self.value

        return Context

    class RawModule:
        def __init__(self, *, path: str) -> None:
            self.path = Path(path)

        def get_function(self, name: str) -> Callable[..., None]:
            # It is loaded for the current device at once.
            assert devices

            def call(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
                assert type(grid) is type(block) is type(args) is tuple
                launch = Launch(name, grid, block, args, streams[-1], devices[-1])
                emulator.run(self.path, launch)

            return call

    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    vars(cuda).update(Device=context(devices), ExternalStream=context(streams))
    vars(cupy).update(RawModule=RawModule, cuda=cuda)
    return cupy
