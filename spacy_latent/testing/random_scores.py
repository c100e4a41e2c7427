"""Reproducible random numbers, and scores under which many structures are equally good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


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


def tied_scores(batch: int, shape: Sequence[int], seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield scores ``(batch, *shape)`` float64 with ties, each with its name.

    The first scores are all equal. A scorer that sees only words would give the second scores. A
    third of the words are equal, and the rest are equal to another word.
    """
    yield "equal scores", torch.full((batch, *shape), 0.7, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    added = torch.zeros(batch, *shape, dtype=torch.float64)
    multiplied = torch.ones_like(added)
    for axis, size in enumerate(shape):
        place = torch.arange(size)
        # The first place is the root's, if the parts have a root.
        words = torch.where(place > 0, 1 + (place % 3 == 0).long(), 0)
        own = torch.randn(2, 3, generator=generator, dtype=torch.float64)[:, words]
        own = own.view(2, size, *[1] * (len(shape) - 1 - axis))
        added += own[0]
        multiplied *= own[1]
    yield "scores of equal words", added + multiplied
