"""The active-set method of SparseMAP (Niculae et al. 2018) on lists of parts.

The module holds the loop over the items of a batch, and the gradient. An oracle finds the best
structure. It is a NamedTuple of settings whose class implements the five functions under "the
oracle" (see kernels.core.compilation.implements). Structures without such an oracle are solved by
spacy_latent.structures.active_set, which shares :func:`let_in`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.simd.vector import LANES
from spacy_latent.kernels.sparsemap.support import (
    Support,
    gradient_of_weights,
    let_in,
    polish,
    row_size,
    scatter,
)


class Solution(NamedTuple):
    """Solutions of B items with N · M scores, written by :func:`solve`.

    Attributes:
        atoms: ``(B, K, W)`` int32, with capacity for K − 1 atoms and a candidate: the parts of the
            support, row · M + column, padded with −1.
        weights, means: ``(B, K)`` and ``(B, N·M)``, float64. ``means`` must be zeros.
        residuals: like means, filled with −inf: s − μ at parts that are not forbidden.
        inverses, offsets: ``(B·K·K,)`` float64 and ``(B,)`` int64: (G + 11ᵀ)⁻¹ of item b is the
            count² numbers from ``offsets[b]``. They are packed, so that unused memory is never
            touched.
        counts, gaps: ``(B,)``, size of the support and duality gap.
        status: ``(B,)`` int8, written if an item is not feasible or not finite.
    """

    atoms: np.ndarray
    weights: np.ndarray
    inverses: np.ndarray
    offsets: np.ndarray
    means: np.ndarray
    residuals: np.ndarray
    counts: np.ndarray
    gaps: np.ndarray
    status: np.ndarray


# ------------------------------------------------------------------------------------ the oracle


def sizes_of(oracle, lengths, b):
    """Return the number of parts of item b, and the length of an atom's row.

    Rows are filled from their beginning.
    """


def prepare(oracle, start, stop, lengths):
    """Return how many of the items start .. stop−1 may be solved at a time, and their workspace."""


def read_scores(oracle, scores, lengths, b, result):
    """Write the scores of item b, float64, and return FEASIBLE or NOT_FINITE.

    There is one score for each part, −inf if it is forbidden. They are the first numbers of
    ``result``.
    """


def find_best(oracle, lengths, items, calls, gradients, workspace, candidates, solved):
    """Write the best structures under the gradients of the items that are being solved.

    Args:
        items: ``(P,)``, the item at each place, or −1 for a free place.
        calls: ``(P,)``, the number of earlier calls for the item.
        gradients: ``(P, parts)``; the first numbers of a row belong to the item.
        workspace: from :func:`prepare`.
        candidates: ``(P, W)`` int32, written: the parts of the structure, then −1.
        solved: ``(P,)``, written: whether there is a structure.
    """


def padded_part(oracle, lengths, b, stride, part):
    """Return the number of a part of item b in the scores, whose rows have ``stride`` columns."""


# ------------------------------------------------------------------------------------ the loop


@kernel
def _write(b, scores, lengths, oracle, support, original, workspace, solution):
    """Write the solution of item b, except its gap."""
    atoms, means, count = solution.atoms[b], solution.means[b], solution.counts[b]
    parts, width = sizes_of(oracle, lengths, b)
    read_scores(oracle, scores[b], lengths, b, original)
    polish(support, width, count, original[:parts], workspace)
    weights, gradient, stride = support.weights, support.gradient, scores.shape[2]
    if not np.isfinite(weights[0]):
        # The scores are finite, but their sums are not.
        solution.status[b] = NOT_FINITE
    for k in range(parts):
        if gradient[k] > -np.inf:
            solution.residuals[b, padded_part(oracle, lengths, b, stride, k)] = gradient[k]
    used = solution.offsets[b]
    for i in range(count):
        for j in range(count):
            solution.inverses[used] = support.inverse[i, j]
            used += 1
        for k in range(width):
            if atoms[i, k] >= 0:
                part = padded_part(oracle, lengths, b, stride, atoms[i, k])
                atoms[i, k] = part
                means[part] += weights[i]


@kernel
def solve(start, stop, scores, lengths, oracle, max_iter, tolerance, solution):
    """Solve SparseMAP for items ``start`` to ``stop``, calling the oracle directly.

    If the oracle uses SIMD lanes, several items are solved at a time. A finished item is replaced
    by the next.

    Args:
        scores: ``(B, N, M)`` float32 or float64. Everything else is float64: the gap is a
            difference of sums over parts that may be as large as the scores.
    """
    atoms, counts, gaps, status = solution.atoms, solution.counts, solution.gaps, solution.status
    capacity = atoms.shape[1]
    used = start * capacity * capacity
    most = 0
    for b in range(start, stop):
        most = max(most, sizes_of(oracle, lengths, b)[0])
    places, oracle_workspace = prepare(oracle, start, stop, lengths)
    gradients, original = np.empty((places, most + LANES)), np.empty(most + LANES)
    candidates = np.empty((places, atoms.shape[2]), dtype=np.int32)
    wide = row_size(capacity)
    inverses, row_sums = np.empty((places, capacity, wide)), np.empty((places, capacity))
    workspace = np.empty((3, wide))
    indicator = np.zeros(most, dtype=np.int32)
    items, calls = np.full(places, -1), np.zeros(places, dtype=np.int64)
    solved = np.zeros(places, dtype=np.bool_)
    coming = start
    while True:
        open_items = 0
        for place in range(places):
            while items[place] < 0 and coming < stop:
                counts[coming], gaps[coming] = 0, np.inf
                status[coming] = read_scores(
                    oracle, scores[coming], lengths, coming, gradients[place]
                )
                if status[coming] == FEASIBLE:
                    items[place], calls[place] = coming, 0
                coming += 1
            if items[place] >= 0:
                open_items += 1
        if open_items == 0:
            break
        find_best(oracle, lengths, items, calls, gradients, oracle_workspace, candidates, solved)
        for place in range(places):
            b = items[place]
            if b < 0:
                continue
            parts, width = sizes_of(oracle, lengths, b)
            support = Support(
                atoms[b],
                inverses[place],
                row_sums[place],
                solution.weights[b],
                gradients[place, :parts],
            )
            count, after = counts[b], 0
            if solved[place]:
                for k in range(atoms.shape[2]):
                    atoms[b, count, k] = candidates[place, k]
                last = calls[place] == max_iter or count == capacity - 1
                after, gaps[b] = let_in(
                    support, width, count, oracle.by_slot, tolerance, last, indicator, workspace
                )
            if after > 0:
                counts[b] = after
                calls[place] += 1
                continue
            items[place] = -1
            if count == 0:
                status[b] = INFEASIBLE
                continue
            solution.offsets[b] = used
            used += count * count
            _write(b, scores, lengths, oracle, support, original, workspace, solution)


@kernel
def find_both(start, stop, which, lengths, oracle, stride, gradients, candidates):
    """Write the best structures of the items which[start .. stop−1], each under two gradients.

    Args:
        stride: columns of the scores.
        gradients: ``(2, B, N·M)``.
        candidates: ``(2, len(which), W)`` int32, written: the parts of the structures, numbered as
            in :func:`solve`, then −1.
    """
    sizes = lengths[which[start:stop]]
    places, workspace = prepare(oracle, 0, len(sizes), sizes)
    most = 0
    for item in range(len(sizes)):
        most = max(most, sizes_of(oracle, sizes, item)[0])
    given = np.empty((places, most + LANES))
    found = np.empty((places, candidates.shape[2]), dtype=np.int32)
    items, calls = np.full(places, -1), np.zeros(places, dtype=np.int64)
    solved = np.zeros(places, dtype=np.bool_)
    for first in range(0, 2 * len(sizes), places):
        for place in range(places):
            job = first + place
            items[place] = job // 2 if job < 2 * len(sizes) else -1
            if items[place] < 0:
                continue
            own = gradients[job % 2, which[start + items[place]]]
            for k in range(sizes_of(oracle, sizes, items[place])[0]):
                given[place, k] = own[padded_part(oracle, sizes, items[place], stride, k)]
        find_best(oracle, sizes, items, calls, given, workspace, found, solved)
        for place in range(places):
            if items[place] < 0:
                continue
            result = candidates[(first + place) % 2, start + items[place]]
            result[:] = -1
            for k in range(len(result)):
                if solved[place] and found[place, k] >= 0:
                    result[k] = padded_part(oracle, sizes, items[place], stride, found[place, k])


@kernel
def pull_back_weights(start, stop, atoms, counts, inverses, offsets, of_weights, result):
    """Add the gradients of scores to ``result`` ``(B, P)``, from gradients of weights ``(B, K)``.

    The other arguments are fields of a Solution.
    """
    capacity = 1
    for b in range(start, stop):
        capacity = max(capacity, counts[b])
    change, row_sums = np.empty(capacity), np.empty(capacity)
    for b in range(start, stop):
        count = counts[b]
        packed = inverses[offsets[b] : offsets[b] + count * count]
        inverse = packed.reshape((count, count))
        gradient_of_weights(count, inverse, of_weights[b], change, row_sums)
        scatter(atoms[b], count, change, result[b])
