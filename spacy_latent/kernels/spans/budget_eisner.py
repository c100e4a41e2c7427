"""The best projective dependency tree if words have a budget of modifiers.

The spans of Eisner (1996) have one more index: the number of modifiers that the head may have on
that side. Time is O(n³·k²) for a budget k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spacy_latent.kernels.core.compilation import kernel


@kernel
def table_size(n: int, budget: int) -> int:
    """Return the size of the larger tables of :func:`best_budget_tree`."""
    return (n + 1) * (n + 1) * (budget + 1) * (budget + 1)


@kernel
def best_budget_tree(
    scores: NDArray[np.float64], budget: int, single_root: bool, heads: NDArray[np.int32]
) -> bool:
    """Write the heads of the best projective tree with at most ``budget`` modifiers per token.

    The tree is over tokens 1..n. The root, node 0, may have any number of modifiers, or exactly one
    with ``single_root``.

    Args:
        scores: ``(n+1, n+1)``, ``[head, modifier]``, without NaN and +inf; −inf forbids an arc. The
            diagonal and column 0 must be −inf.
        heads: ``(n+1,)``, written; ``heads[0]`` is −1.

    Returns:
        Whether there is such a tree. If not, ``heads`` is undefined.
    """
    n = scores.shape[0] - 1
    heads[0] = -1
    if n == 0:
        return True
    budgets = budget + 1
    # Complete spans [left end, right end, c], whose head has at most c modifiers in them. Spans of
    # the root are at c = 0.
    right = np.full((n + 1, n + 1, budgets), -np.inf)
    left = np.full((n + 1, n + 1, budgets), -np.inf)
    # Incomplete spans, and the products between their ends, [left end, right end, c, d]. c bounds
    # the modifiers of the head, and d those of the modifier, on the side where the two face each
    # other.
    to_right = np.full((n + 1, n + 1, budgets, budgets), -np.inf)
    to_left = np.full((n + 1, n + 1, budgets, budgets), -np.inf)
    for i in range(n, -1, -1):
        right[i, i, :] = 0.0
        left[i, i, :] = 0.0
        for j in range(i + 1, n + 1):
            # The root's modifiers are not counted.
            for c in range(0 if i == 0 else 1, 1 if i == 0 else budgets):
                for d in range(budgets):
                    best = -np.inf
                    for q in range(i, i + 1 if i == 0 and single_root else j):
                        best = max(best, right[i, q, max(c - 1, 0)] + left[q + 1, j, d])
                    to_right[i, j, c, d] = best + scores[i, j]
            for c in range(1, budgets if i > 0 else 0):
                for d in range(budgets):
                    best = -np.inf
                    for q in range(i, j):
                        best = max(best, right[i, q, d] + left[q + 1, j, c - 1])
                    to_left[i, j, c, d] = best + scores[j, i]
            for c in range(budgets):
                best = -np.inf
                for m in range(i + 1, j + 1):
                    for d in range(budgets):
                        best = max(best, to_right[i, m, c, d] + right[m, j, budget - d])
                right[i, j, c] = best
                best = -np.inf
                for m in range(i, j):
                    for d in range(budgets):
                        best = max(best, to_left[m, j, c, d] + left[i, m, budget - d])
                left[i, j, c] = best
    if right[0, n, 0] == -np.inf:
        return False

    # Stack of spans to backtrack: the two ends, the number of modifiers allowed, and whether the
    # head is at the left.
    waiting = np.empty((2 * n + 3, 4), dtype=np.int64)
    waiting[0] = 0, n, 0, 1
    depth = 1
    while depth:
        depth -= 1
        i, j, c, rightward = waiting[depth]
        if i == j:
            continue
        modifier, d = -1, 0
        for m in range(i + 1, j + 1) if rightward else range(i, j):
            for own in range(budgets):
                if rightward:
                    value = to_right[i, m, c, own] + right[m, j, budget - own]
                else:
                    value = to_left[m, j, c, own] + left[i, m, budget - own]
                if modifier < 0 and value == (right[i, j, c] if rightward else left[i, j, c]):
                    modifier, d = m, own
        if rightward:
            heads[modifier] = i
            waiting[depth] = modifier, j, budget - d, 1
            low, high, of_left, of_right = i, modifier, max(c - 1, 0), d
            goal, arc = to_right[i, modifier, c, d], scores[i, modifier]
        else:
            heads[modifier] = j
            waiting[depth] = i, modifier, budget - d, 0
            low, high, of_left, of_right = modifier, j, d, c - 1
            goal, arc = to_left[modifier, j, c, d], scores[j, modifier]
        for q in range(low, high):
            if right[low, q, of_left] + left[q + 1, high, of_right] + arc == goal:
                waiting[depth + 1] = low, q, of_left, 1
                waiting[depth + 2] = q + 1, high, of_right, 0
                break
        depth += 3
    return True
