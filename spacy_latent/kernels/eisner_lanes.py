"""The best projective trees of LANES sentences side by side, see kernels.lanes: the algorithm of
kernels.eisner with charts and pairs of rows as in kernels.inside_outside_lanes."""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.compilation import kernel
from spacy_latent.kernels.lanes import (
    add,
    dots_of_rows,
    every,
    interleave_row,
    lanes_shape,
    larger_sum,
    load,
    maximum,
    store,
    store_both,
)
from spacy_latent.kernels.vector import LANES, aligned_empty

SCORE, RIGHT, LEFT, TO_RIGHT, TO_LEFT = range(5)
CHARTS = 5

_best = dots_of_rows([[(0, 1)], [(2, 3)], [(4, 5)]], 1, tropical=True)


@kernel
def charts_of_trees(n):
    """Workspace for LANES sentences of at most n tokens."""
    rows, columns = lanes_shape(n)
    room = aligned_empty(CHARTS * rows * columns * LANES)
    return room.reshape((CHARTS, rows, columns, LANES))


@kernel(forceinline=True)
def _arcs(charts, i, j, between):
    """RETURNS: the best of both arcs of a span, from that of what lies between."""
    to_right = add(between, load(charts[SCORE], i, j))
    to_left = add(between, load(charts[SCORE], j, i))
    store_both(charts[TO_RIGHT], i, j, to_right)
    store_both(charts[TO_LEFT], i, j, to_left)
    return to_right, to_left


@kernel(forceinline=True)
def _column(charts, i, j, between_i, between_m, right_i, right_m, left_i, left_m):
    """Finish the spans from i and m = i + 1 to j, from the best of splits between m and j."""
    m = i + 1
    right, left = charts[RIGHT], charts[LEFT]
    between_m = maximum(load(right, m, j - 1), between_m)
    arc_right, arc_left = _arcs(charts, m, j, between_m)
    right_m, left_m = maximum(arc_right, right_m), maximum(arc_left, left_m)
    store_both(right, m, j, right_m)
    store_both(left, m, j, left_m)
    right_i = larger_sum(right_i, load(charts[TO_RIGHT], i, m), right_m)
    left_i = larger_sum(left_i, load(left, i, m), arc_left)
    between_i = maximum(maximum(load(right, i, j - 1), between_i), left_m)
    arc_right, arc_left = _arcs(charts, i, j, between_i)
    store_both(right, i, j, maximum(arc_right, right_i))
    store_both(left, i, j, maximum(arc_left, left_i))


@kernel
def _fill(charts, last, first):
    """Fill the charts of the nodes first .. last, an even number."""
    right, left = charts[RIGHT], charts[LEFT]
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    width = right.shape[1]
    for i in range(last - 1, first - 1, -2):
        m, above = i + 1, i * width
        for node in (i, m):
            store(right, node, node, every(0.0))
            store(left, node, node, every(0.0))
        arc_right, arc_left = _arcs(charts, i, m, every(0.0))
        store_both(right, i, m, arc_right)
        store_both(left, i, m, arc_left)
        for j in range(m + 1, last, 2):
            at = j * width
            twelve = _best(
                (right, left, to_right, right, left, to_left),
                (above - 1, at, above, at, above, at),
                m + 1,
                j,
            )
            b_i, more_b_i, b_m, more_b_m = twelve[0:4]
            r_i, more_r_i, r_m, more_r_m = twelve[4:8]
            l_i, more_l_i, l_m, more_l_m = twelve[8:12]
            _column(charts, i, j, b_i, b_m, r_i, r_m, l_i, l_m)
            # The splits at j itself.
            left_j, right_j, to_j = (
                load(left, j, j + 1),
                load(right, j, j + 1),
                load(to_left, j, j + 1),
            )
            _column(
                *(charts, i, j + 1),
                larger_sum(more_b_i, load(right, i, j - 1), left_j),
                larger_sum(more_b_m, load(right, m, j - 1), left_j),
                larger_sum(more_r_i, load(to_right, i, j), right_j),
                larger_sum(more_r_m, load(to_right, m, j), right_j),
                larger_sum(more_l_i, load(left, i, j), to_j),
                larger_sum(more_l_m, load(left, m, j), to_j),
            )


