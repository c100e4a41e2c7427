"""Compile the kernels on all cores, each of them once, before the tests run.

Compiling takes longer than the tests themselves. Their workers would each compile what they need,
and most of it is the same: numba's cache has a kernel only when somebody has finished it.

python -m tests.compile_kernels
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from tests.structures.contracts import every_structure

# Those that take longest come first, so that no core waits for the other at the end.
FIRST = ("ProjectiveTree", "SpanningTree", "ConstituencyTree", "TagSequence", "LinearChain")


def names() -> list[str]:
    """The classes of structures."""
    found = {type(listed.structure).__name__ for listed in every_structure()}
    return [*FIRST, *sorted(found - set(FIRST))]


def compile_kernels(name: str) -> None:
    """Do with the first structure of a class what the contract asks for."""
    torch.set_num_threads(1)
    listed = next(one for one in every_structure() if type(one.structure).__name__ == name)
    for check in listed.checks():
        # A check that fails is for the tests to tell of.
        with contextlib.suppress(Exception):
            check()


def main() -> None:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_kernels, names()))


if __name__ == "__main__":
    main()
