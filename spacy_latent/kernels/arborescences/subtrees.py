"""Equal subtrees of many hard trees over the same tokens.

Each distinct subtree gets one place in an order from the leaves up, so that it is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@kernel
def _rounds_of(rounds, height, depth):
    """Return the first and the last round after which the state of a token is needed."""
    last = min(rounds, height + 1)
    return min(max(rounds - depth, 1), last), last


@kernel
def _same(sources, one, other, end):
    """Return whether two runs of ``sources`` are equal; the second ends at ``end``."""
    for index in range(end - other):
        if sources[one + index] != sources[other + index]:
            return False
    return True


@kernel
def _read_forests(
    z, lengths, most, all_of_them, heads, height, depth, order, waiting, rounds, totals
):
    """Write heads, height, depth and order of each tree (see arborescences.heads), and its rounds.

    Args:
        most, all_of_them: see :func:`share_subtrees`.
        totals: (2,), written: the numbers of required states and messages.

    Returns:
        HARD, or SOFT if one of the trees is soft.
    """
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
def _find_states(
    lengths,
    item,
    width,
    rounds,
    heads,
    height,
    depth,
    order,
    start,
    modifiers,
    offset,
    row_of,
    latest,
    following,
    place,
    round_of,
    first,
    end,
    sources,
    result,
):
    """Write the distinct states, as rows in the order in which they are found.

    Args:
        start, modifiers, offset, row_of: workspaces.
        latest: for each token, the last row of its states; −1 at first.
        following: for each row, the previous row of the same token.
        place, round_of: for each row, its token and its round.
        first, end, sources: sources[first:end] are the states that send messages to a row (see
            :class:`States`).
        result: for each token, its row after the last round.

    Returns:
        The number of rows.
    """
    rows = used = 0
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
                    alone = item[s] * width + token - 1
                    begin = used
                    for child in range(start[token], start[token + 1]):
                        below = modifiers[child]
                        if now == 1:
                            sources[used] = -1 - (item[s] * width + below - 1)
                        else:
                            then = min(now - 1, height[s, below] + 1)
                            sources[used] = row_of[offset[below] + then]
                        used += 1
                    row = latest[alone]
                    while row >= 0:
                        if (
                            round_of[row] == now
                            and end[row] - first[row] == used - begin
                            and _same(sources, first[row], begin, used)
                        ):
                            break
                        row = following[row]
                    if row >= 0:
                        used = begin
                    else:
                        row = rows
                        rows += 1
                        place[row], round_of[row] = alone, now
                        first[row], end[row] = begin, used
                        following[row] = latest[alone]
                        latest[alone] = row
                    row_of[offset[token] + now] = row
                    result[s, token - 1] = row
            index += group
        for token in range(n, result.shape[1]):
            result[s, token] = 0 if n == 0 else result[s, 0]
    return rows


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
    nodes = (trees, width + 1)
    read = [np.empty(nodes, dtype=np.int32) for _ in range(4)]
    totals = np.empty(2, dtype=np.int64)
    waiting = np.empty(width + 2, dtype=np.int32)
    rounds = np.empty(trees, dtype=np.int64)
    heads, height, depth, order = read
    status = _read_forests(
        z, lengths, most, all_of_them, heads, height, depth, order, waiting, rounds, totals
    )
    if status != HARD:
        return None
    room, messages = totals.tolist()
    start, modifiers, offset = (np.empty(width + 3, dtype=np.int64) for _ in range(3))
    row_of = np.empty(room + 1, dtype=np.int64)
    latest, following = np.full(items * width, -1), np.empty(room, dtype=np.int64)
    place, round_of, first, end = (np.empty(room, dtype=np.int64) for _ in range(4))
    sources, result = np.empty(messages, dtype=np.int64), np.empty((trees, width), dtype=np.int64)
    rows = _find_states(
        lengths,
        item,
        width,
        rounds,
        heads,
        height,
        depth,
        order,
        start,
        modifiers,
        offset,
        row_of,
        latest,
        following,
        place,
        round_of,
        first,
        end,
        sources,
        result,
    )
    by_round = np.argsort(round_of[:rows], kind="stable")
    rank = np.empty(rows, dtype=np.int64)
    rank[by_round] = np.arange(rows)
    sizes = np.bincount(round_of[:rows])[1:]
    counts = (end - first)[by_round]
    ends = np.cumsum(counts)
    total = int(ends[-1]) if rows else 0
    # All messages to the first state, then to the second, and so on.
    message = np.arange(total) + np.repeat(first[by_round] - ends + counts, counts)
    begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
    heard = np.add.reduceat(counts, np.cumsum(sizes) - sizes) if rows else sizes
    source = sources[message]
    return States(
        place=place[by_round],
        sizes=sizes,
        counts=counts,
        targets=np.repeat(np.arange(rows) - begin, counts),
        sources=np.where(source < 0, source, rank[source.clip(0)]),
        heard=heard,
        result=rank[result] if rows else result,
    )


@kernel
def share_equals(z, item, items):
    """Find the arrays that equal an earlier one of the same item.

    Args:
        z: ``(S, size)``.
        item: ``(S,)`` int64, below ``items``.

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
