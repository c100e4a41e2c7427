"""SparseMAP of dependency trees: the active-set method and the MAP oracle in one compiled loop.

An atom is n arcs, in the order of the modifiers.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels import arborescence, eisner
from spacy_latent.kernels.active_set import (
    add_at_parts,
    enter,
    gradient_of_weights,
    polish,
    row_room,
)
from spacy_latent.kernels.arborescence import best_arborescence
from spacy_latent.kernels.compilation import kernel
from spacy_latent.kernels.eisner import best_projective_tree
from spacy_latent.kernels.eisner_lanes import (
    best_trees_beside,
    charts_of_trees,
    set_scores,
)
from spacy_latent.kernels.lanes import LONGEST
from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE, NOT_FINITE, read_arc_scores
from spacy_latent.kernels.vector import LANES, aligned_empty, count_equal

arborescence_integers = arborescence.integer_workspace_size
arborescence_floats = arborescence.float_workspace_size
projective_integers = eisner.integer_workspace_size
projective_floats = eisner.float_workspace_size


# Of LANES places, so many with an open sentence make it worth while to do all side by side.
BESIDE = 3


@kernel
def _take_off_common(square, n):
    """Take the best of its heads off the scores of each modifier. Each tree has one of them, so the
    solution stays, and what all have in common costs no digits."""
    for m in range(1, n + 1):
        top = -np.inf
        for h in range(n + 1):
            top = max(top, square[h, m])
        if top > -np.inf and top < np.inf:
            for h in range(n + 1):
                square[h, m] -= top


@kernel
def _pack(padded, n, flat):
    """Copy the numbers of a sentence, one row after the other. numba's own assignment takes long to
    compile."""
    size = n + 1
    for h in range(size):
        for m in range(size):
            flat[h * size + m] = padded[h, m]


@kernel
def _unpack(flat, n, padded):
    size = n + 1
    for h in range(size):
        for m in range(size):
            padded[h, m] = flat[h * size + m]


@kernel
def _enter_tree(
    n, heads, last, tolerance, atoms, count, weights, inverse, row_sums, gradient, gap, workspace
):
    """Let a best tree for the gradient s − μ into a support of ``count`` trees. heads: head · (n+1)
    + modifier of each arc is what an atom has. last: whether there is no more room. gap: ``(1,)``,
    written. RETURNS: the new number of trees, 0 where the support is final."""
    size = n + 1
    candidate = atoms[count]
    for m in range(n):
        candidate[m] = heads[m + 1] * size + m + 1
    if count == 0:
        weights[0] = 1.0
        inverse[0, 0] = row_sums[0] = 1.0 / (n + 1.0)
        for m in range(n):
            gradient[candidate[m]] -= 1.0
        return 1
    difference = 0.0
    for m in range(n):
        difference += gradient[candidate[m]] - gradient[atoms[0, m]]
    gap[0] = max(difference, 0.0)
    if difference <= tolerance or last:
        return 0
    column = workspace[2]
    for i in range(count):
        column[i] = count_equal(atoms[i], candidate, n)
    return enter(
        atoms,
        n,
        count,
        n,
        difference,
        column,
        inverse,
        row_sums,
        weights,
        gradient,
        workspace[0],
        workspace[1],
    )


@kernel
def solve_trees(
    start,
    stop,
    scores,
    lengths,
    projective,
    direction,
    max_arc_length,
    single_root,
    max_iter,
    tolerance,
    atoms,
    weights,
    inverses,
    offsets,
    means,
    counts,
    gaps,
    status,
):
    """SparseMAP of dependency trees, items ``start`` to ``stop``, the MAP oracle called in place.

    scores: ``(B, N, N)`` float32 or float64, ``[head, modifier]``. All else is float64: the gap is
        a difference of sums of parts that may be as large as the scores.
    projective, direction, max_arc_length, single_root: which trees; see kernels.status.is_arc.
    atoms: ``(B, K, N − 1)`` int32, room for K − 1 atoms and a candidate; written: the
        arcs of the support, head · (n + 1) + modifier, in the order of the modifiers.
    weights, means: ``(B, K)`` and ``(B, N, N)``, float64; written. ``means`` must come as zeros.
    inverses, offsets: ``(B·K·K,)`` float64 and ``(B,)`` int64; written: (G + 11ᵀ)⁻¹ of item b is
        the count² numbers from ``offsets[b]``. Packed, so that the unused rest is never touched.
    counts, gaps: ``(B,)``; size of the support; duality gap.
    status: ``(B,)`` int8; written where an item is not feasible or not finite.

    Up to LANES sentences are open at a time, so that their best projective trees can be found side
    by side; a sentence that is done makes place for the next.
    """
    room = atoms.shape[1]
    used = start * room * room
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    beside = projective and stop - start >= BESIDE and 0 < longest <= LONGEST
    places = LANES if beside else 1
    integers = max(arborescence_integers(longest), projective_integers(longest))
    floats = max(arborescence_floats(longest), projective_floats(longest))
    integer_workspace = np.empty(integers, dtype=np.int32)
    float_workspace = aligned_empty(floats)
    charts = charts_of_trees(longest if beside else 0)
    heads = np.empty((places, longest + 2), dtype=np.int32)
    matrices = np.empty((places, (longest + 1) ** 2 + LANES))
    wide = row_room(room)
    supports = np.empty((places, room, wide))
    all_row_sums = np.empty((places, room))
    workspace = np.empty((3, wide))
    original = np.empty((longest + 1) * (longest + 1))
    rows = np.empty((2, LANES), np.int64)
    items, sizes = np.full(places, -1), np.full(places, -1)
    calls, solved = np.zeros(places, dtype=np.int64), np.zeros(places, dtype=np.bool_)
    coming = start
    while True:
        open_items, widest = 0, 0
        for place in range(places):
            while items[place] < 0 and coming < stop:
                n = lengths[coming]
                counts[coming], gaps[coming] = 0, np.inf
                square = matrices[place, : (n + 1) * (n + 1)].reshape((n + 1, n + 1))
                status[coming] = read_arc_scores(
                    scores[coming], n, direction, max_arc_length, square
                )
                _take_off_common(square, n)
                if status[coming] == FEASIBLE:
                    items[place], sizes[place], calls[place] = coming, n, 0
                coming += 1
            if items[place] >= 0:
                open_items += 1
                widest = max(widest, sizes[place])
        if open_items == 0:
            break
        together = beside and open_items >= BESIDE and widest > 0
        if together:
            set_scores(charts, matrices, sizes, widest, rows)
            best_trees_beside(sizes, widest, single_root, charts, heads, integer_workspace, solved)
        for place in range(places):
            b, n = items[place], sizes[place]
            if b < 0:
                continue
            gradient = matrices[place, : (n + 1) * (n + 1)]
            if not together:
                square = gradient.reshape((n + 1, n + 1))
                if projective:
                    solved[place] = best_projective_tree(
                        square, n, single_root, heads[place], integer_workspace, float_workspace
                    )
                else:
                    search = best_arborescence(
                        square, n, single_root, heads[place], integer_workspace, float_workspace
                    )
                    solved[place] = search == FEASIBLE
            own_atoms, own_weights = atoms[b], weights[b]
            inverse, row_sums = supports[place], all_row_sums[place]
            count, after = counts[b], 0
            if solved[place]:
                after = _enter_tree(
                    n,
                    heads[place],
                    calls[place] == max_iter or count == room - 1,
                    tolerance,
                    own_atoms,
                    count,
                    own_weights,
                    inverse,
                    row_sums,
                    gradient,
                    gaps[b : b + 1],
                    workspace,
                )
            if after > 0:
                counts[b] = after
                calls[place] += 1
                continue
            items[place] = sizes[place] = -1
            if count == 0:
                status[b] = INFEASIBLE
                continue
            square = original[: (n + 1) * (n + 1)].reshape((n + 1, n + 1))
            read_arc_scores(scores[b], n, direction, max_arc_length, square)
            _take_off_common(square, n)
            polish(
                own_atoms,
                n,
                count,
                original[: (n + 1) * (n + 1)],
                gradient,
                inverse,
                row_sums,
                own_weights,
                workspace[0],
                workspace[1],
            )
            offsets[b] = used
            original[: (n + 1) * (n + 1)] = 0.0
            for i in range(count):
                for j in range(count):
                    inverses[used] = inverse[i, j]
                    used += 1
                add_at_parts(own_atoms[i, :n], own_weights[i], original)
            _unpack(original, n, means[b])
            if not np.isfinite(own_weights[0]):
                # Their sums are not.
                status[b] = NOT_FINITE


@kernel
def solve_trees_backward(
    start, stop, lengths, atoms, counts, inverses, offsets, of_means, of_weights, result
):
    """Gradients of scores, into the zeros of ``result`` (B, N, N), from those of means and weights
    (B, K).

    The rest is what :func:`solve_trees` wrote. All float64 but the integers.
    """
    room, longest = 1, 0
    for b in range(start, stop):
        room, longest = max(room, counts[b]), max(longest, lengths[b])
    upstream, change, row_sums = np.empty(room), np.empty(room), np.empty(room)
    flat = np.empty((longest + 1) * (longest + 1))
    for b in range(start, stop):
        n, count = lengths[b], counts[b]
        _pack(of_means[b], n, flat)
        for i in range(count):
            total = of_weights[b, i]
            for m in range(n):
                total += flat[np.uint32(atoms[b, i, m])]
            upstream[i] = total
        packed = inverses[offsets[b] : offsets[b] + count * count]
        inverse = packed.reshape((count, count))
        gradient_of_weights(count, inverse, upstream, change, row_sums)
        flat[: (n + 1) * (n + 1)] = 0.0
        for i in range(count):
            add_at_parts(atoms[b, i, :n], change[i], flat)
        _unpack(flat, n, result[b])
