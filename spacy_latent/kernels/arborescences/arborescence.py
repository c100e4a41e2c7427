"""Maximum spanning arborescences of dense graphs, in O(n²) for one sentence.

The algorithm is that of Chu and Liu (1965) and Edmonds (1967). Paths are grown and cycles
contracted as in Gabow et al. (1986). A contraction merges only the rows of arcs into the members of
the cycle. Arcs out of the cycle need no update. Tokens outside of cycles only need their best head.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.simd.arc_scores import is_arc
from spacy_latent.kernels.simd.vector import (
    LANES,
    best_outside,
    column_maxima,
    fused_loop,
    merge_column,
)

# For each head: the better of its arcs into two members of a cycle, and the token that this enters.
_merge = fused_loop([("best", 0, ((0, 1), (2, 3)))])


@kernel
def integer_workspace_size(n):
    """Return the size of the int32 workspace for n tokens."""
    return 17 * (n + 1)


@kernel
def _row_width(n):
    """Return the numbers in a row, so that whole vectors fit from the first token on."""
    return (n + 2 * LANES) // LANES * LANES


@kernel
def float_workspace_size(n):
    """Return the size of the float64 workspace for n tokens."""
    return (2 * n + 6) * _row_width(n)


@kernel
def best_arborescence(scores, n, single_root, heads, integer_workspace, float_workspace):
    """Write the best tree over n tokens and the root, node 0.

    Args:
        scores: ``(n+1, n+1)`` or larger, float32 or float64, contiguous, [head, modifier], −inf if
            forbidden. The diagonal and entries beyond n + 1 may be anything, and column 0 anything
            finite or −inf.
        single_root: whether exactly one token is attached to the root.
        heads: ``(n+1,)`` int32, written; heads[0] = −1.
        integer_workspace, float_workspace: int32 and float64, at least of the sizes above.

    Returns:
        FEASIBLE, INFEASIBLE if there is no tree, or NOT_FINITE if a score off the diagonal is NaN
        or +inf.
    """
    heads[0] = -1
    status = FEASIBLE
    # A single call in a loop, since two calls would be compiled twice.
    for attempt in range(2 if n > 0 else 0):
        status = _solve(scores, n, attempt == 1, heads, integer_workspace, float_workspace)
        roots = 0
        for modifier in range(1, n + 1):
            roots += heads[modifier] == 0
        if status != FEASIBLE or roots == 1 or not single_root:
            return status
        status = INFEASIBLE
    return status


@kernel
def _solve(scores, n, root_last, heads, integer_workspace, float_workspace):
    """Find the best tree, or the best among the trees with the fewest root arcs if ``root_last``.

    The latter is the best tree under pairs (root arcs, score) in lexicographic order. No cycle
    contains a root arc, so reduced scores of other arcs need no such pair. Each arc of column 0
    counts 1, the others 0.

    Returns:
        FEASIBLE, INFEASIBLE or NOT_FINITE, as in :func:`best_arborescence`.
    """
    size, width = n + 1, _row_width(n)
    # incoming[m, h]: reduced score of the best arc from token h, or the root, into the node of row
    # m. modifiers[m, h]: the token in that node that the arc enters. A contracted cycle is stored
    # in the row of one of its members. Entries of its own tokens become −inf once the row is
    # searched.
    incoming = float_workspace[: size * width].reshape(size, width)
    modifiers = float_workspace[size * width : 2 * size * width].reshape(size, width)
    used = 2 * size * width
    paid = float_workspace[used : used + width]
    # Best scores of single tokens, and their heads. Heads have 64 bits, like the row of a token's
    # node.
    best = float_workspace[used + width : used + 2 * width]
    best_head = float_workspace[used + 2 * width : used + 3 * width].view(np.int64)
    row_of = float_workspace[used + 3 * width : used + 4 * width].view(np.int64)
    state = integer_workspace[:size]  # 0 untouched, 1 on the path, 2 attached
    path = integer_workspace[size : 2 * size]
    identity = integer_workspace[2 * size : 3 * size]  # the node that a row stands for
    position = integer_workspace[3 * size : 4 * size]  # position of a row on the path
    following = integer_workspace[4 * size : 5 * size]  # linked list of the tokens of a node
    last = integer_workspace[5 * size : 6 * size]
    parent = integer_workspace[6 * size : 8 * size]  # parent in the forest of contractions
    entering_head = integer_workspace[8 * size : 10 * size]
    entering_modifier = integer_workspace[10 * size : 12 * size]
    removed = integer_workspace[12 * size : 14 * size]
    written = integer_workspace[14 * size : 15 * size]  # whether a row of ``incoming`` is filled

    lowest = 1 if root_last else 0
    if column_maxima(scores, lowest, size, best, best_head):
        return NOT_FINITE
    row_of[:] = -1
    for node in range(size):
        state[node] = written[node] = 0
        identity[node] = row_of[node] = last[node] = node
        following[node] = -1
    for node in range(2 * size):
        parent[node] = -1
        removed[node] = 0
    state[0] = 2
    count = size

    for start in range(1, size):
        if state[row_of[start]] != 0:
            continue
        depth = 0
        path[0] = start
        position[start] = 0
        state[start] = 1
        while True:
            top = path[depth]
            node = identity[top]
            if written[top]:
                row = incoming[top]
                head = best_outside(row, row_of, top, lowest, size)
                if row[head] == -np.inf:
                    head = 0
                value = row[head]
                entering_modifier[node] = int(modifiers[top, head])
            else:
                head, value = best_head[top], best[top]
                if value == -np.inf:
                    head, value = 0, scores[0, top]
                entering_modifier[node] = top
            if value == -np.inf:
                return INFEASIBLE
            paid[top] = value
            entering_head[node] = head
            below = row_of[head]
            if state[below] == 2:
                for i in range(depth + 1):
                    state[path[i]] = 2
                break
            if state[below] == 0:
                depth += 1
                path[depth] = below
                position[below] = depth
                state[below] = 1
                continue
            # The path has closed a cycle from row ``below`` to its end: contract it into that row.
            into, labels = incoming[below], modifiers[below]
            # An arc is scored by its gain over the arc that it would replace, separately for each
            # member. The gain loses no digits to the scores of other members.
            cost = -paid[below]
            if not written[below]:
                into[:] = -np.inf
                merge_column(scores, below, 0.0, cost, below, size, into, labels)
                written[below], cost = 1, 0.0
            parent[identity[below]] = count
            identity[below] = count
            first = position[below]
            for i in range(first + 1, depth + 1):
                member = path[i]
                if written[member]:
                    for h in range(width):
                        into[h] += cost
                    rows = (into, incoming[member], labels, modifiers[member])
                    _merge(rows, (-paid[member],), 0, size)
                else:
                    merge_column(scores, member, cost, -paid[member], member, size, into, labels)
                cost = 0.0
                parent[identity[member]] = count
                following[last[below]] = member
                last[below] = last[member]
                token = member
                while token != -1:
                    row_of[token] = below
                    token = following[token]
            count += 1
            depth = first

    expand_cycles(count, entering_head, entering_modifier, parent, removed, heads)
    return FEASIBLE


@kernel
def expand_cycles(count, entering_head, entering_modifier, parent, removed, heads):
    """Write the heads, from the arcs that enter the nodes below ``count``, −1 for none.

    The arc that enters a cycle breaks it. So cycles are expanded, the last contracted first.
    """
    for node in range(count - 1, 0, -1):
        if removed[node] or entering_head[node] == -1:
            continue
        modifier = entering_modifier[node]
        heads[modifier] = entering_head[node]
        inner = modifier
        while inner != -1 and not removed[inner]:
            removed[inner] = 1
            if inner == node:
                break
            inner = parent[inner]


@kernel
def _copy_arcs(scores, n, direction, max_arc_length, result):
    """Copy the allowed arc scores like kernels.simd.arc_scores.read_arc_scores, in their precision.

    Float64 copies of float32 scores would make numba compile the following kernels twice.
    """
    wrong = False
    for head in range(n + 1):
        for modifier in range(n + 1):
            allowed = is_arc(head, modifier, direction, max_arc_length)
            wrong |= allowed and not scores[head, modifier] < np.inf
            result[head, modifier] = scores[head, modifier] if allowed else -np.inf
    return NOT_FINITE if wrong else FEASIBLE


@kernel
def best_arborescences(start, stop, batch, heads, status):
    """Write the best trees of the items start .. stop−1 as ``Family.best``.

    Scores are ``(B, N+1, N+1)``. Heads are ``(B, N+1)``, −1 for the root and padding.
    """
    scores, lengths, (direction, max_arc_length, single_root) = batch
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    matrix = np.empty((longest + 1) ** 2, dtype=scores.dtype)
    plain = direction == 0 and max_arc_length < 0
    integers = np.empty(integer_workspace_size(longest), dtype=np.int32)
    floats = np.empty(float_workspace_size(longest))
    for b in range(start, stop):
        n = lengths[b]
        for node in range(heads.shape[1]):
            heads[b, node] = -1
        square, read = scores[b], FEASIBLE
        # A single call in a loop, as above: first on the scores themselves, then on a copy with the
        # allowed arcs.
        for attempt in range(0 if plain else 1, 2):
            if attempt == 1:
                square = matrix[: (n + 1) * (n + 1)].reshape(n + 1, n + 1)
                read = _copy_arcs(scores[b], n, direction, max_arc_length, square)
            status[b] = NOT_FINITE
            if read == FEASIBLE:
                status[b] = best_arborescence(square, n, single_root, heads[b], integers, floats)
            if status[b] != NOT_FINITE:
                break


@kernel
def mark_arcs(heads, z):
    """Set ``z`` ``(B, N+1, N+1)`` to 1 at the arcs of ``heads`` ``(B, N+1)``; −1 is no head."""
    for b in range(heads.shape[0]):
        for modifier in range(heads.shape[1]):
            if heads[b, modifier] >= 0:
                z[b, heads[b, modifier], modifier] = 1.0
