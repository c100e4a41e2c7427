"""Dependency trees as binary trees in which a head takes its modifiers one at a time.

Subtrees that occur in several trees over the same tokens are stored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.arborescences.heads import (
    ENDLESS,
    HARD,
    modifiers_of,
    order_upwards,
    read_heads,
)
from spacy_latent.kernels.core.compilation import kernel


class Found(NamedTuple):
    """Merges in the order in which they are found; ``first`` is the row of the first one.

    Attributes:
        lefts, rights: the rows of the two states.
        arcs: see :class:`Merges`.
        latest: the last merge with each row on its left, −1 if there is none.
        following: the merge before with the same row on its left, −1 if there is none.
    """

    lefts: np.ndarray
    rights: np.ndarray
    arcs: np.ndarray
    latest: np.ndarray
    following: np.ndarray


@kernel
def _find(found, count, first, left, right, share):
    """Return the row of an equal merge, or ``first + count`` for a new one."""
    lefts, rights, latest, following = found.lefts, found.rights, found.latest, found.following
    row = latest[left] if share else -1
    while row >= 0 and rights[row - first] != right:
        row = following[row - first]
    if row >= 0:
        return row
    lefts[count], rights[count] = left, right
    following[count] = latest[left]
    latest[left] = first + count
    return first + count


@kernel
def _merge(z, lengths, item, width, first, share, found, result):
    """Write the merges of all trees, and return their number, or −1 if an array is not a tree."""
    heads = np.empty(width + 1, np.int32)
    height, depth = np.empty(width + 1, np.int32), np.empty(width + 1, np.int32)
    order, waiting = np.empty(width + 1, np.int32), np.empty(width + 2, np.int32)
    start, modifiers = np.empty(width + 3, np.int64), np.empty(width + 3, np.int64)
    state = np.empty(width + 1, np.int64)
    count = 0
    for s in range(len(lengths)):
        n = lengths[s]
        if read_heads(z[s], n, heads) != HARD:
            return -1
        order_upwards(heads, n, waiting, order, height, depth)
        if n and height[order[n - 1]] == ENDLESS:
            return -1
        modifiers_of(heads, n, start, modifiers)
        for token in range(1, width + 1):
            state[token] = item[s] * width + token - 1
        for token in order[:n]:
            low, high = start[token], start[token + 1]
            middle = low
            while middle < high and modifiers[middle] < token:
                middle += 1
            # The nearest modifier first, those on the right before those on the left.
            for index in range(high - low):
                right = index < high - middle
                child = modifiers[middle + index if right else low + high - low - 1 - index]
                one, other = (token, child) if right else (child, token)
                row = _find(found, count, first, state[one], state[other], share)
                if row == first + count:
                    arcs = found.arcs[count]
                    arcs[0], arcs[1], arcs[2] = s, token, child
                    count += 1
                state[token] = row
        result[s] = state[1:]
    return count


@dataclass
class Merges:
    """M merges of two states each, sorted by the round in which both are available.

    Attributes:
        left, right: ``(M,)``, the rows of the two states. The first ``items · N`` rows are the
            single tokens, ``item · N + token``. The merges follow in order.
        sizes: the number of merges of each round.
        arcs: ``(M, 3)``, a tree that has the merge, then head and modifier of its arc.
        result: ``(S, N)``, the row of each token with all its modifiers; for padding the row of the
            token alone.
    """

    left: np.ndarray
    right: np.ndarray
    sizes: np.ndarray
    arcs: np.ndarray
    result: np.ndarray


def merge_heads(
    z: np.ndarray, lengths: np.ndarray, item: np.ndarray, items: int, share: bool
) -> Merges | None:
    """Return the merges of trees z ``(S, N+1, N+1)``, [head, modifier].

    The result is None if z is not 0/1, or if a token has several heads or is its own ancestor. A
    head first takes the modifiers on its right, from the nearest on, then those on its left. The
    left state of a merge is the one that is on the left in the text.

    Args:
        lengths: ``(S,)`` int64.
        item: ``(S,)`` int64, the item of the tokens of each tree, below ``items``.
        share: whether equal merges of an item become one.
    """
    width = z.shape[-1] - 1
    first, most = items * width, int(lengths.sum())
    lefts, rights, following = (np.empty(most, dtype=np.int64) for _ in range(3))
    arcs, latest = np.empty((most, 3), dtype=np.int64), np.full(first + most, -1)
    result = np.empty((len(z), width), dtype=np.int64)
    found = Found(lefts, rights, arcs, latest, following)
    count = _merge(z, lengths, item, width, first, share, found, result)
    if count < 0:
        return None
    lefts, rights = lefts[:count], rights[:count]
    levels = _levels(lefts, rights, first)
    order = np.argsort(levels, kind="stable")
    rank = np.arange(first + count)
    rank[first + order] = np.arange(first, first + count)
    return Merges(
        left=rank[lefts[order]],
        right=rank[rights[order]],
        sizes=np.bincount(levels)[1:] if count else np.zeros(0, dtype=np.int64),
        arcs=arcs[:count][order],
        result=rank[result],
    )


@kernel
def _levels(lefts, rights, first):
    levels = np.empty(len(lefts), np.int64)
    for row in range(len(lefts)):
        left, right = lefts[row] - first, rights[row] - first
        one = levels[left] if left >= 0 else 0
        other = levels[right] if right >= 0 else 0
        levels[row] = max(one, other) + 1
    return levels
