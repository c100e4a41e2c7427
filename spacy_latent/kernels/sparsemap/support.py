"""Linear algebra of the support of one item, for the active-set method on lists of parts.

An atom is a row of part numbers, so entries of the Gram matrix G count shared parts. Atoms are
affinely independent but may be linearly dependent. G may then be singular, but G + 11ᵀ is
invertible, and has the same solutions since weights sum to 1. Its inverse is updated by one atom at
a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.vector import (
    add_one,
    count_equal,
    fused_loop,
    sum_rows,
    whole_vectors,
)

# Entries of G + 11ᵀ are integers. A smaller pivot is rounding, and the atom depends on the others.
DEPENDENT = 1e-9
# Relative error of a float64 sum, as a fraction of the sum of absolute values.
ROUNDING = 4e-15
_update = fused_loop([("add", i, ((i, 4),)) for i in range(4)])


class Support(NamedTuple):
    """The atoms of one item, and their optimum. Arrays have capacity for more atoms.

    Attributes:
        atoms: ``(K, W)`` int32, the parts of each atom, padded with −1.
        inverse, row_sums: (G + 11ᵀ)⁻¹ and its product with 1. Rows of the inverse have
            :func:`row_size` numbers.
        weights: weight of each atom.
        gradient: s − μ, per part.
    """

    atoms: np.ndarray
    inverse: np.ndarray
    row_sums: np.ndarray
    weights: np.ndarray
    gradient: np.ndarray


@kernel
def row_size(capacity):
    """Return the length of a row of the inverse for ``capacity`` atoms, in whole vectors."""
    return whole_vectors(capacity)


@kernel
def _add_outer(factors, row, count, inverse):
    """Add factors[i] · row[j] to inverse[i, j], for i and j below ``count``."""
    whole = count // 4 * 4
    for i in range(0, whole, 4):
        _update(
            (inverse[i], inverse[i + 1], inverse[i + 2], inverse[i + 3], row),
            (factors[i], factors[i + 1], factors[i + 2], factors[i + 3]),
            0,
            count,
        )
    for i in range(whole, count):
        add_one((inverse[i], row), (factors[i],), 0, count)


@kernel
def shared_parts(atoms, count, indicator, column):
    """Write to ``column[i]`` how many parts atom i shares with the atom marked by ``indicator``.

    Rows of atoms are padded with −1.
    """
    for i in range(count):
        total = 0
        for part in atoms[i]:
            if part < 0:
                break
            total += indicator[part]
        column[i] = total


@kernel
def add_at_parts(atom, change, result):
    """Add ``change`` to ``result`` at the parts of an atom."""
    size = len(atom)
    if size > 0 and atom[size - 1] >= 0:
        # With a known end the loop takes less than half the time. numba checks signed indices for
        # negative ones, which count from the end, but not unsigned ones.
        for k in range(size):
            result[np.uint32(atom[k])] += change
        return
    for part in atom:
        if part < 0:
            break
        result[part] += change


@kernel
def sum_at_parts(atom, values):
    """Return the sum of ``values`` at the parts of an atom."""
    size, total = len(atom), 0.0
    if size > 0 and atom[size - 1] >= 0:
        for k in range(size):
            total += values[np.uint32(atom[k])]
        return total
    for part in atom:
        if part < 0:
            break
        total += values[part]
    return total


@kernel
def scatter(atoms, count, values, result):
    """Add the value of each atom to ``result`` at its parts."""
    for i in range(count):
        add_at_parts(atoms[i], values[i], result)


@kernel
def extend(count, size, gap, rounding, inverse, row_sums, workspace):
    """Add an atom to the inverse of G + 11ᵀ of ``count`` others.

    Args:
        size: number of parts of the new atom.
        gap: (s − μ)·(a − μ) for the new atom a; positive.
        rounding: rounding error of the gap of an atom.
        workspace: three rows like those of the inverse. The last one has the number of parts that
            the new atom shares with each of the others.

    Returns:
        Whether the atom is independent of the others and its gap exceeds rounding. If not, nothing
        is changed.
    """
    new = count
    direction, solved, column = workspace[0], workspace[1], workspace[2]
    for i in range(count):
        direction[i] = column[i] + 1.0
    sum_rows(direction, inverse, count, solved)
    pivot = size + 1.0
    defect = 1.0
    for i in range(count):
        pivot -= direction[i] * solved[i]
        defect -= direction[i] * row_sums[i]
    # The new atom is a linear combination of the others plus a remainder. The gaps of the others
    # are exactly 0 except for rounding, which the combination multiplies.
    multiples = 1.0
    for i in range(count):
        multiples += abs(solved[i])
    if pivot < DEPENDENT or gap <= multiples * rounding:
        return False
    solved[new] = -1.0
    row_sums[new] = 0.0
    for i in range(count + 1):
        inverse[i, new] = 0.0
        inverse[new, i] = 0.0
    count += 1
    for i in range(count):
        direction[i] = solved[i] / pivot
        row_sums[i] -= direction[i] * defect
    _add_outer(direction, solved, count, inverse)
    return True


@kernel
def _enter(support, width, count, size, gap, rounding, workspace):
    """Add the atom in row ``count`` to the support, and move to the optimum of the new support.

    Args:
        support: at the optimum of its ``count`` atoms.
        width: rows of atoms are read up to here: to the end, or to the largest number of parts. It
            is a separate argument, since numba cannot know that the rows of a slice are contiguous.
        count, size, gap, rounding, workspace: see :func:`extend`.

    Returns:
        The new number of atoms, or 0, with nothing changed, if the new atom depends on the others.
    """
    atoms, inverse, row_sums, weights, gradient = support
    new, direction = count, workspace[0]
    if not extend(count, size, gap, rounding, inverse, row_sums, workspace):
        return 0
    weights[new] = 0.0
    count += 1
    # Along all atoms of the support the gradient is equal, and along the new one larger by `gap`.
    # The direction to the optimum is the new atom's column of the inverse, shifted to sum to 0.
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
        leave(blocking, count, support, workspace)
        count -= 1
        if count == 1:
            # The direction to the optimum is 0, but a huge gap multiplies its rounding.
            weights[0] = 1.0
            return count
        if new == count:
            new = blocking


@kernel
def leave(gone, count, support, workspace):
    """Remove atom ``gone`` from the support; the last atom takes its place."""
    atoms, inverse, row_sums, weights, _ = support
    factors, row = workspace[0], workspace[1]
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
def polish(support, width, count, scores, workspace):
    """Refine the weights by one Newton step, which removes the rounding of many small steps."""
    atoms, inverse, row_sums, weights, gradient = support
    residual, change = workspace[0], workspace[1]
    gradient[:] = scores
    for i in range(count):
        add_at_parts(atoms[i, :width], -weights[i], gradient)
    average = 0.0
    for i in range(count):
        residual[i] = sum_at_parts(atoms[i, :width], gradient)
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
    """Write b = S p̄ − (1ᵀS p̄)·S1 / (1ᵀS1), S the inverse of G + 11ᵀ (Niculae et al. 2018a).

    p̄ is the gradient of the weights, and b the gradient of the scores of the atoms.
    """
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


@kernel
def let_in(support, width, count, by_slot, tolerance, last, indicator, workspace):
    """Add the best structure under the gradient to the support, and move to the new optimum.

    The structure is in row ``count`` of the atoms. The support has ``count`` atoms.

    Args:
        width: see :func:`_enter`.
        by_slot: whether two atoms can share a part only at the same index of their rows, and rows
            are full up to ``width``.
        tolerance: a gap that counts as 0.
        last: whether no further atom may enter.
        indicator: int32 zeros, one for each part; not read if ``by_slot``.
        workspace: three rows like those of the inverse.

    Returns:
        The new number of atoms, or 0, with nothing changed, if the support is final. Then the score
        of the structure under the gradient, less the score of the support's atoms; infinite for
        the first atom.
    """
    atoms, inverse, row_sums, weights, gradient = support
    candidate, first = atoms[count], atoms[0]
    size, difference, added = 0, 0.0, 0.0
    for k in range(width):
        change = 0.0
        if candidate[k] >= 0:
            change += gradient[candidate[k]]
            added += abs(gradient[candidate[k]])
            size += 1
        if count > 0 and first[k] >= 0:
            change -= gradient[first[k]]
        difference += change
    if count == 0:
        weights[0] = 1.0
        inverse[0, 0] = row_sums[0] = 1.0 / (size + 1.0)
        add_at_parts(candidate[:width], -1.0, gradient)
        return 1, np.inf
    gap = max(difference, 0.0)
    if difference <= tolerance or last:
        return 0, gap
    column = workspace[2]
    if by_slot:
        for i in range(count):
            column[i] = count_equal(atoms[i], candidate, width)
    else:
        for k in range(size):
            indicator[candidate[k]] = 1
        shared_parts(atoms, count, indicator, column)
        for k in range(size):
            indicator[candidate[k]] = 0
    return _enter(support, width, count, size, difference, ROUNDING * added, workspace), gap
