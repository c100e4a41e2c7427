"""The best projective dependency tree of one sentence (Eisner 1996), in O(n³).

Charts are ``(nodes, width)``, ``[left end, right end]``. A *complete* span has all modifiers of
its head on that side. An *incomplete* span is a head, a modifier and the tokens between them. Rows
are filled from the last to the first. A finished cell is pushed at once into all longer spans of
its row, so every inner loop is an element-wise maximum over contiguous rows. There are no back
pointers: backtracking searches the argument of each maximum, only for the cells of the best tree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.row_numbers import (
    Join,
    Maxima,
    add_row,
    copy_row,
    nothing,
    one,
    plus,
    pushes_of,
    read,
    times_weight,
    write,
)
from spacy_latent.kernels.simd.vector import LANES

BETWEEN, TO_RIGHT, TO_LEFT, RIGHT, LEFT = range(5)
CHARTS = 5
# Joins over the right end of spans that start at i and are split at k, as in the folder's README.
JOINS = [Join(BETWEEN, RIGHT, LEFT), Join(RIGHT, TO_RIGHT, RIGHT), Join(LEFT, LEFT, TO_LEFT)]
_push = pushes_of(JOINS)


@kernel(inline="always")
def chart_width(n: int) -> int:
    """Return the length of a row of a chart over n tokens and the root, in whole vectors.

    There is padding after the last column, since vectors of the outside pass may run past it.
    """
    return (n + 1 + LANES) // LANES * LANES


@kernel
def integer_workspace_size(n: int) -> int:
    """Return the int32 elements that :func:`best_projective_tree` needs for n tokens."""
    return 6 * (n + 2)


@kernel
def float_workspace_size(n: int) -> int:
    """Return the float64 elements that :func:`best_projective_tree` needs for n tokens."""
    return CHARTS * (n + 2) * chart_width(n)


@kernel(forceinline=True)
def fill_spans(number, n, first_node):
    """Fill the charts of spans over the nodes from ``first_node`` to n, for any type of number.

    At the call the charts hold the empty sum. So does row n + 1, which stands for spans without
    tokens. Weights are [head, modifier].
    """
    for i in range(n, first_node - 1, -1):
        write(number, RIGHT, i, i, one(number))
        write(number, LEFT, i, i, one(number))
        copy_row(number, BETWEEN, i, LEFT, i + 1, i // LANES * LANES, n + 1)
        for k in range(i + 1, n + 1):
            reach = read(number, BETWEEN, i, k)
            to_right = times_weight(number, reach, BETWEEN, i, k, i, k)
            to_left = times_weight(number, reach, BETWEEN, i, k, k, i) if i > 0 else nothing(number)
            write(number, TO_RIGHT, i, k, to_right)
            write(number, TO_LEFT, i, k, to_left)
            # right[i, k] is not stored here: a load of a vector soon after a store to one of its
            # numbers would stall. The push below starts at the vector that holds column k, and so
            # adds the arc times right[k, k] to right[i, k]. right[k, j] with j < k is the empty
            # sum. The cells left[i, k] get their arcs by add_row after the loop.
            right = plus(number, read(number, RIGHT, i, k), to_right)
            left = plus(number, read(number, LEFT, i, k), to_left)
            following, totals = (k + 1, k, k), (right, to_right, left)
            _push(number, i, k, following, totals, k // LANES * LANES, n + 1)
        add_row(number, LEFT, i, TO_LEFT, i, 0, n + 1)


@kernel
def put_span(stack, depth, i, j, from_left):
    """Write a span to a stack: its two ends, and whether its head is at the left."""
    stack[3 * depth], stack[3 * depth + 1], stack[3 * depth + 2] = i, j, from_left


@kernel
def put_sentence(stack, n, root, heads):
    """Write the spans of a whole sentence to a stack, and return their number.

    ``root`` is the only child of the root, or 0 if the root may have several.
    """
    if root == 0:
        put_span(stack, 0, 0, n, 1)
        return 1
    heads[root] = 0
    put_span(stack, 0, 1, root, 0)
    put_span(stack, 1, root, n, 1)
    return 2


@kernel
def _fill(
    scores: NDArray[np.float64], n: int, first_node: int, charts: NDArray[np.float64]
) -> None:
    for chart in (TO_LEFT, RIGHT, LEFT):
        charts[chart, first_node : n + 2] = -np.inf
    fill_spans(Maxima(scores, charts), n, first_node)


@kernel
def best_projective_tree(
    scores: NDArray[np.float64],
    n: int,
    single_root: bool,
    heads: NDArray[np.int32],
    integer_workspace: NDArray[np.int32],
    float_workspace: NDArray[np.float64],
) -> bool:
    """Write the heads of the highest-scoring projective tree over tokens 1..n, node 0 the root.

    Args:
        scores: ``(n+1, n+1)`` float64, C-contiguous, ``[head, modifier]``; −inf forbids an arc. The
            diagonal and column 0 are not read. No NaN, no +inf.
        single_root: whether exactly one token is attached to the root.
        heads: ``(n+1,)`` int32, written; ``heads[0]`` is −1. Ties are always broken in the same
            way.
        integer_workspace, float_workspace: at least :func:`integer_workspace_size` int32 and
            :func:`float_workspace_size` float64, C-contiguous, uninitialised.

    Returns:
        Whether there is such a tree. If not, ``heads`` is undefined.
    """
    heads[0] = -1
    if n == 0:
        return True
    width = chart_width(n)
    charts = float_workspace[: CHARTS * (n + 2) * width].reshape((CHARTS, n + 2, width))
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    right, left = charts[RIGHT], charts[LEFT]
    first_node = 1 if single_root else 0
    _fill(scores, n, first_node, charts)

    stack, root = integer_workspace, 0
    if single_root:
        best = -np.inf
        for r in range(1, n + 1):
            value = left[1, r] + right[r, n] + scores[0, r]
            if value > best:
                root, best = r, value
    if root == 0 and (single_root or right[0, n] == -np.inf):
        return False
    depth = put_sentence(stack, n, root, heads)
    while depth > 0:
        depth -= 1
        i, j = stack[3 * depth], stack[3 * depth + 1]
        if i == j:
            continue
        best_k, best = i, -np.inf
        if stack[3 * depth + 2] == 1:
            for k in range(i + 1, j + 1):
                value = to_right[i, k] + right[k, j]
                if value > best:
                    best_k, best = k, value
            heads[best_k] = i
            low, high = i, best_k
            put_span(stack, depth, best_k, j, 1)
        else:
            for k in range(i, j):
                value = left[i, k] + to_left[k, j]
                if value > best:
                    best_k, best = k, value
            heads[best_k] = j
            low, high = best_k, j
            put_span(stack, depth, i, best_k, 0)
        split, best = low, -np.inf
        for k in range(low, high):
            value = right[low, k] + left[k + 1, high]
            if value > best:
                split, best = k, value
        put_span(stack, depth + 1, low, split, 1)
        put_span(stack, depth + 2, split + 1, high, 0)
        depth += 3
    return True
