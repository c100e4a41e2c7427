"""Noise that repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What is inside draws from this seed, on the CPU; what comes after draws as if it had not.

    Where no GPU is in use ``torch.manual_seed`` keeps the stack of its callers for each kind of GPU
    that may come to be used. That takes longer than most of what is checked.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
