"""Choice among spans that cross each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spacy_latent.structures.constituency_tree import ConstituencyTree

TREES = ConstituencyTree()


def best_compatible(gains: Tensor, lengths: Tensor) -> Tensor:
    """Return the spans with the largest sum of gains that do not cross each other, bool.

    Args:
        gains: ``(B, n, n)``. Only spans with a gain above 0 are chosen.
        lengths: ``(B,)``.
    """
    return (TREES.map(gains.clamp_min(0.0), lengths) > 0) & (gains > 0)


def most_compatible(observed: Sequence[tuple[int, int]]) -> list[bool]:
    """Return which spans to keep, so that no two cross and as few as possible are left out."""
    kept = [True] * len(observed)
    if not crosses(observed):
        return kept
    # Most spans of a long text cross no others, and need no search.
    starts, ends = np.array(observed, dtype="int64").T
    crossing = np.zeros(len(observed), dtype=bool)
    for i, (start, end) in enumerate(observed):
        into = (starts < start) & (start < ends) & (ends < end)
        crossing |= into
        crossing[i] |= into.any()
    cluster: list[int] = []
    for i in sorted(np.flatnonzero(crossing).tolist(), key=lambda i: observed[i]):
        if cluster and observed[i][0] >= max(observed[k][1] for k in cluster):
            _leave_out(observed, cluster, kept)
            cluster = []
        cluster.append(i)
    _leave_out(observed, cluster, kept)
    return kept


def _leave_out(observed: Sequence[tuple[int, int]], cluster: list[int], kept: list[bool]) -> None:
    """Leave out as few crossing spans as possible, by a chart over the stretches between ends."""
    ends = sorted({end for i in cluster for end in observed[i]})
    number = {end: place for place, end in enumerate(ends)}
    n = len(ends) - 1
    gains = torch.zeros(1, n, n, dtype=torch.float64)
    places = {i: (number[observed[i][0]], number[observed[i][1]] - 1) for i in cluster}
    for place in places.values():
        gains[0][place] = 1.0
    taken = best_compatible(gains, torch.tensor([n]))[0]
    for i, place in places.items():
        kept[i] = bool(taken[place])


def crosses(observed: Sequence[tuple[int, int]]) -> bool:
    """Return whether two of the spans overlap and neither contains the other."""
    around: list[int] = []
    for start, end in sorted(observed, key=lambda span: (span[0], -span[1])):
        while around and around[-1] <= start:
            around.pop()
        if around and around[-1] < end:
            return True
        around.append(end)
    return False
