"""Arcs that the constraints of a dependency structure allow, and reading of their scores."""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.status import FEASIBLE, NOT_FINITE
from spacy_latent.kernels.simd.vector import scan, widen


@kernel
def is_arc(head, modifier, direction, max_arc_length):
    """Return whether the constraints of a dependency structure allow an arc.

    Root arcs are always allowed.

    Args:
        direction: 0 any, −1 heads earlier, 1 heads later.
        max_arc_length: negative for no bound.
    """
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
def subtract_best(scores, n):
    """Subtract the best score of each token's heads from all of them.

    The sum of the best scores is returned, −inf if a token has no head.
    """
    shift = 0.0
    for m in range(1, n + 1):
        best = -np.inf
        for h in range(n + 1):
            best = max(best, scores[h, m])
        shift += best
        for h in range(n + 1):
            scores[h, m] -= best if scores[h, m] > -np.inf else 0.0
    return shift


@kernel
def is_finite(matrix, size):
    """Return whether the first ``size`` rows and columns are finite."""
    total = 0.0
    for i in range(size):
        for j in range(size):
            total += 0.0 * matrix[i, j]
    return total == 0.0


@kernel
def read_arc_scores(scores, n, direction, max_arc_length, result):
    """Copy allowed arc scores of one sentence to ``result``, and −inf elsewhere.

    Both are [head, modifier]; ``result`` is float64 ``(n+1, n+1 or more)``. The function returns
    FEASIBLE or NOT_FINITE.
    """
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
            # The score that is not finite may belong to a forbidden arc.
            _, not_finite = scan(target)
            wrong |= not_finite
    return NOT_FINITE if wrong else FEASIBLE
