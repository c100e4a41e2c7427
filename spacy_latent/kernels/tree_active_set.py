"""SparseMAP of dependency trees: the active-set method and the MAP oracle in one compiled loop.

An atom is n arcs, in the order of the modifiers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from spacy_latent.kernels import arborescence, eisner
from spacy_latent.kernels.active_set import enter, gradient_of_weights, polish, row_room
from spacy_latent.kernels.arborescence import best_arborescence
from spacy_latent.kernels.eisner import best_projective_tree
from spacy_latent.kernels.vector import aligned_empty

arborescence_integers = arborescence.integer_workspace_size
arborescence_floats = arborescence.float_workspace_size
projective_integers = eisner.integer_workspace_size
projective_floats = eisner.float_workspace_size


@njit(cache=True, nogil=True, fastmath=False)
def solve_trees(
    start,
    stop,
    scores,
    lengths,
    projective,
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
):
    """SparseMAP of dependency trees, items ``start`` to ``stop``, the MAP oracle called in place.

    scores: ``(B, N, N)`` float64, ``[head, modifier]``, −inf for what is no arc.
    projective, single_root: which trees.
    atoms: ``(B, K, N − 1)`` int32, room for K − 1 atoms and a candidate; written: the
        arcs of the support, head · (n + 1) + modifier, in the order of the modifiers.
    weights, means: ``(B, K)`` and ``(B, N, N)``, float64; written. ``means`` must come as zeros.
    inverses, offsets: ``(B·K·K,)`` float64 and ``(B,)`` int64; written: (G + 11ᵀ)⁻¹ of item b is
        the count² numbers from ``offsets[b]``. Packed, so that the unused rest is never touched.
    counts, gaps: ``(B,)``; size of the support, 0 where there is no tree; duality gap.
    """
    room = atoms.shape[1]
    used = start * room * room
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    integers = max(arborescence_integers(longest), projective_integers(longest))
    floats = max(arborescence_floats(longest), projective_floats(longest))
    integer_workspace = np.empty(integers, dtype=np.int32)
    float_workspace = aligned_empty(floats)
    heads = np.empty(longest + 1, dtype=np.int32)
    matrix = np.zeros(arborescence.matrix_size(longest))
    original = np.empty((longest + 1) * (longest + 1))
    wide = row_room(room)
    inverse = np.empty((room, wide))
    row_sums, direction, solved = np.empty(room), np.empty(wide), np.empty(wide)
    column = np.empty(room)
    for b in range(start, stop):
        n = lengths[b]
        size = n + 1
        gradient = matrix[: size * size]
        square = gradient.reshape((size, size))
        square[:] = scores[b, :size, :size]
        original[: size * size] = gradient
        own_atoms, own_weights = atoms[b, :, :n], weights[b]
        count = 0
        gaps[b] = np.inf
        for call in range(max_iter + 1):
            if projective:
                found = best_projective_tree(
                    square, n, single_root, heads, integer_workspace, float_workspace
                )
            else:
                found = best_arborescence(
                    square, n, single_root, heads, integer_workspace, float_workspace
                )
            if not found:
                break
            for m in range(n):
                own_atoms[count, m] = heads[m + 1] * size + m + 1
            if count == 0:
                own_weights[0] = 1.0
                inverse[0, 0] = row_sums[0] = 1.0 / (n + 1.0)
                for m in range(n):
                    gradient[own_atoms[0, m]] -= 1.0
                count = 1
                continue
            gap = 0.0
            for m in range(n):
                gap += gradient[own_atoms[count, m]] - gradient[own_atoms[0, m]]
            gaps[b] = max(gap, 0.0)
            if gap <= tolerance or call == max_iter or count == room - 1:
                break
            for i in range(count):
                shared = 0
                for m in range(n):
                    shared += own_atoms[i, m] == own_atoms[count, m]
                column[i] = shared
            after = enter(
                own_atoms,
                count,
                n,
                gap,
                column,
                inverse,
                row_sums,
                own_weights,
                gradient,
                direction,
                solved,
            )
            if after == 0:
                break
            count = after
        counts[b] = count
        if count == 0:
            continue
        polish(
            own_atoms,
            count,
            original[: size * size],
            gradient,
            inverse,
            row_sums,
            own_weights,
            solved,
        )
        offsets[b] = used
        for i in range(count):
            for j in range(count):
                inverses[used] = inverse[i, j]
                used += 1
            for m in range(n):
                part = own_atoms[i, m]
                means[b, part // size, part % size] += own_weights[i]


@njit(cache=True, nogil=True, fastmath=False)
def solve_trees_backward(
    start, stop, lengths, atoms, counts, inverses, offsets, of_means, of_weights, result
):
    """Gradients of scores, added to ``result`` (B, N, N), from those of means and weights (B, K).

    The rest is what :func:`solve_trees` wrote. All float64 but the integers.
    """
    room = 1
    for b in range(start, stop):
        room = max(room, counts[b])
    upstream, change = np.empty(room), np.empty(room)
    for b in range(start, stop):
        n, count = lengths[b], counts[b]
        size = n + 1
        for i in range(count):
            upstream[i] = of_weights[b, i]
            for m in range(n):
                part = atoms[b, i, m]
                upstream[i] += of_means[b, part // size, part % size]
        packed = inverses[offsets[b] : offsets[b] + count * count]
        inverse = packed.reshape((count, count))
        gradient_of_weights(count, inverse, upstream, change)
        for i in range(count):
            for m in range(n):
                part = atoms[b, i, m]
                result[b, part // size, part % size] += change[i]
