"""The best projective trees of LANES sentences at a time in SIMD lanes (see kernels.simd.lanes).

The algorithm is the same as in kernels.spans.eisner. Charts are laid out as in
kernels.spans.inside_outside_lanes, whose sums and derivatives use the same loop.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.lane_numbers import (
    WEIGHT,
    Maxima,
    columns_of,
    dots_of_rows,
    one,
    plus,
    plus_floor,
    plus_product,
    read,
    write,
    write_both,
    write_weighted,
)
from spacy_latent.kernels.simd.lanes import charts_size, interleave_row, lanes_shape
from spacy_latent.kernels.simd.vector import LANES, aligned_empty
from spacy_latent.kernels.spans.eisner import put_sentence, put_span

# Charts after WEIGHT, in the order of kernels.spans.eisner.
TO_RIGHT, TO_LEFT, RIGHT, LEFT = range(1, 5)
CHARTS = 5

_dots = dots_of_rows([(RIGHT, LEFT), (TO_RIGHT, RIGHT), (LEFT, TO_LEFT)], 1)


@kernel
def charts_of_trees(n):
    """Return a workspace for LANES sentences of at most n tokens."""
    return aligned_empty(charts_size(CHARTS, n)).reshape((CHARTS, *lanes_shape(n), LANES))


@kernel(forceinline=True)
def _arcs(number, i, j, between):
    """Write both arcs of a span, from the sum over splits between its ends; return their cells."""
    to_right = write_weighted(number, TO_RIGHT, i, j, between, i, j)
    to_left = write_weighted(number, TO_LEFT, i, j, between, j, i)
    return to_right, to_left


@kernel(forceinline=True)
def _column(number, i, j, between_i, between_m, right_i, right_m, left_i, left_m):
    """Complete the four sums of each of the spans (i, j) and (m, j), m = i + 1.

    The arguments hold the splits strictly between m and j. This adds the splits at their ends.
    """
    m = i + 1
    between_m = plus(number, between_m, read(number, RIGHT, m, j - 1))
    arc_right, arc_left = _arcs(number, m, j, between_m)
    right_m = plus(number, plus_floor(number, right_m), arc_right)
    left_m = plus(number, plus_floor(number, left_m), arc_left)
    right = write_both(number, RIGHT, m, j, right_m)
    left = write_both(number, LEFT, m, j, left_m)
    right_i = plus_floor(number, right_i)
    right_i = plus_product(number, right_i, read(number, TO_RIGHT, i, m), right)
    left_i = plus_floor(number, left_i)
    left_i = plus_product(number, left_i, read(number, LEFT, i, m), arc_left)
    between_i = plus(number, plus(number, between_i, read(number, RIGHT, i, j - 1)), left)
    arc_right, arc_left = _arcs(number, i, j, between_i)
    write_both(number, RIGHT, i, j, plus(number, right_i, arc_right))
    write_both(number, LEFT, i, j, plus(number, left_i, arc_left))


@kernel
def fill_spans(number, last, first_node):
    """Fill the first charts for an even number of nodes, first .. last, and any type of number."""
    columns = columns_of(number)
    for i in range(last - 1, first_node - 1, -2):
        m, above = i + 1, i * columns
        for node in (i, m):
            write(number, RIGHT, node, node, one(number))
            write(number, LEFT, node, node, one(number))
        arc_right, arc_left = _arcs(number, i, m, one(number))
        write_both(number, RIGHT, i, m, plus_floor(number, arc_right))
        write_both(number, LEFT, i, m, plus_floor(number, arc_left))
        for j in range(m + 1, last, 2):
            at = j * columns
            twelve = _dots(number, (above - 1, at, above, at, above, at), m + 1, j)
            b_i, more_b_i, b_m, more_b_m = twelve[0:4]
            r_i, more_r_i, r_m, more_r_m = twelve[4:8]
            l_i, more_l_i, l_m, more_l_m = twelve[8:12]
            _column(number, i, j, b_i, b_m, r_i, r_m, l_i, l_m)
            # Add the splits at j itself.
            left = read(number, LEFT, j, j + 1)
            right = read(number, RIGHT, j, j + 1)
            arc = read(number, TO_LEFT, j, j + 1)
            _column(
                *(number, i, j + 1),
                plus_product(number, more_b_i, read(number, RIGHT, i, j - 1), left),
                plus_product(number, more_b_m, read(number, RIGHT, m, j - 1), left),
                plus_product(number, more_r_i, read(number, TO_RIGHT, i, j), right),
                plus_product(number, more_r_m, read(number, TO_RIGHT, m, j), right),
                plus_product(number, more_l_i, read(number, LEFT, i, j), arc),
                plus_product(number, more_l_m, read(number, LEFT, m, j), arc),
            )


@kernel
def backtrack(charts, lane, n, first_node, heads, stack):
    """Write the heads of a lane's best tree, and return whether there is one."""
    right, left = charts[RIGHT], charts[LEFT]
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    heads[0] = -1
    if n == 0:
        return True
    root = 0
    if first_node == 1:
        best = -np.inf
        for r in range(1, n + 1):
            value = left[1, r, lane] + right[r, n, lane] + charts[WEIGHT, 0, r, lane]
            if value > best:
                root, best = r, value
    if root == 0 and (first_node == 1 or right[0, n, lane] == -np.inf):
        return False
    depth = put_sentence(stack, n, root, heads)
    while depth > 0:
        depth -= 1
        i, j = stack[3 * depth], stack[3 * depth + 1]
        if i == j:
            continue
        # The argument of a maximum is found by comparing with it. Charts are read along their rows.
        if stack[3 * depth + 2] == 1:
            best, k = right[i, j, lane], i + 1
            while k < j and to_right[i, k, lane] + right[j, k, lane] != best:
                k += 1
            heads[k] = i
            low, high = i, k
            put_span(stack, depth, k, j, 1)
        else:
            best, k = left[i, j, lane], i
            while k < j - 1 and left[i, k, lane] + to_left[j, k, lane] != best:
                k += 1
            heads[k] = j
            low, high = k, j
            put_span(stack, depth, i, k, 0)
        split, best = low, -np.inf
        for k in range(low, high):
            value = right[low, k, lane] + left[high, k + 1, lane]
            if value > best:
                split, best = k, value
        put_span(stack, depth + 1, low, split, 1)
        put_span(stack, depth + 2, split + 1, high, 0)
        depth += 3
    return True


