"""The active-set method of SparseMAP for one item: its linear algebra, on lists of parts.

An atom is a row of part numbers, so entries of the Gram matrix are counts of shared parts. Atoms
are affinely but not linearly independent; G + 11ᵀ is invertible where G is not, and gives the same
solutions, since weights sum to 1. Its inverse is kept up to date, one atom at a time.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.compilation import kernel
from spacy_latent.kernels.vector import LANES, fused_loop

# Entries of G + 11ᵀ are integers, so a smaller pivot is rounding: the atom depends on others.
DEPENDENT = 1e-9
_collect = fused_loop([("add", 0, ((0, 1), (1, 2), (2, 3), (3, 4)))])
_collect_one = fused_loop([("add", 0, ((0, 1),))])
_update = fused_loop([("add", i, ((i, 4),)) for i in range(4)])


@kernel
def row_room(room):
    """Numbers in a row of the inverse for ``room`` atoms: whole vectors."""
    return (room + LANES - 1) // LANES * LANES


@kernel
def sum_rows(factors, inverse, count, result):
    """result[j] = Σ_i factors[i] · inverse[i, j], for i and j below ``count``."""
    for j in range(count):
        result[j] = 0.0
    whole = count // 4 * 4
    for i in range(0, whole, 4):
        _collect(
            (result, inverse[i], inverse[i + 1], inverse[i + 2], inverse[i + 3]),
            (factors[i], factors[i + 1], factors[i + 2], factors[i + 3]),
            0,
            count,
        )
    for i in range(whole, count):
        _collect_one((result, inverse[i]), (factors[i],), 0, count)


@kernel
def _add_outer(factors, row, count, inverse):
    """inverse[i, j] += factors[i] · row[j], for i and j below ``count``."""
    whole = count // 4 * 4
    for i in range(0, whole, 4):
        _update(
            (inverse[i], inverse[i + 1], inverse[i + 2], inverse[i + 3], row),
            (factors[i], factors[i + 1], factors[i + 2], factors[i + 3]),
            0,
            count,
        )
    for i in range(whole, count):
        _collect_one((inverse[i], row), (factors[i],), 0, count)


@kernel
def shared_parts(atoms, count, indicator, column):
    """``column[i]``: parts that atom i shares with the one that ``indicator`` marks. Rows of atoms
    are padded with −1."""
    for i in range(count):
        total = 0
        for part in atoms[i]:
            if part < 0:
                break
            total += indicator[part]
        column[i] = total


@kernel
def add_at_parts(atom, change, result):
    """Add to ``result`` at the parts of an atom."""
    size = len(atom)
    if size > 0 and atom[size - 1] >= 0:
        # A loop whose end is known takes less than half the time; and numba does not look for
        # places counted from the end where numbers have no sign.
        for k in range(size):
            result[np.uint32(atom[k])] += change
        return
    for part in atom:
        if part < 0:
            break
        result[part] += change


@kernel
def scatter(atoms, count, values, result):
    """Add to ``result``, at the parts of each atom, its value."""
    for i in range(count):
        add_at_parts(atoms[i], values[i], result)


@kernel
def enter(
    atoms,
    width,
    count,
    size,
    gap,
    column,
    inverse,
    row_sums,
    weights,
    gradient,
    direction,
    solved,
):
    """Let the atom in row ``count`` into the support and move to the optimum of the new support.

    width: rows of ``atoms`` are read up to here: to the end, or as far as any has parts. Not a part
        of the array: numba does not see that its rows are contiguous.
    count: atoms of the support, at whose optimum ``weights`` and ``gradient``, s − μ, are.
    size: number of parts of the new atom.
    gap: (s − μ)·(a − μ) of the new atom a, positive.
    column: parts that it shares with each atom of the support.
    inverse, row_sums: (G + 11ᵀ)⁻¹ and its product with 1. Rows of the inverse, ``direction`` and
        ``solved`` have :func:`row_room` numbers.
    RETURNS: the new number of atoms; 0, with nothing changed, where the new atom
        depends on the others.
    """
    new = count
    for i in range(count):
        direction[i] = column[i] + 1.0
    sum_rows(direction, inverse, count, solved)
    pivot = size + 1.0
    defect = 1.0
    for i in range(count):
        pivot -= direction[i] * solved[i]
        defect -= direction[i] * row_sums[i]
    if pivot < DEPENDENT:
        return 0
    solved[new] = -1.0
    weights[new] = 0.0
    row_sums[new] = 0.0
    for i in range(count + 1):
        inverse[i, new] = 0.0
        inverse[new, i] = 0.0
    count += 1
    for i in range(count):
        direction[i] = solved[i] / pivot
        row_sums[i] -= direction[i] * defect
    _add_outer(direction, solved, count, inverse)
    # The gradient is the same along every atom of the support and larger by `gap` along the new
    # one: the direction to the optimum is the new atom's column of the inverse, summing to zero.
    while True:
        total, sums = 0.0, 0.0
        for i in range(count):
            total += inverse[new, i]
            sums += row_sums[i]
        factor = total / sums
        step, blocking = 1.0, -1
        for i in range(count):
            direction[i] = gap * (inverse[new, i] - factor * row_sums[i])
            if direction[i] < 0.0 and i != new and weights[i] + step * direction[i] < 0.0:
                step, blocking = -weights[i] / direction[i], i
        for i in range(count):
            change = step * direction[i]
            weights[i] = max(weights[i] + change, 0.0)
            add_at_parts(atoms[i, :width], -change, gradient)
        if blocking < 0:
            return count
        gap *= 1.0 - step
        leave(blocking, count, atoms, inverse, row_sums, weights, direction, solved)
        count -= 1
        if count == 1:
            # Its direction is zero, which rounding times a huge gap is not.
            weights[0] = 1.0
            return count
        if new == count:
            new = blocking


@kernel
def leave(gone, count, atoms, inverse, row_sums, weights, factors, row):
    """Take atom ``gone`` out of the support; the last atom takes its place. factors, row:
    workspaces."""
    last = count - 1
    pivot = inverse[gone, gone]
    for i in range(count):
        factors[i] = -inverse[i, gone] / pivot
        row[i] = inverse[gone, i]
    sums = row_sums[gone]
    for i in range(count):
        row_sums[i] += factors[i] * sums
    _add_outer(factors, row, count, inverse)
    if gone != last:
        for j in range(count):
            inverse[gone, j] = inverse[last, j]
        for i in range(count):
            inverse[i, gone] = inverse[i, last]
        row_sums[gone] = row_sums[last]
        weights[gone] = weights[last]
        for j in range(atoms.shape[1]):
            atoms[gone, j] = atoms[last, j]


@kernel
def polish(atoms, width, count, scores, gradient, inverse, row_sums, weights, residual, change):
    """One step of refinement of the weights: removes what rounding left over many small steps.
    ``gradient`` ends as s − μ for the new weights. residual, change: as rows of the inverse."""
    gradient[:] = scores
    for i in range(count):
        add_at_parts(atoms[i, :width], -weights[i], gradient)
    average = 0.0
    for i in range(count):
        residual[i] = 0.0
        for part in atoms[i, :width]:
            if part < 0:
                break
            residual[i] += gradient[part]
        average += residual[i] / count
    total, sums = 0.0, 0.0
    for i in range(count):
        residual[i] -= average
        total += row_sums[i] * residual[i]
        sums += row_sums[i]
    sum_rows(residual, inverse, count, change)
    kept = 0.0
    for i in range(count):
        weights[i] = max(weights[i] + change[i] - total / sums * row_sums[i], 0.0)
        kept += weights[i]
    gradient[:] = scores
    for i in range(count):
        weights[i] /= kept
        add_at_parts(atoms[i, :width], -weights[i], gradient)


@kernel
def gradient_of_weights(count, inverse, upstream, result, row_sums):
    """b = S p̄ − (1ᵀS p̄)·S1 / (1ᵀS1), S the inverse of G + 11ᵀ (Niculae et al. 2018a). row_sums:
    workspace."""
    for j in range(count):
        result[j] = row_sums[j] = 0.0
    for i in range(count):
        factor = upstream[i]
        for j in range(count):
            result[j] += factor * inverse[i, j]
            row_sums[j] += inverse[i, j]
    total, sums = 0.0, 0.0
    for i in range(count):
        total += result[i]
        sums += row_sums[i]
    for i in range(count):
        result[i] -= total / sums * row_sums[i]
