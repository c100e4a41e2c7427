"""Compile the kernels for a GPU that come with the package, see kernels.ahead_of_time. After a
change of a body in kernels/*_blocks.py, on any machine with Linux on x86-64, without a GPU:

python -m pip install -r tests/compile_gpu_kernels.txt
python -m tests.compile_gpu_kernels

The same sources and the same versions, that of Python among them, give the same files.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import platform
import re
import subprocess
import textwrap
import tokenize
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from spacy_latent.kernels import ahead_of_time, just_in_time, launch
from spacy_latent.kernels.blocks import Maker
from spacy_latent.kernels.operators import family_of

# Turing: no code of ours differs between it and newer ones, which all read it.
TARGET = (7, 5)
# Of which registers are counted.
PROCESSORS = ("sm_80", "sm_90")


class Kernel(NamedTuple):
    """arguments: types as in kernels.ahead_of_time; "scores" stands for the type of scores."""

    maker: Maker
    wrap: Callable[[Maker], Any]
    arguments: tuple[str, ...]

    def name(self, dtype: torch.dtype) -> str:
        return ahead_of_time.name_of(self.maker, dtype)

    def signature(self, dtype: torch.dtype) -> list[str]:
        scores = str(dtype).removeprefix("torch.")
        return [argument.replace("scores", scores) for argument in self.arguments]


def _best(maker: Maker, scores: str, options: int, best: str) -> Kernel:
    sizes = ("int64[1]", f"int64 x {options}")
    arguments = ("int64", "float64[2]", scores, *sizes, best, "int8[1]")
    return Kernel(maker, just_in_time.best_kernel, arguments)


def _total(maker: Maker, scores: str, options: int) -> Kernel:
    sizes = ("int64[1]", f"int64 x {options}")
    results = (scores, "int64", "scores[1]", scores, "int8[1]")
    arguments = ("int64", "float64[2]", scores, *sizes, *results)
    return Kernel(maker, just_in_time.total_kernel, arguments)


def kernels() -> list[Kernel]:
    """All that are compiled, each in float32 and in float64."""
    found = [_best(launch.make_probe, "scores[2]", 1, "int32[2]")]
    for family, axes, options, best in (
        ("linear_chain", 4, 1, "int32[2]"),
        ("inside_outside", 3, 3, "int32[2]"),
        ("constituency", 3, 1, "int32[3]"),
        ("matrix_tree", 3, 3, "int32[2]"),
    ):
        blocks = family_of(f"spacy_latent.kernels.{family}:FAMILY").device
        assert blocks is not None
        found.append(_best(blocks.best, f"scores[{axes}]", options, best))
        found.append(_total(blocks.total, f"scores[{axes}]", options))
    return found


DTYPES = (torch.float32, torch.float64)

# ------------------------------------------------------------------------------------ sources


def sources(kernel: Kernel) -> str:
    """Digest of what is compiled: the functions as they are written, but for comments, and the
    constants that they name. Not of the files, which hold what runs on the CPU too."""
    functions: list[Any] = []

    def record(function: Any) -> Any:
        functions.append(function)
        return function

    kernel.maker(record, record(_sync))
    parts = [_without_comments(kernel.wrap)]
    for function in functions:
        closed = inspect.getclosurevars(function)
        constants = {
            name: value
            for name, value in {**closed.globals, **closed.nonlocals}.items()
            if isinstance(value, (int, float, str, tuple))
        }
        parts += [_without_comments(function), repr(sorted(constants.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _without_comments(function: Any) -> str:
    """Nor docstrings."""
    source = textwrap.dedent(inspect.getsource(function))
    kept, begins = [], False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        if not (begins and token.type == tokenize.STRING):
            kept.append(token.string)
        begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return " ".join(kept)


def _sync() -> None:
    """Stands for the barrier."""


# ------------------------------------------------------------------------------------ compiling


def compile_kernel(kernel: Kernel, dtype: torch.dtype) -> str:
    """The code, with the kernel under its own name."""
    from numba import cuda

    types = tuple(map(_numba_type, kernel.signature(dtype)))
    function = kernel.wrap(kernel.maker).py_func
    text, _ = cuda.compile_ptx(function, types, device=False, cc=TARGET)
    (mangled,) = re.findall(r"\.visible \.entry ([\w$]+)\(", text)
    # What names the compiler's build, and globals of numba's that nothing reads.
    text = re.sub(r"^\.common .*\b_ZN08NumbaEnv[\w$]+;\n", "", text, flags=re.M)
    text = re.sub(r"[ \t]*//[^\n]*", "", text.replace(mangled, kernel.name(dtype)))
    return re.sub(r"\n\s*\n", "\n", text).strip() + "\n"


def _numba_type(name: str) -> Any:
    from numba import types

    kind, _, count = name.partition(" x ")
    if count:
        return types.UniTuple(types.int64, int(count))
    dtype, _, axes = kind.partition("[")
    scalar = getattr(types, dtype)
    return types.Array(scalar, int(axes.rstrip("]")), "C") if axes else scalar


def _pretend_processor() -> None:
    """numba-cuda asks the driver for it, even where ``compile_ptx`` is told."""
    from numba.cuda import dispatcher

    class Device:
        compute_capability = TARGET

    dispatcher.get_current_device = Device


def used(code: Path, processor: str) -> dict[str, int]:
    """What a kernel takes of a processor, by ``ptxas``; memory in bytes a thread, but for shared,
    which is a block's."""
    import nvidia.cuda_nvcc

    (folder,) = nvidia.cuda_nvcc.__path__
    command = [f"{folder}/bin/ptxas", "-v", f"-arch={processor}", str(code), "-o", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    def count(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, said)))

    found = {
        "registers": count(r"Used (\d+) registers"),
        "stack": count(r"(\d+) bytes stack frame"),
        "spilled": count(r"(\d+) bytes spill stores"),
        "shared": count(r"(\d+) bytes smem"),
    }
    assert found["registers"], said
    return found


def main() -> None:
    _pretend_processor()
    made: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        for kernel in kernels():
            for dtype in DTYPES:
                name, text = kernel.name(dtype), compile_kernel(kernel, dtype)
                code = Path(place, f"{name}.ptx")
                code.write_text(text, encoding="utf8", newline="\n")
                made[name] = {
                    "maker": ahead_of_time.place_of(kernel.maker),
                    "arguments": kernel.signature(dtype),
                    "sources": sources(kernel),
                    "code": hashlib.sha256(text.encode()).hexdigest(),
                    **{processor: used(code, processor) for processor in PROCESSORS},
                }
                print(name, len(text), *(f"{p} {made[name][p]}" for p in PROCESSORS), flush=True)
        ahead_of_time.FOLDER.mkdir(exist_ok=True)
        for old in ahead_of_time.FOLDER.iterdir():
            old.unlink()
        for code in Path(place).iterdir():
            (ahead_of_time.FOLDER / code.name).write_bytes(code.read_bytes())
    packages = ("numba", "numba-cuda", "nvidia-cuda-nvcc-cu12")
    python = ".".join(platform.python_version_tuple()[:2])
    compiler = {"python": python, **{name: version(name) for name in packages}}
    record = {"compiler": compiler, "kernels": made}
    text = json.dumps(record, indent=2) + "\n"
    ahead_of_time.MANIFEST.write_text(text, encoding="utf8", newline="\n")


if __name__ == "__main__":
    main()
