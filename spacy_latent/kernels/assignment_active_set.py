"""SparseMAP of one-to-one alignments: the active-set method and the search for the best assignment
in one compiled loop.

An atom is a list of cells, row · columns + column in an array with no more rows than columns. The
scores of one search differ little from those of the search before, so that where prices may be
anything it goes on from the prices of that.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.active_set import (
    enter,
    gradient_of_weights,
    polish,
    row_room,
    shared_parts,
)
from spacy_latent.kernels.assignment import assign, read_costs
from spacy_latent.kernels.compilation import kernel
from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE


@kernel
def solve_assignments(
    start,
    stop,
    scores,
    lengths,
    unaligned,
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
    """SparseMAP of one-to-one alignments, items ``start`` to ``stop``.

    scores: ``(B, N, M)``, float32 or float64. All else is float64: the gap is a difference of sums
        of parts that may be as large as the scores.
    lengths: ``(B, 2)``.
    unaligned: words may stay alone.
    atoms: ``(B, K, min(N, M))`` int32, room for K − 1 atoms and a candidate; written: the cells of
        the support in the rows of ``scores``, row · M + column, and −1 to the end.
    weights, means: ``(B, K)`` and ``(B, N, M)``, float64; written. ``means`` must come as zeros.
    inverses, offsets: ``(B·K·K,)`` float64 and ``(B,)`` int64; written: (G + 11ᵀ)⁻¹ of item b is
        the count² numbers from ``offsets[b]``. Packed, so that the unused rest is never touched.
    counts, gaps: ``(B,)``; size of the support; duality gap.
    status: ``(B,)`` int8; written where an item is not feasible or not finite.
    """
    room = atoms.shape[1]
    used = start * room * room
    longest, cells = 1, 1
    for b in range(start, stop):
        longest = max(longest, lengths[b, 0], lengths[b, 1])
        cells = max(cells, lengths[b, 0] * lengths[b, 1])
    stride = scores.shape[2]
    cost_room, gradient_room, score_room = np.empty(cells), np.empty(cells), np.empty(cells)
    indicator_room = np.zeros(cells, dtype=np.int32)
    matched = np.empty(longest, dtype=np.int32)
    partner = np.empty(longest, dtype=np.int32)
    previous = np.empty(longest, dtype=np.int32)
    prices, distance = np.empty(longest), np.empty(longest)
    visited, reach = np.empty(longest), np.empty(longest)
    wide = row_room(room)
    inverse = np.empty((room, wide))
    row_sums, direction, solved = np.empty(room), np.empty(wide), np.empty(wide)
    column = np.empty(room)
    for b in range(start, stop):
        rows, columns = min(lengths[b, 0], lengths[b, 1]), max(lengths[b, 0], lengths[b, 1])
        turned = lengths[b, 0] > lengths[b, 1]
        size = rows * columns
        costs = cost_room[:size].reshape((rows, columns))
        gradient, original = gradient_room[:size], score_room[:size]
        indicator = indicator_room[:size]
        counts[b] = 0
        gaps[b] = np.inf
        read = read_costs(scores[b], lengths[b, 0], lengths[b, 1], costs)
        if read != FEASIBLE:
            status[b] = read
            continue
        flat = cost_room[:size]
        for part in range(size):
            original[part] = -flat[part]
            gradient[part] = original[part]
        own_atoms, own_weights = atoms[b], weights[b]
        count = 0
        for call in range(max_iter + 1):
            if call > 0:
                for part in range(size):
                    flat[part] = -gradient[part]
            warm = call > 0 and rows == columns and not unaligned
            if not assign(
                costs,
                rows,
                columns,
                unaligned,
                warm,
                matched,
                partner,
                prices,
                distance,
                visited,
                reach,
                previous,
            ):
                break
            parts = 0
            own_atoms[count] = -1
            for i in range(rows):
                if matched[i] >= 0:
                    own_atoms[count, parts] = i * columns + matched[i]
                    parts += 1
            if count == 0:
                own_weights[0] = 1.0
                inverse[0, 0] = row_sums[0] = 1.0 / (parts + 1.0)
                for k in range(parts):
                    gradient[own_atoms[0, k]] -= 1.0
                count = 1
                continue
            gap = 0.0
            for k in range(rows):
                if own_atoms[count, k] >= 0:
                    gap += gradient[own_atoms[count, k]]
                if own_atoms[0, k] >= 0:
                    gap -= gradient[own_atoms[0, k]]
            gaps[b] = max(gap, 0.0)
            if gap <= tolerance or call == max_iter or count == room - 1:
                break
            for k in range(parts):
                indicator[own_atoms[count, k]] = 1
            shared_parts(own_atoms, count, indicator, column)
            for k in range(parts):
                indicator[own_atoms[count, k]] = 0
            after = enter(
                own_atoms,
                rows,
                count,
                parts,
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
            status[b] = INFEASIBLE
            continue
        polish(
            own_atoms,
            rows,
            count,
            original,
            gradient,
            inverse,
            row_sums,
            own_weights,
            solved,
            direction,
        )
        offsets[b] = used
        for i in range(count):
            for j in range(count):
                inverses[used] = inverse[i, j]
                used += 1
            for k in range(rows):
                part = own_atoms[i, k]
                if part < 0:
                    break
                row, other = part // columns, part % columns
                if turned:
                    row, other = other, row
                means[b, row, other] += own_weights[i]
                own_atoms[i, k] = row * stride + other
            atoms[b, i, rows:] = -1


@kernel
def solve_assignments_backward(
    start, stop, atoms, counts, inverses, offsets, of_means, of_weights, result
):
    """Gradients of scores, added to ``result`` (B, N·M), from those of means (B, N·M) and weights
    (B, K). The rest is what :func:`solve_assignments` wrote."""
    room = 1
    for b in range(start, stop):
        room = max(room, counts[b])
    upstream, change, row_sums = np.empty(room), np.empty(room), np.empty(room)
    for b in range(start, stop):
        count = counts[b]
        for i in range(count):
            upstream[i] = of_weights[b, i]
            for part in atoms[b, i]:
                if part < 0:
                    break
                upstream[i] += of_means[b, part]
        packed = inverses[offsets[b] : offsets[b] + count * count]
        gradient_of_weights(count, packed.reshape((count, count)), upstream, change, row_sums)
        for i in range(count):
            for part in atoms[b, i]:
                if part < 0:
                    break
                result[b, part] += change[i]
