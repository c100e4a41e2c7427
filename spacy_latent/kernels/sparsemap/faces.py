"""The faces that contain solutions of SparseMAP: all structures that tie with the support.

Near scores s, the solution μ moves along the differences of all structures that are best under the
residual s − μ. Its Jacobian is the projection on these differences. The support is enough to
represent μ, but its differences may span less. For example, if four tag sequences tie, two of them
may have the mean of all four.

The missing structures are found with the component of a gradient that is orthogonal to the
differences of the support. Among the structures that tie, the best ones along it and against it are
missing. If they are no better than the support, the face is complete.

Items lie one after the other in flat arrays. ``which`` holds item numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.sparsemap.support import (
    add_at_parts,
    extend,
    gradient_of_weights,
    shared_parts,
    sum_at_parts,
)

# Structures tie if their scores under the residual differ by at most TIE, or by TIE_OF_RESIDUAL
# times the largest residual of a part, whose rounding hides smaller differences.
TIE, TIE_OF_RESIDUAL = 1e-7, 1e-10
# A component of a gradient below this fraction of it counts as 0.
SLIGHT = 1e-7
# Maximum number of steps that correct a projection for the rounding of an inverse. They end once
# the remaining gradient differs between atoms by at most REFINED of the gradient.
REFINEMENTS, REFINED = 5, 1e-11
# Number of atoms at which this difference is checked.
SAMPLED = 8


class Items(NamedTuple):
    """The faces of F items.

    Attributes:
        starts: ``(F + 1,)``, the first entry of each item in flat arrays, and the end.
        residuals: flat; −inf if a part is forbidden, and for padding.
        atoms: ``(F, K, W)`` int32, padded with −1; parts are counted from the item's first.
        counts: ``(F,)``, the number of atoms of each item.
    """

    starts: np.ndarray
    residuals: np.ndarray
    atoms: np.ndarray
    counts: np.ndarray


class Inverses(NamedTuple):
    """The inverses of G + 11ᵀ over the atoms of each item, as in kernels.sparsemap.support.

    Attributes:
        numbers: flat.
        offsets, strides: ``(F,)``, the first number of each item, and the size of its rows.
    """

    numbers: np.ndarray
    offsets: np.ndarray
    strides: np.ndarray


class Search(NamedTuple):
    """The state of the search for the missing structures of F items.

    Attributes:
        pulled: flat, the component of the gradient along differences of atoms.
        left: flat, the orthogonal component. It is set to 0 at parts that no tying structure has.
        levels: ``(F,)``, the score of the atoms under the residual.
        ties: ``(F,)``, by how much the score of a tying structure may differ from this.
        sizes: ``(F,)``, the norm of the gradient at parts of possible tying structures.
        reaches: ``(F,)``, the norm of the largest multiple of ``left`` that can be added to the
            residual without breaking ties.
        steps: ``(F,)``, the factor of this multiple, 0 if ``left`` is 0.
    """

    pulled: np.ndarray
    left: np.ndarray
    levels: np.ndarray
    ties: np.ndarray
    sizes: np.ndarray
    reaches: np.ndarray
    steps: np.ndarray


@kernel
def _spread(atoms, count, beside, rest, values):
    """Write the sums of ``rest`` over every ``beside``-th atom, and return their range."""
    lowest, highest = np.inf, -np.inf
    for i in range(0, count, beside):
        values[i] = sum_at_parts(atoms[i], rest)
        lowest, highest = min(lowest, values[i]), max(highest, values[i])
    return highest - lowest


@kernel
def _project(atoms, count, inverse, given, along, rest, workspace):
    """Write the components of ``given`` along differences of atoms, and orthogonal to them."""
    values, change, row_sums = workspace[0], workspace[1], workspace[2]
    parts = len(given)
    for part in range(parts):
        along[part], rest[part] = 0.0, given[part]
    scale = 0.0
    for attempt in range(REFINEMENTS):
        # Rounding comes from the inverse. If it affects some atoms, a few of them show it, too.
        beside = max(count // SAMPLED, 1) if attempt > 0 else 1
        if _spread(atoms, count, beside, rest, values) <= REFINED * scale:
            break
        if beside > 1:
            _spread(atoms, count, 1, rest, values)
        gradient_of_weights(count, inverse, values, change, row_sums)
        for i in range(count):
            scale = max(scale, abs(values[i]))
            add_at_parts(atoms[i], change[i], along)
        for part in range(parts):
            rest[part] = given[part] - along[part]


@kernel
def survey(start, stop, which, upstream, items, inverses, search):
    """Begin the search for the items which[start .. stop−1], with the flat gradient ``upstream``.

    All fields of ``search`` are written.
    """
    starts, residuals, atoms, counts = items
    pulled, left, levels, ties, sizes, reaches, steps = search
    most = 1
    for index in range(start, stop):
        most = max(most, counts[which[index]])
    workspace = np.empty((3, most))
    for index in range(start, stop):
        f = which[index]
        count, own = counts[f], slice(starts[f], starts[f + 1])
        residual, given, rest = residuals[own], upstream[own], left[own]
        parts, stride = len(residual), inverses.strides[f]
        packed = inverses.numbers[inverses.offsets[f] : inverses.offsets[f] + count * stride]
        inverse = packed.reshape((count, stride))
        _project(atoms[f], count, inverse, given, pulled[own], rest, workspace)
        levels[f], largest, width = 0.0, 1.0, 1
        if count > 0:
            for part in atoms[f, 0]:
                if part < 0:
                    break
                levels[f] += residual[part]
                largest = max(largest, abs(residual[part]))
                width += 1
        ties[f] = max(TIE, TIE_OF_RESIDUAL * largest)
        above, size = 0.0, 0.0
        for part in range(parts):
            above += max(residual[part], 0.0)
        # The score of a structure with a given part is at most the residual of this part plus the
        # sum of all positive residuals.
        floor = levels[f] - above - ties[f]
        for part in range(parts):
            if min(residual[part], 0.0) >= floor:
                size += given[part] * given[part]
            else:
                rest[part] = 0.0
        sizes[f] = np.sqrt(size)
        # Two structures differ in at most twice their number of parts. One more part is assumed,
        # since structures that tie with the support may have more parts.
        reaches[f] = ties[f] / np.sqrt(2.0 * width)
        steps[f] = _step(rest, sizes[f], reaches[f]) if count > 0 else 0.0


@kernel
def _step(rest, size, reach):
    norm = 0.0
    for part in range(len(rest)):
        norm += rest[part] * rest[part]
    norm = np.sqrt(norm)
    return reach / norm if norm > SLIGHT * size and norm < np.inf else 0.0


@kernel
def tilt(which, items, search, gradients):
    """Write residuals plus a step along ``left`` and against it, to ``gradients`` ``(2, flat)``."""
    for f in which:
        own = slice(items.starts[f], items.starts[f + 1])
        residual, rest, step = items.residuals[own], search.left[own], search.steps[f]
        towards, against = gradients[0, own], gradients[1, own]
        for part in range(len(residual)):
            towards[part] = residual[part] + step * rest[part]
            against[part] = residual[part] - step * rest[part]


@kernel
def _gain(f, candidate, items, search):
    """Return the remaining gradient along a candidate, less the remaining gradient along an atom.

    It is 0 if it is rounding, or if the candidate does not tie.
    """
    own = slice(items.starts[f], items.starts[f + 1])
    residual, rest = items.residuals[own], search.left[own]
    if not abs(sum_at_parts(candidate, residual) - search.levels[f]) <= search.ties[f]:
        return 0.0
    gain = sum_at_parts(candidate, rest) - sum_at_parts(items.atoms[f, 0], rest)
    return gain if abs(gain) > SLIGHT * search.sizes[f] else 0.0


@kernel
def is_useful(which, candidates, items, search):
    """Return whether :func:`take` might add any of the candidates."""
    for index in range(len(which)):
        if _gain(which[index], candidates[index], items, search) != 0.0:
            return True
    return False


@kernel
def take(which, candidates, items, inverses, row_sums, search):
    """Add a candidate to the atoms of each item, with weight 0.

    A candidate is added if it ties with the atoms, is independent of them, and the remaining
    gradient along it exceeds rounding. The component along it is moved from ``left`` to ``pulled``.
    The residual is corrected so that its sum is the same along all atoms.

    Args:
        candidates: ``(len(which), W)``. Atoms have capacity for one more, and the same width.
        inverses: ``(F, K, K)``. K is a number of whole vectors, with capacity for one more atom.
        row_sums: ``(F, K)``, the products of inverses with 1.
    """
    starts, residuals, atoms, counts = items
    most, longest = inverses.shape[1], 1
    for f in which:
        longest = max(longest, starts[f + 1] - starts[f])
    workspace = np.empty((3, most))
    indicator, changes = np.zeros(longest, dtype=np.int32), np.empty(longest)
    for index in range(len(which)):
        f, candidate = which[index], candidates[index]
        own = slice(starts[f], starts[f + 1])
        along, rest, residual = search.pulled[own], search.left[own], residuals[own]
        gain = _gain(f, candidate, items, search)
        if gain == 0.0:
            continue
        new, inverse, sums, size = counts[f], inverses[f], row_sums[f], 0
        for part in candidate:
            if part < 0:
                break
            indicator[part] = 1
            size += 1
        shared_parts(atoms[f], new, indicator, workspace[2])
        for part in candidate[:size]:
            indicator[part] = 0
        if not extend(new, size, np.inf, 0.0, inverse, sums, workspace):
            continue
        atoms[f, new] = -1
        atoms[f, new, :size] = candidate[:size]
        counts[f] += 1
        # As in kernels.sparsemap.support, ``left`` is equal along all atoms except the new
        # one. So is the residual, except for a gap that was too small for the atom to get a weight.
        gap = sum_at_parts(candidate, residual) - search.levels[f]
        total, of_sums = 0.0, 0.0
        for i in range(new + 1):
            total += inverse[new, i]
            of_sums += sums[i]
        change = changes[: len(rest)]
        change[:] = 0.0
        for i in range(new + 1):
            add_at_parts(atoms[f, i], inverse[new, i] - total / of_sums * sums[i], change)
        for part in range(len(rest)):
            along[part] += gain * change[part]
            rest[part] -= gain * change[part]
            residual[part] -= gap * change[part]
        search.levels[f] = sum_at_parts(atoms[f, 0], residual)
        search.steps[f] = _step(rest, search.sizes[f], search.reaches[f])
