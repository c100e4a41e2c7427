"""The faces that contain solutions of SparseMAP: all structures that tie with the support.

Near scores s the solution μ moves along the differences of all structures that are best under the
residual s − μ. Its Jacobian projects on these differences. The support is enough to represent μ,
but may span less. For example, if four tag sequences tie, two of them may have the mean of all
four. The missing structures are found from the rest of a gradient after projection on the support.
Among the structures that tie, the best along that rest, or along its negative, is missing.
Otherwise the face is complete.

Items lie one after the other in flat arrays, and ``starts`` ``(F + 1,)`` has the first entry of
each. ``which`` holds item numbers. Atoms are ``(F, K, W)`` int32, padded with −1. Their parts are
counted from the item's first part. The inverse of an item is that of G + 11ᵀ over its atoms, as in
kernels.active_set. It begins at ``offsets`` ``(F,)`` and has rows of ``strides`` ``(F,)`` numbers.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.active_set import add_at_parts, extend, gradient_of_weights, shared_parts
from spacy_latent.kernels.compilation import kernel

# Structures whose scores under the residual are as near as this tie; and over the largest residual
# of a part, whose rounding hides less.
TIE, TIE_OF_RESIDUAL = 1e-7, 1e-10
# Of a gradient, what is not worth another structure.
SLIGHT = 1e-7
# How often a projection is corrected for the rounding of an inverse at most, and until what is left
# along atoms differs by no more than this of the gradient.
REFINEMENTS, REFINED = 5, 1e-11
# How many atoms are looked at for that.
SAMPLED = 8


@kernel
def _sum_at_parts(atom, values):
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
def _spread(atoms, count, beside, rest, values):
    """Set ``values`` to what is left along atoms, those ``beside`` each other. RETURNS: by how much
    they differ."""
    lowest, highest = np.inf, -np.inf
    for i in range(0, count, beside):
        values[i] = _sum_at_parts(atoms[i], rest)
        lowest, highest = min(lowest, values[i]), max(highest, values[i])
    return highest - lowest


@kernel
def survey(
    start,
    stop,
    which,
    starts,
    residuals,
    upstream,
    atoms,
    counts,
    inverses,
    offsets,
    strides,
    pulled,
    left,
    levels,
    ties,
    sizes,
    reaches,
    steps,
):
    """For the items which[start .. stop−1] split the gradients ``upstream`` into what lies along
    differences of atoms, ``pulled``, and the rest, ``left``; all three flat. The rest is 0 at parts
    that no structure has that ties.

    residuals: flat; −inf where a part is forbidden, or there is none.
    levels: ``(F,)``, written: the score of the atoms under the residual. ties: by how much that of
        a structure that ties may differ from it.
    sizes: ``(F,)``, the norm of the gradient at parts that are not left out.
    steps: ``(F,)``, what to multiply ``left`` by to add it to the residual without changing what
        ties; 0 where nothing is left. reaches: the same times the norm of what is left.
    """
    room = 1
    for index in range(start, stop):
        room = max(room, counts[which[index]])
    values, change, row_sums = np.empty(room), np.empty(room), np.empty(room)
    for index in range(start, stop):
        f = which[index]
        count, own = counts[f], slice(starts[f], starts[f + 1])
        residual, given = residuals[own], upstream[own]
        along, rest = pulled[own], left[own]
        parts = len(residual)
        packed = inverses[offsets[f] : offsets[f] + count * strides[f]]
        inverse = packed.reshape((count, strides[f]))
        for part in range(parts):
            along[part], rest[part] = 0.0, given[part]
        scale = 0.0
        for attempt in range(REFINEMENTS):
            # Rounding is that of an inverse, and seen along some atoms if it is along any.
            beside = max(count // SAMPLED, 1) if attempt > 0 else 1
            if _spread(atoms[f], count, beside, rest, values) <= REFINED * scale:
                break
            if beside > 1:
                _spread(atoms[f], count, 1, rest, values)
            gradient_of_weights(count, inverse, values, change, row_sums)
            for i in range(count):
                scale = max(scale, abs(values[i]))
                add_at_parts(atoms[f, i], change[i], along)
            for part in range(parts):
                rest[part] = given[part] - along[part]
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
        # A structure with such a part has at most the sum of all others above 0 beside it.
        floor = levels[f] - above - ties[f]
        for part in range(parts):
            if min(residual[part], 0.0) >= floor:
                size += given[part] * given[part]
            else:
                rest[part] = 0.0
        sizes[f] = np.sqrt(size)
        # Two structures of so many parts differ in twice as many at most; those that tie with the
        # support may have more of them than it has.
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
def tilt(which, starts, residuals, left, steps, gradients):
    """Write residuals to ``gradients`` ``(2, flat)``, with a step along ``left`` and against it."""
    for f in which:
        own = slice(starts[f], starts[f + 1])
        residual, rest, step = residuals[own], left[own], steps[f]
        towards, against = gradients[0, own], gradients[1, own]
        for part in range(len(residual)):
            towards[part] = residual[part] + step * rest[part]
            against[part] = residual[part] - step * rest[part]


@kernel
def _gain(candidate, atom, residual, rest, level, tie, size):
    """What is left of a gradient along a candidate, above that along an atom; 0 where it is
    rounding, or the candidate does not tie."""
    if not abs(_sum_at_parts(candidate, residual) - level) <= tie:
        return 0.0
    gain = _sum_at_parts(candidate, rest) - _sum_at_parts(atom, rest)
    return gain if abs(gain) > SLIGHT * size else 0.0


@kernel
def is_useful(which, candidates, starts, residuals, atoms, left, levels, ties, sizes):
    """Whether :func:`take` might take any of the candidates."""
    for index in range(len(which)):
        f = which[index]
        own = slice(starts[f], starts[f + 1])
        beside = residuals[own], left[own], levels[f], ties[f], sizes[f]
        if _gain(candidates[index], atoms[f, 0], *beside) != 0.0:
            return True
    return False


@kernel
def take(
    which,
    candidates,
    starts,
    residuals,
    levels,
    ties,
    sizes,
    reaches,
    atoms,
    counts,
    inverses,
    row_sums,
    pulled,
    left,
    steps,
):
    """Add a candidate to the atoms of each item, without weight, and what lies along it of what is
    left to ``pulled``, where the candidate ties with the atoms and does not depend on them, and
    more than rounding of the gradient is left along it. The residual becomes the same along all of
    them.

    candidates: ``(len(which), W)``.
    atoms: with room for one more, and as wide.
    inverses: ``(F, K, K)``, K whole vectors and room for one more. row_sums: ``(F, K)``, their
        products with 1.
    """
    room, longest = inverses.shape[1], 1
    for f in which:
        longest = max(longest, starts[f + 1] - starts[f])
    column, direction, solved = np.empty(room), np.empty(room), np.empty(room)
    indicator, changes = np.zeros(longest, dtype=np.int32), np.empty(longest)
    for index in range(len(which)):
        f, candidate = which[index], candidates[index]
        own = slice(starts[f], starts[f + 1])
        along, rest, residual = pulled[own], left[own], residuals[own]
        beside = residual, rest, levels[f], ties[f], sizes[f]
        gain = _gain(candidate, atoms[f, 0], *beside)
        if gain == 0.0:
            continue
        new, inverse, sums, size = counts[f], inverses[f], row_sums[f], 0
        for part in candidate:
            if part < 0:
                break
            indicator[part] = 1
            size += 1
        shared_parts(atoms[f], new, indicator, column)
        for part in candidate[:size]:
            indicator[part] = 0
        if not extend(new, size, np.inf, 0.0, column, inverse, sums, direction, solved):
            continue
        atoms[f, new] = -1
        atoms[f, new, :size] = candidate[:size]
        counts[f] += 1
        # As in kernels.active_set.enter: the same is left along all atoms but the new one. So it is
        # of the residual but for a gap, which is so small that its atom never got a weight.
        gap = _sum_at_parts(candidate, residual) - levels[f]
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
        levels[f] = _sum_at_parts(atoms[f, 0], residual)
        steps[f] = _step(rest, sizes[f], reaches[f])
