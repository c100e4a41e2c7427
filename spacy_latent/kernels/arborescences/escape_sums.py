"""Sums over spanning arborescences by escape probabilities.

See kernels.arborescences.matrix_tree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.arborescences.arc_weights import loses_nothing, read_weights, sum_columns
from spacy_latent.kernels.arborescences.block_products import (
    COLUMN,
    NOTHING,
    product,
    turn_to,
    turned_product,
)
from spacy_latent.kernels.arborescences.elimination import SMALLEST_CHANCE
from spacy_latent.kernels.arborescences.escape_marginals import (
    read_change,
    write_change,
    write_probabilities,
)
from spacy_latent.kernels.arborescences.escape_probabilities import (
    escape_probabilities,
    log_of_product,
    matrix_shape,
)
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT
from spacy_latent.kernels.core.status import FEASIBLE, UNSOLVED
from spacy_latent.kernels.simd.vector import LANES, aligned_empty, copy, whole_vectors

LOG_SMALLEST_CHANCE = math.log(SMALLEST_CHANCE)
# Largest number of returns of a walk to a token (see kernels.arborescences.matrix_tree), in float32
# and float64.
LARGEST_RETURNS = 1e7, 1e3
HEADER = LANES
# Kind of values saved for an item: none, escape probabilities, or none because Hessian products
# need the elimination.
UNKNOWN, ESCAPES, REFUSED = 0.0, 1.0, 2.0


class Walk(NamedTuple):
    """A walk over heads, in whole blocks of tokens.

    Attributes:
        weights: [head, token].
        best: the best head of each token, as a number.
        escapes, inverse: escape probabilities and inverses of exits (see
            kernels.arborescences.escape_probabilities).
    """

    weights: np.ndarray
    best: np.ndarray
    escapes: np.ndarray
    inverse: np.ndarray


class Workspace(NamedTuple):
    """Workspaces of the longest sentence.

    Attributes:
        matrices: scores and weights.
        matrix, stack, scratch: see :func:`escape_probabilities`.
        squares: for Hessian products.
        rows: six rows.
    """

    matrices: np.ndarray
    matrix: np.ndarray
    stack: np.ndarray
    scratch: np.ndarray
    squares: np.ndarray
    rows: np.ndarray


def kept_size(n):
    """Return the float64 numbers that an item of n tokens may save.

    They are a header with the kind of saved values, the escape probabilities, and the inverses of
    exits. It is Python code, since n may be a symbolic size of torch.
    """
    size = (n + LANES - 1) // LANES * LANES
    return HEADER + size * size + size


_kept_size = kernel(kept_size)


@kernel
def _workspace(longest, operation):
    blocks = whole_vectors(longest)
    rows, width = matrix_shape(longest)
    return Workspace(
        aligned_empty((longest + 1) * (blocks + LANES) + (blocks + 1) * blocks),
        aligned_empty(rows * width),
        np.empty((64, 4), np.int64),
        aligned_empty((LANES + 2) * LANES).reshape((LANES + 2, LANES)),
        aligned_empty(3 * (blocks + LANES) * blocks if operation == HESSIAN_PRODUCT else 0),
        np.zeros((6, blocks + LANES)),
    )


@kernel
def _find_escapes(walk, n, single_root, workspace):
    """Write escape probabilities and inverses of exits, and return log Z, or NaN."""
    weights, inverse, size = walk.weights, walk.inverse, len(walk.inverse)
    shape = matrix_shape(n)
    matrix = workspace.matrix[: shape[0] * shape[1]].reshape(shape)
    own = matrix[:size]
    turn_to(weights, 1, size, own)
    for m in range(size):
        for h in range(size, size + LANES):
            own[m, h] = 0.0
    for m in range(n):
        own[m, size] = weights[0, m]
    for m in range(n, size):
        own[m, 0] = 1.0
    stack, scratch = workspace.stack, workspace.scratch
    value = escape_probabilities(n, single_root, matrix, stack, scratch, walk.escapes, inverse)
    if not math.isnan(value):
        for m in range(size):
            inverse[m] = 1.0 / inverse[m] if m < n else 0.0
    return value


@kernel
def _log_chance(value, weights, n, single_root, sums):
    """Return the log-probability that independently chosen heads form a tree; ``value`` is log Z.

    With a single root, all tokens except one choose their heads.
    """
    if single_root and n == 1:
        return 0.0
    for m in range(n, len(sums)):
        sums[m] = 1.0
    sum_columns(weights, 1 if single_root else 0, n + 1, n, sums)
    largest = 0.0
    if single_root:
        for m in range(n):
            largest = max(largest, weights[0, m] / sums[m])
        value -= math.log(largest)
    for m in range(0, n, LANES):
        value -= log_of_product(sums[m : m + LANES])
    return value


@kernel
def _returns(walk, n, single_root, others, largest):
    """Return the largest number of returns of a walk, with which errors of Hessian products grow.

    kernels.arborescences.matrix_tree explains it.

    Args:
        others: workspace, written: the sum of weights of all heads except the best. Subtracting the
            best head's weight from the full sum would lose others below 1e-16 of it.
        largest: workspace, written: the largest escape probability of each token.
    """
    for m in range(n):
        others[m] = 0.0
        # The root's own escape probability is 1. With a single root, the root is left out.
        largest[m] = 0.0 if single_root else 1.0
    for h in range(n + 1):
        row = walk.weights[h]
        for m in range(n):
            others[m] += row[m] if walk.best[m] != h else 0.0
    if single_root:
        for h in range(n):
            own = walk.escapes[h]
            for m in range(n):
                largest[m] = own[m] if own[m] > largest[m] else largest[m]
    found = 0.0
    for m in range(n):
        found = max(found, others[m] * walk.inverse[m] * largest[m])
    return found


@kernel
def _hessian_product(walk, n, single_root, along, workspace, out):
    """Write the Hessian product from escape probabilities Q and the inverses b of exits.

    Let e = w·(along − along of the best head). The tangent of log Q[h, m] in the marginal is

        −b[m]·Σ_k b[k]·(Q[h, k] − Q[m, k])·Σ_j e[j, k]·(Q[j, m] − Q[k, m])

    A common offset of all heads of a token changes nothing, and the tangents of the heads of a
    token sum to 0. So the tangent of its best head, whose weight may be much larger than all
    others, is neither read nor computed.

    Args:
        along: the direction, [head, modifier].
        out: written.
    """
    weights, best, escapes, inverse = walk
    size, reach = len(inverse), max(n, LANES)
    squares = workspace.squares[: 3 * (size + LANES) * size].reshape((3, size + LANES, size))
    tangents, left, both = squares[0], squares[1], squares[2]
    common, total, diagonal = workspace.rows[0], workspace.rows[1], workspace.rows[2]
    for m in range(n):
        common[m] = along[int(best[m]), m + 1]
    for h in range(reach + 1):
        for m in range(n, size):
            tangents[h, m] = 0.0
    read_change(weights, inverse, along, common, reach, single_root, tangents, total)
    for m in range(n):
        tangents[m, m] = -total[m]
    start = (np.int64(0), np.int64(0))
    turned_product(COLUMN, tangents, start, escapes, start, left, start, size, reach, size)
    product(NOTHING, escapes, start, left, start, both, start, size, n, size)
    for m in range(n):
        diagonal[m] = both[m, m]
    write_change(
        *(weights, escapes, inverse, along, common, best, left, both, diagonal),
        *(reach, single_root, total, out),
    )
    for m in range(n):
        out[int(best[m]), m + 1] = -total[m]


@kernel
def sum_by_escapes(start, stop, items, batch, along, operation, results):
    """Compute sums with marginals or Hessian products, as ``Family.before_total``.

    Items whose weights are too small get the status UNSOLVED, and so do Hessian products that would
    lose too many digits.
    """
    scores, lengths, options = batch
    single_root = options[2]
    log_partition, result, kept, status = results
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    workspace = _workspace(longest, operation)
    rows = workspace.rows
    spare = aligned_empty(_kept_size(longest) if kept.shape[1] == 0 else 0)
    # For sentences shorter than a vector, padded to one.
    short = np.zeros((LANES + 1, LANES + 1), result.dtype)
    short_along = np.zeros((LANES + 1, LANES + 1), along.dtype)
    largest_returns = LARGEST_RETURNS[0 if result.itemsize == 4 else 1]
    for b in items[start:stop]:
        n = lengths[b]
        own = kept[b] if kept.shape[1] > 0 else spare
        known = own[0] if n > 0 and operation == HESSIAN_PRODUCT and kept.shape[1] > 0 else UNKNOWN
        if known == REFUSED:
            continue
        log_partition[b], status[b] = 0.0, FEASIBLE
        result[b] = 0.0
        if n == 0:
            continue
        size = whole_vectors(n)
        begin, area = HEADER + size * size, (n + 1) * (size + LANES)
        matrix = workspace.matrices[:area].reshape((n + 1, size + LANES))
        walk = Walk(
            workspace.matrices[area : area + (size + 1) * size].reshape((size + 1, size)),
            rows[4],
            own[HEADER:begin].reshape((size, size)),
            own[begin : begin + size],
        )
        status[b], offset = read_weights(
            scores[b], n, options, matrix, walk.weights, 1, rows[3], rows[4]
        )
        if status[b] != FEASIBLE:
            continue
        target, own_along = (result[b], along[b]) if n >= LANES else (short, short_along)
        if known == UNKNOWN:
            value = _find_escapes(walk, n, single_root, workspace)
            if math.isnan(value) or not (
                _log_chance(value, walk.weights, n, single_root, rows[5]) > LOG_SMALLEST_CHANCE
                or loses_nothing(matrix, walk.weights, n, 1)
            ):
                status[b], own[0] = UNSOLVED, REFUSED
                continue
            log_partition[b] = value + offset
            write_probabilities(
                *(walk.weights, walk.escapes, walk.inverse, max(n, LANES), rows[0], target)
            )
            returns = _returns(walk, n, single_root, rows[0], rows[1])
            own[0] = ESCAPES if returns <= largest_returns else REFUSED
        if operation == HESSIAN_PRODUCT and own[0] == REFUSED:
            status[b] = UNSOLVED
            continue
        if operation == HESSIAN_PRODUCT:
            if n < LANES:
                copy(along[b], own_along, n + 1, n + 1)
            _hessian_product(walk, n, single_root, own_along, workspace, target)
        if n < LANES:
            copy(target, result[b], n + 1, n + 1)