@kernel
def set_scores(charts, matrices, sizes, longest, rows):
    """Write the scores of all sentences to the charts.

    Args:
        matrices: ``(LANES, M)`` float64. The first (n + 1)² numbers of a row are the scores of a
            sentence with n tokens, [head, modifier], with −inf in column 0 and on the diagonal.
            Each row is as large as the longest sentence needs, plus LANES numbers.
        sizes, longest: see :func:`best_trees_in_lanes`.
        rows: ``(2, LANES)`` int64, workspace.
    """
    chart, source = charts[WEIGHT], matrices.reshape(-1)
    starts, limits = rows[0], rows[1]
    # Pairs of rows may include the node after the last.
    nodes = longest + 2
    for h in range(nodes):
        for lane in range(LANES):
            inside = h <= sizes[lane]
            width = sizes[lane] + 1 if inside else 0
            starts[lane], limits[lane] = lane * matrices.shape[1] + h * width, width
        interleave_row(source, starts, limits, nodes, chart[h])


@kernel
def best_trees_in_lanes(sizes, longest, single_root, charts, heads, stack, solved):
    """Write the best trees of LANES sentences, with the same result as kernels.spans.eisner.

    Args:
        sizes: the number of tokens of each sentence, −1 for a free lane.
        longest: the largest size, not 0.
        charts: a workspace from :func:`charts_of_trees` for at least as many tokens, with the
            scores, which are kept.
        heads: ``(LANES, S)`` int32, S above each size, written.
        stack: 6·S int32, workspace.
        solved: ``(LANES,)``, written: whether there is a tree.
    """
    first_node = 1 if single_root else 0
    fill_spans(Maxima(charts), longest + (longest + 1 - first_node) % 2, first_node)
    for lane in range(LANES):
        n = sizes[lane]
        solved[lane] = n >= 0 and backtrack(charts, lane, n, first_node, heads[lane], stack)
