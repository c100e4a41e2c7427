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
    """Fill the charts of spans over the nodes from ``first_node`` to n.

    At the call the charts hold the empty sum. So does row n + 1, which stands for spans without
    tokens.

    Args:
        number: a number type of kernels.simd.row_numbers, with the weights of arcs, [head,
            modifier].
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

    # Stack of spans to backtrack: their two ends, and whether the head is at the left (1) or the
    # right (0).
    depth = 0
    if single_root:
        root, best = 0, -np.inf
        for r in range(1, n + 1):
            value = left[1, r] + right[r, n] + scores[0, r]
            if value > best:
                root, best = r, value
        if root == 0:
            return False
        heads[root] = 0
        integer_workspace[0], integer_workspace[1], integer_workspace[2] = 1, root, 0
        integer_workspace[3], integer_workspace[4], integer_workspace[5] = root, n, 1
        depth = 2
    else:
        if right[0, n] == -np.inf:
            return False
        integer_workspace[0], integer_workspace[1], integer_workspace[2] = 0, n, 1
        depth = 1
    while depth > 0:
        depth -= 1
        i = integer_workspace[3 * depth]
        j = integer_workspace[3 * depth + 1]
        if i == j:
            continue
        best_k, best = i, -np.inf
        if integer_workspace[3 * depth + 2] == 1:
            for k in range(i + 1, j + 1):
                value = to_right[i, k] + right[k, j]
                if value > best:
                    best_k, best = k, value
            heads[best_k] = i
            low, high = i, best_k
            integer_workspace[3 * depth] = best_k
            integer_workspace[3 * depth + 1] = j
        else:
            for k in range(i, j):
                value = left[i, k] + to_left[k, j]
                if value > best:
                    best_k, best = k, value
            heads[best_k] = j
            low, high = best_k, j
            integer_workspace[3 * depth] = i
            integer_workspace[3 * depth + 1] = best_k
        depth += 1
        split, best = low, -np.inf
        for k in range(low, high):
            value = right[low, k] + left[k + 1, high]
            if value > best:
                split, best = k, value
        integer_workspace[3 * depth] = low
        integer_workspace[3 * depth + 1] = split
        integer_workspace[3 * depth + 2] = 1
        integer_workspace[3 * depth + 3] = split + 1
        integer_workspace[3 * depth + 4] = high
        integer_workspace[3 * depth + 5] = 0
        depth += 2
    return True