@kernel
def _trace(charts, lane, n, first, heads, stack):
    """Write the heads of a lane's best tree. RETURNS: whether there is one."""
    right, left = charts[RIGHT], charts[LEFT]
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    heads[0] = -1
    if n == 0:
        return True
    # Spans to open: their two ends, and whether the head is at the left (1) or the right (0).
    if first == 1:
        root, best = 0, -np.inf
        for r in range(1, n + 1):
            value = left[1, r, lane] + right[r, n, lane] + charts[SCORE, 0, r, lane]
            if value > best:
                root, best = r, value
        if root == 0:
            return False
        heads[root] = 0
        stack[0], stack[1], stack[2] = 1, root, 0
        stack[3], stack[4], stack[5] = root, n, 1
        depth = 2
    else:
        if right[0, n, lane] == -np.inf:
            return False
        stack[0], stack[1], stack[2] = 0, n, 1
        depth = 1
    while depth > 0:
        depth -= 1
        i, j = stack[3 * depth], stack[3 * depth + 1]
        if i == j:
            continue
        # What made a maximum is equal to it; charts are read along their rows.
        if stack[3 * depth + 2] == 1:
            best, k = right[i, j, lane], i + 1
            while k < j and to_right[i, k, lane] + right[j, k, lane] != best:
                k += 1
            heads[k] = i
            low, high = i, k
            stack[3 * depth], stack[3 * depth + 1] = k, j
        else:
            best, k = left[i, j, lane], i
            while k < j - 1 and left[i, k, lane] + to_left[j, k, lane] != best:
                k += 1
            heads[k] = j
            low, high = k, j
            stack[3 * depth], stack[3 * depth + 1] = i, k
        depth += 1
        split, best = low, -np.inf
        for k in range(low, high):
            value = right[low, k, lane] + left[high, k + 1, lane]
            if value > best:
                split, best = k, value
        stack[3 * depth], stack[3 * depth + 1], stack[3 * depth + 2] = low, split, 1
        stack[3 * depth + 3], stack[3 * depth + 4], stack[3 * depth + 5] = split + 1, high, 0
        depth += 2
    return True


@kernel
def set_scores(charts, matrices, sizes, longest, rows):
    """Write the scores of all sentences.

    matrices: ``(LANES, room)`` float64: of each sentence with n tokens the first (n + 1)² numbers,
        [head, modifier]; column 0 and the diagonal are −inf. Room for as many of the longest, and
        LANES more.
    sizes, longest: as in :func:`best_trees_beside`.
    rows: ``(2, LANES)`` int64, workspace.
    """
    chart, source = charts[SCORE], matrices.reshape(-1)
    starts, limits = rows[0], rows[1]
    # The node after the last may be worked on, see :func:`best_trees_beside`.
    nodes = longest + 2
    for h in range(nodes):
        for lane in range(LANES):
            inside = h <= sizes[lane]
            width = sizes[lane] + 1 if inside else 0
            starts[lane], limits[lane] = lane * matrices.shape[1] + h * width, width
        interleave_row(source, starts, limits, nodes, chart[h])


@kernel
def best_trees_beside(sizes, longest, single_root, charts, heads, stack, solved):
    """The best trees of LANES sentences, those that kernels.eisner finds.

    sizes: tokens of each; −1 for no sentence. longest: the largest, not 0.
    charts: of :func:`charts_of_trees` for as many tokens or more; the scores are kept.
    heads: ``(LANES, S)`` int32, S above each size, written; solved: ``(LANES,)``, written: whether
        there is a tree.
    stack: 6·S int32, workspace.
    """
    first = 1 if single_root else 0
    _fill(charts, longest + (longest + 1 - first) % 2, first)
    for lane in range(LANES):
        n = sizes[lane]
        solved[lane] = n >= 0 and _trace(charts, lane, n, first, heads[lane], stack)
