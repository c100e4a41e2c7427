"""Projections onto the convex hulls of logic factors, and products with their Jacobians.

A factor is a run of edges, one for each of its parts. Three kinds are enough, since the others are
these kinds with negated inputs. For example, an or of n inputs means that at most n − 1 of the
negated inputs are true.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE

AT_MOST = 0
EXACTLY = 1
OR_OUT = 2

# How a coordinate of a factor's solution depends on the input point: not at all, alone, or as one
# of a group. The coordinates of a tied group are equal, except for their signs. The signed sum of
# any other group is constant.
FIXED = 0
FREE = 1
IN_GROUP = 2
IN_GROUP_NEGATED = 3


# Solutions often lie on vertices. A value within this distance of 0 or 1 is rounding, and its
# coordinate is not free.
ROUNDING = 1e-12


@kernel
def _clip(value):
    if value < ROUNDING:
        return 0.0
    return 1.0 if value > 1.0 - ROUNDING else value


@kernel
def _total(points, size, threshold):
    total = 0.0
    for i in range(size):
        total += min(max(points[i] - threshold, 0.0), 1.0)
    return total


@kernel
def _threshold(points, size, goal, breakpoints):
    """Return t such that Σ clip(w − t, 0, 1) is ``goal``, between 0 and ``size``."""
    for i in range(size):
        breakpoints[i] = points[i]
        breakpoints[size + i] = points[i] - 1.0
    ordered = np.sort(breakpoints[: 2 * size])
    # The sum falls with t and is linear between neighbouring breakpoints.
    low, high = 0, 2 * size - 1
    while low < high:
        middle = (low + high) // 2
        if _total(points, size, ordered[middle]) <= goal + ROUNDING:
            high = middle
        else:
            low = middle + 1
    if low == 0:
        return ordered[0]
    total, free = -goal, 0
    for i in range(size):
        if points[i] - 1.0 >= ordered[low]:
            total += 1.0
        elif points[i] > ordered[low - 1]:
            total += points[i]
            free += 1
    return total / free if free else ordered[low]


@kernel
def project_exactly(points, size, limit, result, breakpoints):
    """Project onto {0 ≤ y ≤ 1, Σy = limit} in O(n log n), and return whether there is such a point.

    ±inf fixes a coordinate to 1 or 0. ``breakpoints`` is a workspace, twice ``size``.
    """
    ones, finite, reference = 0, 0, -np.inf
    for i in range(size):
        if points[i] == np.inf:
            ones += 1
        elif points[i] > -np.inf:
            reference = max(reference, points[i])
            finite += 1
    if limit < ones or limit > ones + finite:
        return False
    threshold = 0.0
    shifted = np.empty(finite)
    for _ in range(2 if finite else 0):
        # Relative to the largest coordinate, then again to the one nearest to the threshold.
        # Coordinates of large magnitude that tie then still tie.
        filled = 0
        for i in range(size):
            if -np.inf < points[i] < np.inf:
                shifted[filled] = points[i] - reference
                filled += 1
        threshold = _threshold(shifted, finite, limit - ones, breakpoints)
        nearest = np.inf
        before = reference
        for i in range(size):
            distance = abs(points[i] - before - threshold)
            if distance < nearest:
                nearest, reference = distance, points[i]
        threshold -= reference - before
    for i in range(size):
        if points[i] == np.inf:
            result[i] = 1.0
        else:
            result[i] = _clip(points[i] - reference - threshold) if finite else 0.0
    return True


@kernel
def _project(kind, limit, points, size, result, marks, work):
    """Project onto a factor without negated inputs; return the status, and if its group is tied."""
    if kind == OR_OUT:
        return _project_or_out(points, size, result, marks, work)
    if kind == AT_MOST:
        total = 0.0
        for i in range(size):
            result[i] = _clip(points[i])
            marks[i] = FREE if 0.0 < result[i] < 1.0 else FIXED
            total += result[i]
        # If the sum is exactly the limit, another factor may hold the point there. The constraint
        # then counts as active.
        if total < limit - ROUNDING:
            return FEASIBLE, False
    if not project_exactly(points, size, limit, result, work):
        return INFEASIBLE, False
    for i in range(size):
        marks[i] = IN_GROUP if 0.0 < result[i] < 1.0 else FIXED
    return FEASIBLE, False


@kernel
def _project_or_out(points, size, result, marks, work):
    """Project onto {y_i ≤ t ≤ Σy, 0 ≤ y, t ≤ 1}, with t as the last coordinate.

    The method is from Martins et al. (2015), section 5.2.
    """
    last = size - 1
    largest = 0.0
    for i in range(last):
        largest = max(largest, points[i])
    if points[last] == -np.inf:
        for i in range(size):
            result[i] = 0.0
            marks[i] = FIXED
        return (INFEASIBLE if largest == np.inf else FEASIBLE), False
    # Project onto {y ≤ t} alone: t is the mean of itself and of the inputs above it.
    order = np.argsort(-points[:last])
    total, pooled = points[last], 0
    output = total
    if largest == np.inf:
        output = 1.0
        while pooled < last and points[order[pooled]] == np.inf:
            pooled += 1
    else:
        while pooled < last and points[order[pooled]] > output:
            total += points[order[pooled]]
            pooled += 1
            output = total / (pooled + 1)
    inside = 0.0 < _clip(output) < 1.0
    inputs = 0.0
    for place in range(last):
        i = order[place]
        result[i] = _clip(output if place < pooled else points[i])
        if place < pooled:
            marks[i] = IN_GROUP if inside else FIXED
        else:
            marks[i] = FREE if 0.0 < result[i] < 1.0 else FIXED
        inputs += result[i]
    result[last] = _clip(output)
    marks[last] = (IN_GROUP if pooled else FREE) if inside else FIXED
    if inputs >= result[last] - ROUNDING:
        return FEASIBLE, pooled > 0
    # Otherwise t = Σy: an xor of the inputs and the negated output.
    flipped = points.copy()
    flipped[last] = 1.0 - points[last]
    if not project_exactly(flipped, size, 1.0, result, work):
        return INFEASIBLE, False
    for i in range(size):
        marks[i] = IN_GROUP if 0.0 < result[i] < 1.0 else FIXED
    result[last] = 1.0 - result[last]
    if marks[last] == IN_GROUP:
        marks[last] = IN_GROUP_NEGATED
    return FEASIBLE, False


class Factors(NamedTuple):
    """F factors and their edges.

    Attributes:
        kinds, limits: ``(F,)``.
        starts: ``(F + 1,)``; factor f has the edges from ``starts[f]`` to ``starts[f + 1]``. The
            last edge of an OR_OUT factor is its output.
        negated: per edge.
    """

    kinds: np.ndarray
    limits: np.ndarray
    starts: np.ndarray
    negated: np.ndarray


@kernel
def project_logic(live, factors, points, result, marks, tied, status):
    """Project ``points`` onto the hull of each live factor.

    Args:
        live: ``(F,)``.
        points: per edge. A point of −inf fixes its edge to 0.
        result: per edge, written: the projection.
        marks: per edge, written: how the projection depends on the points (see FIXED).
        tied, status: ``(F,)``, written.
    """
    kinds, limits, starts, negated = factors
    widest = 1
    for f in range(len(kinds)):
        widest = max(widest, starts[f + 1] - starts[f])
    own, work = np.empty(widest), np.empty(2 * widest)
    for f in range(len(kinds)):
        if not live[f]:
            continue
        first = starts[f]
        size = starts[f + 1] - first
        for i in range(size):
            point = points[first + i]
            own[i] = 1.0 - point if negated[first + i] else point
        own_result, own_marks = result[first : first + size], marks[first : first + size]
        status[f], tied[f] = _project(
            kinds[f], limits[f], own[:size], size, own_result, own_marks, work
        )
        for i in range(size):
            if negated[first + i]:
                own_result[i] = 1.0 - own_result[i]
                if own_marks[i] == IN_GROUP:
                    own_marks[i] = IN_GROUP_NEGATED
                elif own_marks[i] == IN_GROUP_NEGATED:
                    own_marks[i] = IN_GROUP


@kernel
def logic_jacobian(starts, marks, tied, directions, result):
    """Write the product of each factor's Jacobian with ``directions``.

    The Jacobian is an orthogonal projection.
    """
    for f in range(len(tied)):
        total, count = 0.0, 0
        for e in range(starts[f], starts[f + 1]):
            if marks[e] >= IN_GROUP:
                total += directions[e] if marks[e] == IN_GROUP else -directions[e]
                count += 1
        mean = total / max(count, 1)
        for e in range(starts[f], starts[f + 1]):
            if marks[e] == FIXED:
                result[e] = 0.0
            elif marks[e] == FREE:
                result[e] = directions[e]
            else:
                common = mean if marks[e] == IN_GROUP else -mean
                result[e] = common if tied[f] else directions[e] - common
