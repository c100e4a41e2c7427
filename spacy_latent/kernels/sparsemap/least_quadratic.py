"""The minimum of a convex quadratic function under bounds, by an active set.

It is a step of Newton's method for prices with bounds (see kernels.sparsemap.tree_prices).
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel

# A variable counts as dependent on others if its pivot is at most this fraction of its second
# derivative.
DEPENDENT = 1e-11
# A bound is only left for a slope above this fraction of the largest slope.
WORTHLESS = 1e-3
# Maximum changes of the active set, per variable. After them the value is still below the value at
# 0.
CHANGES = 2


@kernel(fastmath=ANY_ORDER, forceinline=True)
def dot(first, second, size):
    """Return the dot product of the first ``size`` numbers of both rows."""
    total = 0.0
    for i in range(size):
        total += first[i] * second[i]
    return total


@kernel
def solve(matrix, number, ridge, values):
    """Overwrite ``values`` with the solution of the linear system, by Cholesky factors.

    The factors overwrite the lower half of the matrix. Dependent variables are set to 0.
    """
    for j in range(number):
        whole = matrix[j, j] + ridge
        pivot = whole - dot(matrix[j], matrix[j], j)
        if pivot <= DEPENDENT * whole:
            matrix[j, j] = np.inf
        else:
            matrix[j, j] = np.sqrt(pivot)
        for i in range(j + 1, number):
            matrix[i, j] = (matrix[i, j] - dot(matrix[i], matrix[j], j)) / matrix[j, j]
    for i in range(number):
        values[i] = (values[i] - dot(matrix[i], values, i)) / matrix[i, i]
    for i in range(number - 1, -1, -1):
        values[i] /= matrix[i, i]
        for j in range(i):
            values[j] -= matrix[i, j] * values[i]


@kernel
def _least_of_free(slopes, matrix, ridge, step, free, goal):
    """Write the minimum over the free variables to ``goal``, with all others as in ``step``."""
    number, size = len(free), 0
    factors, places = np.empty((number, number)), np.empty(number, dtype=np.int64)
    values = np.empty(number)
    for i in range(number):
        if free[i]:
            places[size] = i
            size += 1
    for place in range(size):
        i = places[place]
        values[place] = -slopes[i]
        for j in range(number):
            if not free[j]:
                values[place] -= matrix[i, j] * step[j]
        for other in range(place + 1):
            factors[place, other] = matrix[i, places[other]]
    solve(factors, size, ridge, values)
    for place in range(size):
        goal[places[place]] = values[place]


@kernel
def _stop_at_bounds(lowest, highest, goal, step, free):
    """Move the free variables towards ``goal`` until some reach a bound, where they stay.

    The function returns whether all reach the goal.
    """
    fraction, reach = 1.0, np.full(len(free), np.inf)
    for i in range(len(free)):
        nearest = min(max(goal[i], lowest[i]), highest[i])
        if free[i] and nearest != goal[i]:
            reach[i] = (nearest - step[i]) / (goal[i] - step[i])
            fraction = min(fraction, reach[i])
    for i in range(len(free)):
        if free[i] and reach[i] <= fraction:
            step[i], free[i] = min(max(goal[i], lowest[i]), highest[i]), False
        elif free[i]:
            step[i] += fraction * (goal[i] - step[i])
    return not fraction < 1.0


@kernel
def find_least(slopes, matrix, number, ridge, lowest, highest, step):
    """Write the minimum of the function with the given slopes at 0 to ``step``, ``(number,)``.

    Args:
        matrix: second derivatives, ``(number, number)``; the lower half is read, and the upper half
            written.
        ridge: added to the diagonal; above 0.
        lowest, highest: bounds of each variable, at most and at least 0; they may be infinite.
    """
    free, goal, enough = np.ones(number, dtype=np.bool_), np.zeros(number), 0.0
    for i in range(number):
        step[i] = 0.0
        enough = max(enough, WORTHLESS * abs(slopes[i]))
        for j in range(i):
            matrix[j, i] = matrix[i, j]
    for _ in range(CHANGES * number):
        _least_of_free(slopes, matrix, ridge, step, free, goal)
        if not _stop_at_bounds(lowest, highest, goal, step, free):
            continue
        # Free the variable that a gradient step would move farthest from its bound.
        leaves, most = -1, enough
        for i in range(number):
            if not free[i]:
                there = step[i] - slopes[i] - dot(matrix[i], step, number)
                away = abs(min(max(there, lowest[i]), highest[i]) - step[i])
                if away > most:
                    leaves, most = i, away
        if leaves < 0:
            return
        free[leaves] = True
