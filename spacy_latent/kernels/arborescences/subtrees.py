"""Equal subtrees of many hard trees over the same tokens.

Each distinct subtree gets one place in an order from the leaves up, so that it is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.arborescences.heads import (
    ENDLESS,
    HARD,
    SOFT,
    modifiers_of,
    order_upwards,
    read_heads,
)
from spacy_latent.kernels.core.compilation import kernel


class Forests(NamedTuple):
    """Hard trees, ``(S, N+1)`` (see kernels.arborescences.heads), and their rounds ``(S,)``."""

    heads: np.ndarray
    height: np.ndarray
    depth: np.ndarray
    order: np.ndarray
    rounds: np.ndarray


class Rows(NamedTuple):
    """Distinct states, in the order in which they are found.

    Attributes:
        place, round_of: the token and the round of each row.
        following: the previous row of the same token, −1 for none.
        first, end, sources: sources[first:end] are the states that send messages to a row (see
            :class:`States`).
    """

    place: np.ndarray
    round_of: np.ndarray
    following: np.ndarray
    first: np.ndarray
    end: np.ndarray
    sources: np.ndarray


@kernel
def _rounds_of(rounds, height, depth):
    """Return the first and the last round after which the state of a token is needed."""
    last = min(rounds, height + 1)
    return min(max(rounds - depth, 1), last), last


@kernel
def _find_equal(rows, row, now, begin, used):
    """Return the row with the round ``now`` and the given sources, −1 for none.

    Rows are compared from ``row`` on, along ``following``. The sources are sources[begin:used].
    """
    sources, size = rows.sources, used - begin
    while row >= 0:
        first = rows.first[row]
        same = rows.round_of[row] == now and rows.end[row] - first == size
        for index in range(size if same else 0):
            if sources[first + index] != sources[begin + index]:
                same = False
                break
        if same:
            break
        row = rows.following[row]
    return row


@kernel
def _read_forests(z, lengths, most, all_of_them, forests, totals):
    """Write the trees and their rounds.

    Args:
        most, all_of_them: see :func:`share_subtrees`.
        totals: (2,), written: the numbers of required states and messages.

    Returns:
        HARD, or SOFT if one of the trees is soft.
    """
    heads, height, depth, order, rounds = forests
    waiting = np.empty(heads.shape[1] + 1, np.int32)
    totals[:] = 0
    for s in range(len(z)):
        n = lengths[s]
        if read_heads(z[s], n, heads[s]) != HARD:
            return SOFT
        levels = order_upwards(heads[s], n, waiting, order[s], height[s], depth[s])
        rounds[s] = most if all_of_them else min(most, levels)
        for token in range(1, n + 1):
            low, high = _rounds_of(rounds[s], height[s, token], depth[s, token])
            totals[0] += high - low + 1
            head = heads[s, token]
            if head > 0:
                low, high = _rounds_of(rounds[s], height[s, head], depth[s, head])
                totals[1] += high - low + 1
    return HARD


@kernel
def _find_states(lengths, item, items, forests, rows, result):
    """Write the distinct states to ``rows``, and return their number.

    ``result`` gets the row of each token after the last round.
    """
    heads, height, depth, order, rounds = forests
    width, sources = heads.shape[1] - 1, rows.sources
    start, modifiers = np.empty(width + 3, np.int64), np.empty(width + 3, np.int64)
    offset, row_of = np.empty(width + 3, np.int64), np.empty(len(rows.place) + 1, np.int64)
    # The last row of each token.
    latest = np.full(items * width, -1)
    count = used = 0
    for s in range(len(lengths)):
        n = lengths[s]
        modifiers_of(heads[s], n, start, modifiers)
        filled = index = 0
        while index < n:
            token = order[s, index]
            low, high = _rounds_of(rounds[s], height[s, token], depth[s, token])
            # Tokens on cycles depend on each other in every round.
            group = n - index if height[s, token] == ENDLESS else 1
            for token in order[s, index : index + group]:
                offset[token] = filled - low
                filled += high - low + 1
            for now in range(low, high + 1):
                for token in order[s, index : index + group]:
                    alone, begin = item[s] * width + token - 1, used
                    for below in modifiers[start[token] : start[token + 1]]:
                        if now == 1:
                            sources[used] = -1 - (item[s] * width + below - 1)
                        else:
                            then = min(now - 1, height[s, below] + 1)
                            sources[used] = row_of[offset[below] + then]
                        used += 1
                    row = _find_equal(rows, latest[alone], now, begin, used)
                    if row < 0:
                        row = count
                        count += 1
                        rows.place[row], rows.round_of[row] = alone, now
                        rows.first[row], rows.end[row] = begin, used
                        rows.following[row] = latest[alone]
                        latest[alone] = row
                    else:
                        used = begin
                    row_of[offset[token] + now] = row
                    result[s, token - 1] = row
            index += group
        for token in range(n, width):
            result[s, token] = 0 if n == 0 else result[s, 0]
    return count


@dataclass
class States:
    """The token states that rounds of messages need, sorted by round.

    Attributes:
        place: ``(R,)``, the token of each state, ``item · N + token``.
        sizes: the number of states of each round, from the first on.
        counts: ``(R,)``, the number of messages to each state.
        targets, sources: for each message, the receiving state, counted from the first of its
            round, and the sending state. A source of −1 − place is the token before all rounds.
        heard: the number of messages of each round.
        result: ``(S, N)``, the state of each token of each tree after the last round; for padding
            the state of some token.
    """

    place: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray
    targets: np.ndarray
    sources: np.ndarray
    heard: np.ndarray
    result: np.ndarray


def share_subtrees(
    z: np.ndarray,
    lengths: np.ndarray,
    item: np.ndarray,
    items: int,
    most: int,
    all_of_them: bool,
) -> States | None:
    """Return the states for rounds of messages from modifiers to heads, each once.

    The result is None if z is not 0/1 or a token has several heads.

    Before all rounds, the state of a token is the token itself. After r rounds it is a function of
    the token and of the states of its modifiers after r − 1 rounds. States with equal arguments are
    shared between the trees of an item. A token's states before and after a round that changes
    nothing below it are shared, too. With as many rounds as the tallest tree has levels, there is
    one state for each distinct subtree.

    Args:
        z: ``(S, N+1, N+1)`` arcs, [head, modifier].
        lengths: ``(S,)`` int64.
        item: ``(S,)`` int64, the item of the tokens of each tree, below ``items``.
        most: number of rounds.
        all_of_them: whether trees with fewer levels also take all rounds. This only matters for
            cycles, which do not count as levels.
    """
    trees, width = len(z), z.shape[-1] - 1
    heads, height, depth, order = np.empty((4, trees, width + 1), dtype=np.int32)
    forests = Forests(heads, height, depth, order, np.empty(trees, dtype=np.int64))
    totals = np.empty(2, dtype=np.int64)
    if _read_forests(z, lengths, most, all_of_them, forests, totals) != HARD:
        return None
    states, messages = totals.tolist()
    rows = Rows(*(np.empty(size, dtype=np.int64) for size in [states] * 5 + [messages]))
    result = np.empty((trees, width), dtype=np.int64)
    count = _find_states(lengths, item, items, forests, rows, result)
    place, round_of, _, first, end, sources = rows
    by_round = np.argsort(round_of[:count], kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[by_round] = np.arange(count)
    sizes = np.bincount(round_of[:count])[1:]
    counts = (end - first)[by_round]
    ends = np.cumsum(counts)
    total = int(ends[-1]) if count else 0
    # All messages to the first state, then to the second, and so on.
    message = np.arange(total) + np.repeat(first[by_round] - ends + counts, counts)
    begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
    heard = np.add.reduceat(counts, np.cumsum(sizes) - sizes) if count else sizes
    source = sources[message]
    return States(
        place=place[by_round],
        sizes=sizes,
        counts=counts,
        targets=np.repeat(np.arange(count) - begin, counts),
        sources=np.where(source < 0, source, rank[source.clip(0)]),
        heard=heard,
        result=rank[result] if count else result,
    )


@kernel
def share_equals(z, item, items):
    """Find the arrays, rows of z, that equal an earlier one of the same item.

    Returns:
        ``(U,)`` int64, the first of each set of equal arrays; ``(S,)`` int64, the set of each
        array.
    """
    kinds, kind = np.empty(len(z), np.int64), np.empty(len(z), np.int64)
    latest, following = np.full(items, -1, np.int64), np.empty(len(z), np.int64)
    different = 0
    for s in range(len(z)):
        other = latest[item[s]]
        while other >= 0:
            earlier, same = z[kinds[other]], True
            for index in range(z.shape[1]):
                if earlier[index] != z[s, index]:
                    same = False
                    break
            if same:
                break
            other = following[other]
        if other < 0:
            other = different
            different += 1
            kinds[other] = s
            following[other] = latest[item[s]]
            latest[item[s]] = other
        kind[s] = other
    return kinds[:different], kind
