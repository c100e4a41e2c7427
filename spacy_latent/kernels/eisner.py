"""The best projective dependency tree of one sentence (Eisner 1996), O(n³).

Charts are ``(nodes, stride)``, ``[left end, right end]``. A *complete* span has found all modifiers
of its head on that side; an *incomplete* one is a head, a modifier and what lies between them. Rows
are filled from the last to the first, and a finished cell is pushed into all wider spans of its row
at once: every inner loop is an element-wise maximum over contiguous rows. The arguments of the
maxima are found only for the cells of the best tree, while tracing back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spacy_latent.kernels.compilation import kernel
from spacy_latent.kernels.vector import LANES, fused_loop

CHARTS = 5
# Over the right end of spans that start at i and are split at k.
_push = fused_loop([("max", 0, ((0, 3),)), ("max", 1, ((1, 4),)), ("max", 2, ((2, 5),))])
_push_arcs = fused_loop([("max", 0, ((0, 1),))])


@kernel(inline="always")
def chart_stride(n: int) -> int:
    """Length of a row of a chart over n tokens and the root: whole vectors."""
    return (n + LANES) // LANES * LANES


@kernel
def integer_workspace_size(n: int) -> int:
    """Elements of int32 that :func:`best_projective_tree` needs for n tokens."""
    return 6 * (n + 2)


@kernel
def float_workspace_size(n: int) -> int:
    """Elements of float64 that :func:`best_projective_tree` needs for n tokens."""
    return CHARTS * (n + 2) * chart_stride(n)


@kernel
def _fill(
    scores: NDArray[np.float64],
    n: int,
    first: int,
    between: NDArray[np.float64],
    to_right: NDArray[np.float64],
    to_left: NDArray[np.float64],
    right: NDArray[np.float64],
    left: NDArray[np.float64],
) -> None:
    right[first : n + 2] = -np.inf
    left[first : n + 2] = -np.inf
    to_left[first : n + 2] = -np.inf
    for i in range(n, first - 1, -1):
        best = between[i]
        right_row, left_row = right[i], left[i]
        best[:] = -np.inf
        right_row[i] = 0.0
        left_row[i] = 0.0
        below = left[i + 1]
        for j in range(i + 1, n + 1):
            best[j] = below[j]
        for k in range(i + 1, n + 1):
            reach = best[k]
            arc_right = reach + scores[i, k]
            arc_left = reach + scores[k, i] if i > 0 else -np.inf
            to_right[i, k] = arc_right
            to_left[i, k] = arc_left
            # Cells are written by whole vectors only: reading a vector soon after one number in it
            # was written waits. So right[i, k] gets its arc in the loop, from right[k, k] = 0, and
            # left[i, k] when the row is done. What lies left of k there is −inf.
            whole_right = max(right_row[k], arc_right)
            whole_left = max(left_row[k], arc_left)
            _push(
                (best, right_row, left_row, left[k + 1], right[k], to_left[k]),
                (whole_right, arc_right, whole_left),
                k // LANES * LANES,
                n + 1,
            )
        _push_arcs((left_row, to_left[i]), (0.0,), 0, n + 1)


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

    scores: ``(n+1, n+1)`` float64, C-contiguous, ``[head, modifier]``; −inf forbids an arc. The
        diagonal and column 0 are not read. No NaN, no +inf.
    single_root: exactly one token is attached to the root.
    heads: ``(n+1,)`` int32, written; ``heads[0]`` is −1. Of equally good trees the same one is
        found each time.
    integer_workspace, float_workspace: scratch of at least :func:`integer_workspace_size` int32 and
        :func:`float_workspace_size` float64, C-contiguous; what they hold does not matter.
    RETURNS: whether there is such a tree; if not, ``heads`` is undefined.
    """
    heads[0] = -1
    if n == 0:
        return True
    stride = chart_stride(n)
    size = (n + 2) * stride
    between = float_workspace[:size].reshape((n + 2, stride))
    to_right = float_workspace[size : 2 * size].reshape((n + 2, stride))
    to_left = float_workspace[2 * size : 3 * size].reshape((n + 2, stride))
    right = float_workspace[3 * size : 4 * size].reshape((n + 2, stride))
    left = float_workspace[4 * size : 5 * size].reshape((n + 2, stride))
    first = 1 if single_root else 0
    _fill(scores, n, first, between, to_right, to_left, right, left)

    # Spans to open: their two ends, and whether the head is at the left (1) or the right (0).
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
