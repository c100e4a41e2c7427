"""SparseMAP of many structures (factors), solved repeatedly for scores that change little.

The scores are called points. The active-set method starts from the support and the weights of the
previous call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.vector import sum_rows
from spacy_latent.kernels.sparsemap.support import (
    Support,
    add_at_parts,
    leave,
    let_in,
    row_size,
    scatter,
    shared_parts,
    sum_at_parts,
)

# Largest difference of the gradient between atoms of a solved support, relative to the points. If
# it is larger, the inverse has had too many updates, and is computed again.
DRIFTED = 1e-11


class FactorSupports(NamedTuple):
    """The supports of F factors, as kernels.sparsemap.support.Support for one.

    Attributes:
        atoms: ``(F, K, W)`` int32, edges counted from the factor's first, padded with −1.
        counts: ``(F,)``, the number of atoms of each.
        inverses, row_sums, weights: of each factor.
    """

    atoms: np.ndarray
    counts: np.ndarray
    inverses: np.ndarray
    row_sums: np.ndarray
    weights: np.ndarray


@kernel
def _support_of(supports, f, gradient):
    return Support(
        supports.atoms[f], supports.inverses[f], supports.row_sums[f], supports.weights[f], gradient
    )


@kernel
def _invert(atoms, count, indicator, inverse, row_sums):
    """Write the inverse of the positive definite integer matrix G + 11ᵀ, and its row sums."""
    for i in range(count):
        add_at_parts(atoms[i], 1, indicator)
        shared_parts(atoms, count, indicator, inverse[i])
        add_at_parts(atoms[i], -1, indicator)
        for j in range(count):
            inverse[i, j] += 1.0
    for k in range(count):
        pivot = 1.0 / inverse[k, k]
        inverse[k, k] = 1.0
        for j in range(count):
            inverse[k, j] *= pivot
        for i in range(count):
            if i != k:
                factor = inverse[i, k]
                inverse[i, k] = 0.0
                for j in range(count):
                    inverse[i, j] -= factor * inverse[k, j]
    for i in range(count):
        row_sums[i] = 0.0
        for j in range(count):
            row_sums[i] += inverse[i, j]


@kernel
def _solve(count, inverse, row_sums, upstream, result):
    """Write the change of the weights, with sum 0, for a change of the scores of the atoms."""
    sum_rows(upstream, inverse, count, result)
    total, sums = 0.0, 0.0
    for i in range(count):
        total += result[i]
        sums += row_sums[i]
    for i in range(count):
        result[i] -= total / sums * row_sums[i]


@kernel
def _spread(atoms, count, gradient, residual):
    """Write the gradient along each atom, less its mean over atoms, to ``residual``.

    Its largest absolute value is returned.
    """
    average = 0.0
    for i in range(count):
        residual[i] = sum_at_parts(atoms[i], gradient)
        average += residual[i] / count
    largest = 0.0
    for i in range(count):
        residual[i] -= average
        largest = max(largest, abs(residual[i]))
    return largest


@kernel
def _settle(support, count, points, indicator, workspace):
    """Move ``weights`` to the optimum for new points, over the support or a subset of it.

    The number of atoms that stay in the support is returned.
    """
    atoms, inverse, row_sums, weights, gradient = support
    direction, residual = workspace[0], workspace[1]
    kept = 0.0
    for i in range(count):
        kept += weights[i]
    gradient[:] = points
    scale = 1.0
    for i in range(count):
        weights[i] /= kept
        for part in atoms[i]:
            if part < 0:
                break
            gradient[part] -= weights[i]
            scale = max(scale, abs(points[part]))
    refreshed = False
    _spread(atoms, count, gradient, residual)
    while True:
        _solve(count, inverse, row_sums, residual, direction)
        step, blocking = 1.0, -1
        for i in range(count):
            if direction[i] < 0.0 and weights[i] + step * direction[i] < 0.0:
                step, blocking = -weights[i] / direction[i], i
        for i in range(count):
            change = step * direction[i]
            weights[i] = max(weights[i] + change, 0.0)
            add_at_parts(atoms[i], -change, gradient)
        if blocking >= 0:
            leave(blocking, count, support, workspace)
            count -= 1
        left = _spread(atoms, count, gradient, residual)
        if blocking < 0:
            if refreshed or left <= DRIFTED * scale:
                return count
            _invert(atoms, count, indicator, inverse, row_sums)
            refreshed = True


@kernel
def _longest(which, starts):
    longest = 1
    for f in which:
        longest = max(longest, starts[f + 1] - starts[f])
    return longest


@kernel
def restart(which, starts, points, gradients, supports):
    """Solve the factors ``which`` for new points over their old supports.

    starts[f] is the first edge of factor f in ``points`` and ``gradients``.
    """
    workspace = np.empty((2, row_size(supports.atoms.shape[1])))
    indicator = np.zeros(_longest(which, starts), dtype=np.int32)
    for f in which:
        edges = slice(starts[f], starts[f + 1])
        support = _support_of(supports, f, gradients[edges])
        supports.counts[f] = _settle(
            support, supports.counts[f], points[edges], indicator, workspace
        )


@kernel
def offer(which, candidates, starts, tolerances, gaps, gradients, supports):
    """Add the best atom under the gradient to the support of each factor of ``which``.

    Args:
        candidates: ``(len(which), W)`` int32, like rows of atoms, which have capacity for one more.
        gaps: ``(F,)``, written: how much better the atom was than the support; 0 if it is solved.

    Returns:
        ``(len(which),)`` bool: False for a factor whose atom is not better by more than the
        factor's tolerance. This factor is solved.
    """
    atoms, counts = supports.atoms, supports.counts
    workspace = np.empty((3, row_size(atoms.shape[1])))
    changed = np.zeros(len(which), dtype=np.bool_)
    indicator = np.zeros(_longest(which, starts), dtype=np.int32)
    for index in range(len(which)):
        f = which[index]
        atoms[f, counts[f]] = candidates[index]
        support = _support_of(supports, f, gradients[starts[f] : starts[f + 1]])
        # If an atom depends on the support, its gap is only rounding.
        after, gap = let_in(
            support, atoms.shape[2], counts[f], False, tolerances[f], False, indicator, workspace
        )
        changed[index] = after > 0
        gaps[f] = gap if after > 0 else 0.0
        if after > 0:
            counts[f] = after
    return changed


@kernel
def means(which, starts, atoms, counts, weights, result):
    """Write the weighted sums of atoms, per edge."""
    for f in which:
        own = result[starts[f] : starts[f + 1]]
        own[:] = 0.0
        scatter(atoms[f], counts[f], weights[f], own)


@kernel
def support_jacobian(starts, atoms, counts, inverses, row_sums, directions, result):
    """Write the product of each factor's Jacobian with ``directions``.

    The Jacobian is an orthogonal projection.
    """
    size = row_size(atoms.shape[1])
    upstream, change = np.empty(size), np.empty(size)
    for f in range(len(counts)):
        edges = slice(starts[f], starts[f + 1])
        result[edges] = 0.0
        average = 0.0
        for i in range(counts[f]):
            upstream[i] = sum_at_parts(atoms[f, i], directions[edges])
            average += upstream[i] / counts[f]
        for i in range(counts[f]):
            upstream[i] -= average
        _solve(counts[f], inverses[f], row_sums[f], upstream, change)
        scatter(atoms[f], counts[f], change, result[edges])
