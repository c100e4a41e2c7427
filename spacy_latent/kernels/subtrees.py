"""Which subtrees of many hard trees over the same tokens are the same, and an order in which each
can be computed once, from the leaves up."""

from __future__ import annotations

import numpy as np
from numba import njit

HARD, SOFT, NO_FOREST = 0, 1, 2


@njit(cache=True, nogil=True, fastmath=False)
def _read_heads(z, n, heads):
    """Heads of the tokens 1 .. n, −1 where a token has none. RETURNS: whether z is 0/1 with at most
    one head for each token."""
    heads[: n + 1] = -1
    for head in range(n + 1):
        row = z[head]
        for modifier in range(1, n + 1):
            value = row[modifier]
            if value != 0.0:
                if value != 1.0 or heads[modifier] >= 0:
                    return SOFT
                heads[modifier] = head
    return HARD


@njit(cache=True, nogil=True, fastmath=False)
def _climb(heads, n, waiting, order, height, depth):
    """order: the tokens, each after its modifiers. height: levels below a token; depth: tokens
    above it. RETURNS: NO_FOREST where there is a cycle."""
    waiting[: n + 1] = 0
    for token in range(1, n + 1):
        height[token] = 0
        depth[token] = 0
        if heads[token] > 0:
            waiting[heads[token]] += 1
    found = 0
    for token in range(1, n + 1):
        if waiting[token] == 0:
            order[found] = token
            found += 1
    done = 0
    while done < found:
        token = order[done]
        done += 1
        head = heads[token]
        if head > 0:
            height[head] = max(height[head], height[token] + 1)
            waiting[head] -= 1
            if waiting[head] == 0:
                order[found] = head
                found += 1
    if found < n:
        return NO_FOREST
    for place in range(n - 1, -1, -1):
        token = order[place]
        if heads[token] > 0:
            depth[token] = depth[heads[token]] + 1
    return HARD


@njit(cache=True, nogil=True, fastmath=False)
def _rounds_of(rounds, height, depth):
    """The first and the last round after which the state of a token is asked for."""
    last = min(rounds, height + 1)
    return min(max(rounds - depth, 1), last), last


@njit(cache=True, nogil=True, fastmath=False)
def _same(sources, first, count, wanted):
    for place in range(count):
        if sources[first + place] != wanted[place]:
            return False
    return True


