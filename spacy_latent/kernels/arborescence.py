"""Maximum spanning arborescences of dense graphs: Chu and Liu (1965) and Edmonds (1967), by growing
paths and contracting cycles as Gabow et al. (1986) do, in O(n²) for one sentence.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE, read_arc_scores


@njit(cache=True, nogil=True)
def integer_workspace_size(n):
    nodes = n + 1
    return 2 * nodes * nodes + 16 * nodes


@njit(cache=True, nogil=True)
def float_workspace_size(n):
    nodes = n + 1
    return nodes * nodes + 2 * nodes


@njit(cache=True, nogil=True)
def best_arborescence(scores, n, single_root, heads, integer_workspace, float_workspace):
    """The best tree over n tokens and the root, node 0.

    scores: ``(n+1, n+1)`` float64, [head, modifier], −inf where forbidden; neither NaN nor +inf.
    single_root: exactly one token attached to the root.
    heads: ``(n+1,)`` int32, filled; heads[0] = −1.
    integer_workspace, float_workspace: int32 and float64, of the sizes above at least.
    RETURNS: whether there is a tree.
    """
    heads[0] = -1
    if n == 0:
        return True
    if not _solve(scores, n, False, heads, integer_workspace, float_workspace):
        return False
    roots = 0
    for modifier in range(1, n + 1):
        roots += heads[modifier] == 0
    if not single_root or roots == 1:
        return True
    if not _solve(scores, n, True, heads, integer_workspace, float_workspace):
        return False
    roots = 0
    for modifier in range(1, n + 1):
        roots += heads[modifier] == 0
    return roots == 1


@njit(cache=True, nogil=True)
def _solve(scores, n, root_last, heads, integer_workspace, float_workspace):
    """root_last: of all trees, one with the fewest root arcs, and of those the best.

    That is the best tree over pairs (root arcs, score) in lexicographic order. No cycle holds a
    root arc, so nothing subtracted counts one: each arc of column 0 counts 1, the others 0.
    """
    size = n + 1
    # incoming[m, h]: reduced score of the best arc from node h into node m; nodes are rows, and a
    # contracted cycle lives in the row of one of its members.
    incoming = float_workspace[: size * size].reshape(size, size)
    paid = float_workspace[size * size : size * size + size]
    arc_head = integer_workspace[: size * size].reshape(size, size)
    arc_modifier = integer_workspace[size * size : 2 * size * size].reshape(size, size)
    rest = integer_workspace[2 * size * size :]
    state = rest[:size]  # 0 untouched, 1 on the path, 2 attached, 3 contracted away
    path = rest[size : 2 * size]
    best = rest[2 * size : 3 * size]
    identity = rest[3 * size : 4 * size]  # the node that a row stands for
    parent = rest[4 * size : 6 * size]  # of a node in the forest of contractions
    entering_head = rest[6 * size : 8 * size]
    entering_modifier = rest[8 * size : 10 * size]
    removed = rest[10 * size : 12 * size]

    for m in range(1, size):
        for h in range(size):
            incoming[m, h] = scores[h, m]
            arc_head[m, h] = h
            arc_modifier[m, h] = m
        incoming[m, m] = -np.inf
    for node in range(size):
        state[node] = 0
        identity[node] = node
    for node in range(2 * size):
        parent[node] = -1
        removed[node] = 0
    state[0] = 2
    count = size

    for start in range(1, size):
        if state[start] != 0:
            continue
        depth = 0
        path[0] = start
        state[start] = 1
        while True:
            top = path[depth]
            row = incoming[top]
            value = -np.inf if root_last else row[0]
            head = 0
            for h in range(1, size):
                if row[h] > value:
                    value = row[h]
                    head = h
            if head == 0:
                value = row[0]
            if value == -np.inf:
                return False
            best[top] = head
            paid[top] = value
            node = identity[top]
            entering_head[node] = arc_head[top, head]
            entering_modifier[node] = arc_modifier[top, head]
            if state[head] == 2:
                for i in range(depth + 1):
                    state[path[i]] = 2
                break
            if state[head] == 0:
                depth += 1
                path[depth] = head
                state[head] = 1
                continue
            # The path has closed a cycle from ``head`` to its end: contract it into ``head``.
            first = depth
            while path[first] != head:
                first -= 1
            into = incoming[head]
            for h in range(size):
                into[h] -= value if head == top else paid[head]
            for i in range(first + 1, depth + 1):
                member = path[i]
                row = incoming[member]
                cost = paid[member]
                for h in range(size):
                    reduced = row[h] - cost
                    if reduced > into[h]:
                        into[h] = reduced
                        arc_head[head, h] = arc_head[member, h]
                        arc_modifier[head, h] = arc_modifier[member, h]
                state[member] = 3
            for m in range(1, size):
                if state[m] == 2 or state[m] == 3:
                    continue
                row = incoming[m]
                for i in range(first + 1, depth + 1):
                    member = path[i]
                    if row[member] > row[head]:
                        row[head] = row[member]
                        arc_head[m, head] = arc_head[m, member]
                        arc_modifier[m, head] = arc_modifier[m, member]
                    row[member] = -np.inf
            into[head] = -np.inf
            for i in range(first, depth + 1):
                parent[identity[path[i]]] = count
            identity[head] = count
            count += 1
            depth = first

    # Expand the cycles, the last contracted first: the arc that enters one breaks it.
    for node in range(count - 1, 0, -1):
        if removed[node]:
            continue
        modifier = entering_modifier[node]
        heads[modifier] = entering_head[node]
        inner = modifier
        while inner != -1 and not removed[inner]:
            removed[inner] = 1
            if inner == node:
                break
            inner = parent[inner]
    return True


@njit(cache=True, nogil=True)
def best_arborescences(
    start, stop, scores, lengths, direction, max_arc_length, single_root, heads, status
):
    """Best trees of the items start .. stop−1.

    scores: ``(B, N+1, N+1)`` float32 or float64; only allowed arcs of real tokens are read.
    heads: ``(B, N+1)`` int32, filled up to each length; −1 elsewhere.
    status: ``(B,)`` int8, see kernels.status.
    """
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    matrix = np.empty((longest + 1) * (longest + 1))
    integers = np.empty(integer_workspace_size(longest), dtype=np.int32)
    floats = np.empty(float_workspace_size(longest))
    for b in range(start, stop):
        n = lengths[b]
        own = matrix[: (n + 1) * (n + 1)].reshape(n + 1, n + 1)
        for node in range(heads.shape[1]):
            heads[b, node] = -1
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, own)
        if status[b] == FEASIBLE:
            if not best_arborescence(own, n, single_root, heads[b], integers, floats):
                status[b] = INFEASIBLE
