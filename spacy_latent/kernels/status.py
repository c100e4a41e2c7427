"""Status codes that kernels set for each item, and that Python turns into errors."""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.compilation import kernel
from spacy_latent.kernels.vector import scan, widen

FEASIBLE = 0
INFEASIBLE = 1
NOT_FINITE = 2
# Left to another kernel.
UNSOLVED = 3
# Scores so large that sums of them keep no digit that a probability could be told by.
TOO_LARGE = 4
# Of a difference of numbers above this, seven digits after the point are left at most.
LARGE = 1e9


@kernel
def is_arc(head, modifier, direction, max_arc_length):
    """Whether the constraints of a dependency structure allow an arc. direction: 0 any, −1 heads
    earlier, 1 heads later. max_arc_length: negative for no bound. Root arcs are always allowed."""
    if modifier == 0 or head == modifier:
        return False
    if head == 0:
        return True
    if direction < 0 and head > modifier:
        return False
    if direction > 0 and head < modifier:
        return False
    return max_arc_length < 0 or abs(head - modifier) <= max_arc_length


@kernel
def is_finite(matrix, size):
    """Whether the first ``size`` rows and columns are."""
    total = 0.0
    for i in range(size):
        for j in range(size):
            total += 0.0 * matrix[i, j]
    return total == 0.0


@kernel
def read_arc_scores(scores, n, direction, max_arc_length, result):
    """Copy allowed arc scores of one sentence to float64 ``result`` ``(n+1, n+1 or more)``, and
    −inf elsewhere; both [head, modifier]. RETURNS: FEASIBLE or NOT_FINITE."""
    plain = direction == 0 and max_arc_length < 0
    wrong = False
    for head in range(n + 1):
        source, target = scores[head], result[head]
        if plain or head == 0:
            suspect = widen(source, target, n + 1)
            target[0] = -np.inf
            target[head] = -np.inf
        else:
            for modifier in range(n + 1):
                allowed = is_arc(head, modifier, direction, max_arc_length)
                target[modifier] = source[modifier] if allowed else -np.inf
            suspect = True
        for modifier in range(n + 1, result.shape[1]):
            target[modifier] = -np.inf
        if suspect:
            # Perhaps only what is no arc.
            _, not_finite = scan(target)
            wrong |= not_finite
    return NOT_FINITE if wrong else FEASIBLE