@njit(cache=True, nogil=True, fastmath=False)
def share_subtrees(z, lengths, item, width, rounds):
    """The states that ``rounds`` rounds of messages from modifiers to heads need, each once.

    The state of a token after r rounds is a function of the token and of the states of its
    modifiers after r − 1; after no round it is the token's own. Those of trees of one item that are
    the same in this sense are one row, and so are those of a token before and after a round that
    finds nothing new below it. With as many rounds as the tallest tree has levels that is a row for
    each subtree.

    z: ``(S, N+1, N+1)`` arcs, [head, modifier]. lengths: ``(S,)`` int64. item: ``(S,)`` int64, the
        item whose tokens tree s is over. width: N, the places of an item.
    RETURNS: status; and, where it is HARD, else empty: for each row, sorted by round, its place
        ``item · N + token``; for each round, from the first, the number of its rows and of its
        messages; for each message, sorted by the round that gets it, its target, counted from the
        round's first row, and its source: a row, or −1 − place for a token's own state; the number
        of messages of each row; and the row of each token after the last round, ``(S, N)``, at
        padding that of some token. All are int64.
    """
    trees = len(z)
    heads = np.empty((trees, width + 1), np.int32)
    height = np.empty((trees, width + 1), np.int32)
    depth = np.empty((trees, width + 1), np.int32)
    order = np.empty((trees, width + 1), np.int32)
    waiting = np.empty(width + 2, np.int32)
    places = 0
    states = messages = tallest = 0
    status = HARD
    for s in range(trees):
        n = lengths[s]
        places = max(places, (item[s] + 1) * width)
        status = _read_heads(z[s], n, heads[s])
        if status == HARD:
            status = _climb(heads[s], n, waiting, order[s], height[s], depth[s])
        if status != HARD:
            break
        for token in range(1, n + 1):
            low, high = _rounds_of(rounds, height[s, token], depth[s, token])
            states += high - low + 1
            tallest = max(tallest, high)
            if heads[s, token] > 0:
                low, high = _rounds_of(
                    rounds, height[s, heads[s, token]], depth[s, heads[s, token]]
                )
                messages += high - low + 1
    if status != HARD:
        states = messages = tallest = places = 0
        trees = 0
    base, round_of = np.empty(states, np.int64), np.empty(states, np.int32)
    first, end = np.empty(states, np.int64), np.empty(states, np.int64)
    following = np.empty(states, np.int64)
    sources = np.empty(messages, np.int64)
    latest = np.full(places, -1, np.int64)
    result = np.zeros((trees, width), np.int64)
    rows = used = 0
    # Modifiers of each token, side by side and in order; the rows of each token, by round.
    start, modifiers = np.empty(width + 3, np.int32), np.empty(width + 1, np.int32)
    offset, row_of = np.empty(width + 2, np.int64), np.empty(states + 1, np.int64)
    for s in range(trees):
        n = lengths[s]
        start[: n + 2] = 0
        for token in range(1, n + 1):
            if heads[s, token] > 0:
                start[heads[s, token] + 1] += 1
        for token in range(1, n + 1):
            start[token + 1] += start[token]
        for token in range(1, n + 1):
            head = heads[s, token]
            if head > 0:
                modifiers[start[head]] = token
                start[head] += 1
        # What was counted up to the end of each is the beginning of the next.
        for token in range(n, 0, -1):
            start[token + 1] = start[token]
        start[1] = 0
        filled = 0
        for place in range(n):
            token = order[s, place]
            low, high = _rounds_of(rounds, height[s, token], depth[s, token])
            offset[token] = filled - low
            own = item[s] * width + token - 1
            for now in range(low, high + 1):
                begin = used
                for index in range(start[token], start[token + 1]):
                    below = modifiers[index]
                    if now == 1:
                        sources[used] = -1 - (item[s] * width + below - 1)
                    else:
                        then = min(now - 1, height[s, below] + 1)
                        sources[used] = row_of[offset[below] + then]
                    used += 1
                count = used - begin
                row = latest[own]
                while row >= 0 and not (
                    round_of[row] == now
                    and end[row] - first[row] == count
                    and _same(sources, first[row], count, sources[begin:used])
                ):
                    row = following[row]
                if row >= 0:
                    used = begin
                else:
                    row = rows
                    rows += 1
                    base[row], round_of[row] = own, now
                    first[row], end[row] = begin, used
                    following[row] = latest[own]
                    latest[own] = row
                row_of[filled] = row
                filled += 1
            result[s, token - 1] = row_of[filled - 1]
        for token in range(n, width):
            result[s, token] = 0 if n == 0 else result[s, 0]
    # By round, else in the order in which they were found.
    row_ends, message_ends = np.zeros(tallest + 1, np.int64), np.zeros(tallest + 1, np.int64)
    for row in range(rows):
        row_ends[round_of[row]] += 1
        message_ends[round_of[row]] += end[row] - first[row]
    for now in range(tallest):
        row_ends[now + 1] += row_ends[now]
        message_ends[now + 1] += message_ends[now]
    next_row, next_message = row_ends.copy(), message_ends.copy()
    rank = np.empty(rows, np.int64)
    sorted_base, sorted_count = np.empty(rows, np.int64), np.empty(rows, np.int64)
    target, source = np.empty(used, np.int64), np.empty(used, np.int64)
    for row in range(rows):
        before = round_of[row] - 1
        rank[row] = next_row[before]
        next_row[before] += 1
        sorted_base[rank[row]] = base[row]
        sorted_count[rank[row]] = end[row] - first[row]
    for row in range(rows):
        before = round_of[row] - 1
        for index in range(first[row], end[row]):
            message = next_message[before]
            next_message[before] += 1
            target[message] = rank[row] - row_ends[before]
            source[message] = sources[index] if sources[index] < 0 else rank[sources[index]]
    for s in range(trees):
        for token in range(width if rows > 0 else 0):
            result[s, token] = rank[result[s, token]]
    sizes, heard = np.diff(row_ends), np.diff(message_ends)
    return status, sorted_base, sizes, heard, target, source, sorted_count, result


@njit(cache=True, nogil=True, fastmath=False)
def share_equals(z, item, items):
    """Which of many arrays are the same as an earlier one of the same item.

    z: ``(S, size)``. item: ``(S,)`` int64, below ``items``.
    RETURNS: ``(U,)`` int64, the first of each kind; ``(S,)`` int64, the kind of each.
    """
    kinds, kind = np.empty(len(z), np.int64), np.empty(len(z), np.int64)
    latest, following = np.full(items, -1, np.int64), np.empty(len(z), np.int64)
    found = 0
    for s in range(len(z)):
        other = latest[item[s]]
        while other >= 0:
            earlier, same = z[kinds[other]], True
            for place in range(z.shape[1]):
                if earlier[place] != z[s, place]:
                    same = False
                    break
            if same:
                break
            other = following[other]
        if other < 0:
            other = found
            found += 1
            kinds[other] = s
            following[other] = latest[item[s]]
            latest[item[s]] = other
        kind[s] = other
    return kinds[:found], kind
