"""Compile all kernels on all cores, before the tests run.

Compiling takes longer than the tests. Parallel workers of the tests would compile most kernels
several times, because numba's cache has a kernel only after its compilation has finished.

python -m tests.compile_kernels
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from tests.structures.contracts import every_structure

# The classes that take longest come first, so that no core is idle at the end.
FIRST = ("ProjectiveTree", "SpanningTree", "ConstituencyTree", "TagSequence", "LinearChain")


def names() -> list[str]:
    """Return the names of the classes of structures, in the order of compilation."""
    found = {type(listed.structure).__name__ for listed in every_structure()}
    return [*FIRST, *sorted(found - set(FIRST))]


def compile_kernels(name: str) -> None:
    """Run the checks of the contract on the first structure of a class, which compiles kernels."""
    torch.set_num_threads(1)
    listed = next(one for one in every_structure() if type(one.structure).__name__ == name)
    for check in listed.checks():
        # The tests run the same checks, and fail.
        try:
            check()
        except Exception as error:
            print(f"{name}: {check}: {type(error).__name__}: {error}", file=sys.stderr)


def main() -> None:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_kernels, names()))


if __name__ == "__main__":
    main()
