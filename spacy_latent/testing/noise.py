"""Reproducible random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generator inside the context, and restore its state at the end.

    If no GPU is in use, ``torch.manual_seed`` stores the stack of its callers for each kind of GPU
    that may be used later. This takes longer than most of the checks, so this function does not
    call it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
