"""Sums over spanning arborescences by elimination, with the adjoint and its tangent.

See kernels.arborescences.matrix_tree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.arborescences.arborescence import (
    best_arborescence,
    float_workspace_size,
    integer_workspace_size,
)
from spacy_latent.kernels.arborescences.arc_weights import (
    FAST,
    loses_nothing,
    read_weights,
    sum_columns,
)
from spacy_latent.kernels.arborescences.escape_probabilities import SMALLEST_PIVOT
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, UNSOLVED
from spacy_latent.kernels.simd.vector import GROUP, LANES, copy, fused_loop

# Smallest product of all pivots, each divided by the sum of its token's weights. Errors and
# gradients grow with its inverse, and second derivatives with the square of its inverse.
SMALLEST_CHANCE = 1e-100

# Loops over the tokens m below k take four heads at a time (see kernels.simd.vector).
HEADS = GROUP
_pass_on = fused_loop([("add", i, ((i, 4),)) for i in range(4)])
_gather = fused_loop(
    [("add", 0, ((0, 2), (1, 3), (2, 4), (3, 5))), *(("dot", i, ((1, 2 + i),)) for i in range(4))]
)
_pass_on_tangent = fused_loop([("add", i, ((i, 4), (4 + i, 5))) for i in range(4)])
_gather_tangent = fused_loop(
    [
        ("add", 0, tuple((i, 7 + i) for i in range(4)) + tuple((4 + i, 3 + i) for i in range(4))),
        *(("dot", i, ((2, 3 + i), (1, 7 + i))) for i in range(4)),
    ]
)


class Elimination(NamedTuple):
    """An elimination of n tokens, or its tangent. Squares are of :func:`padded_shape`.

    Attributes:
        weights: [head, modifier]. Row k becomes the weights w[k, m], m < k, at the elimination of
            token k.
        shares: shares[k, h] is f[h] of k for h < k, and 0 elsewhere.
        gradient: ∂ log Z / ∂ weight, [head, modifier].
        reach: reach[k, h] = Σ_m w[k, m] · gradient[h, m] over m < k.
        pivots: d.
    """

    weights: np.ndarray
    shares: np.ndarray
    gradient: np.ndarray
    reach: np.ndarray
    pivots: np.ndarray


@kernel
def workspace(squares, pivots, n):
    """Return an elimination of n tokens in a flat array of at least four squares."""
    shape = padded_shape(n)
    area = shape[0] * shape[1]
    return Elimination(
        squares[:area].reshape(shape),
        squares[area : 2 * area].reshape(shape),
        squares[2 * area : 3 * area].reshape(shape),
        squares[3 * area : 4 * area].reshape(shape),
        pivots,
    )


@kernel
def padded_shape(n):
    """Return the shape of the square workspaces: whole vectors and whole groups of heads.

    Only (n+1, n+1) entries are used. The padding is finite and does not affect them.
    """
    return n + 2 * HEADS - 1, (n + LANES) // LANES * LANES


@kernel(fastmath=FAST)
def eliminate(own, n, first_node, smallest_chance, row):
    """Eliminate the tokens n .. 1: write weights, shares and pivots.

    Args:
        first_node: the first node that counts in pivots: 1 with a single root, else 0.
        smallest_chance: see SMALLEST_CHANCE.

    Returns:
        log Z, or NaN if pivots are too small for a precise result.
    """
    w, shares, pivots = own.weights, own.shares, own.pivots
    total, chance = 0.0, 1.0
    sum_columns(w, first_node, n + 1, n + 1, pivots)
    for k in range(n, 0, -1):
        share = shares[k]
        pivot = 0.0
        for h in range(k):
            share[h] = w[h, k]
        for h in range(first_node if k > 1 else 0, k):
            pivot += share[h]
        if not pivot > SMALLEST_PIVOT:
            return np.nan
        # The root's arcs form the last pivot. They choose its child and close no cycle.
        if k > first_node:
            chance *= pivot / pivots[k]
            if not chance >= smallest_chance:
                return np.nan
        total += math.log(pivot)
        inverse = 1.0 / pivot
        for h in range(k):
            share[h] *= inverse
        for h in range(k, share.shape[0]):
            share[h] = 0.0
        pivots[k] = pivot
        _read_row(w[k], k, row)
        # The diagonal would get self-loops. It is never read.
        for h in range(0, k, HEADS):
            _pass_on(
                (w[h], w[h + 1], w[h + 2], w[h + 3], row),
                (share[h], share[h + 1], share[h + 2], share[h + 3]),
                0,
                k,
            )
    return total


@kernel
def _read_row(source, k, row):
    """Copy the entries before column k, and write 0 to the others."""
    for m in range(k):
        row[m] = source[m]
    for m in range(k, row.shape[0]):
        row[m] = 0.0


@kernel(fastmath=FAST)
def _adjoint(own, n, first_node, row, passed):
    """Write gradient and reach after :func:`eliminate`."""
    w, shares, g = own.weights, own.shares, own.gradient
    g[:] = 0.0
    for k in range(1, n + 1):
        inverse = 1.0 / own.pivots[k]
        begin = first_node if k > 1 else 0
        _read_row(w[k], k, row)
        passed[:] = 0.0
        share, reached = shares[k], own.reach[k]
        for h in range(0, k, HEADS):
            _, reached[h], reached[h + 1], reached[h + 2], reached[h + 3] = _gather(
                (passed, row, g[h], g[h + 1], g[h + 2], g[h + 3]),
                (share[h], share[h + 1], share[h + 2], share[h + 3]),
                0,
                k,
            )
        mean = 0.0
        for h in range(k):
            mean += share[h] * reached[h]
        for m in range(1, k):
            g[k, m] = passed[m]
        for h in range(k):
            value = reached[h]
            if h >= begin:
                value += 1.0 - mean
            g[h, k] = max(value, 0.0) * inverse


@kernel(fastmath=FAST)
def _tangent(own, tangents, n, first_node, row, drow):
    """Write the tangents of the results of :func:`eliminate`, from the tangents of the weights."""
    w, shares, dw, dshares = own.weights, own.shares, tangents.weights, tangents.shares
    for k in range(n, 0, -1):
        share, dshare = shares[k], dshares[k]
        dpivot = 0.0
        for h in range(k):
            dshare[h] = dw[h, k]
        for h in range(first_node if k > 1 else 0, k):
            dpivot += dshare[h]
        inverse = 1.0 / own.pivots[k]
        for h in range(k):
            dshare[h] = (dshare[h] - share[h] * dpivot) * inverse
        for h in range(k, dshare.shape[0]):
            dshare[h] = 0.0
        tangents.pivots[k] = dpivot
        _read_row(w[k], k, row)
        _read_row(dw[k], k, drow)
        for h in range(0, k, HEADS):
            _pass_on_tangent(
                (dw[h], dw[h + 1], dw[h + 2], dw[h + 3], row, drow),
                (
                    *(dshare[h], dshare[h + 1], dshare[h + 2], dshare[h + 3]),
                    *(share[h], share[h + 1], share[h + 2], share[h + 3]),
                ),
                0,
                k,
            )


@kernel(fastmath=FAST)
def _tangent_of_adjoint(own, tangents, n, first_node, rows):
    """Write the tangent of the gradient after :func:`_tangent`."""
    w, shares, g = own.weights, own.shares, own.gradient
    dw, dshares, dg = tangents.weights, tangents.shares, tangents.gradient
    row, drow, dpassed, dreach = rows[0], rows[1], rows[2], rows[3]
    dg[:] = 0.0
    for k in range(1, n + 1):
        dpivot, inverse = tangents.pivots[k], 1.0 / own.pivots[k]
        begin = first_node if k > 1 else 0
        share, dshare, reached = shares[k], dshares[k], own.reach[k]
        _read_row(w[k], k, row)
        _read_row(dw[k], k, drow)
        dpassed[:] = 0.0
        for h in range(0, k, HEADS):
            _, dreach[h], dreach[h + 1], dreach[h + 2], dreach[h + 3] = _gather_tangent(
                (
                    *(dpassed, row, drow, g[h], g[h + 1], g[h + 2], g[h + 3]),
                    *(dg[h], dg[h + 1], dg[h + 2], dg[h + 3]),
                ),
                (
                    *(share[h], share[h + 1], share[h + 2], share[h + 3]),
                    *(dshare[h], dshare[h + 1], dshare[h + 2], dshare[h + 3]),
                ),
                0,
                k,
            )
        dmean = 0.0
        for h in range(k):
            dmean += dshare[h] * reached[h] + share[h] * dreach[h]
        for m in range(1, k):
            dg[k, m] = dpassed[m]
        for h in range(k):
            value = dreach[h]
            if h >= begin:
                value -= dmean
            dg[h, k] = (value - g[h, k] * dpivot) * inverse


@kernel
def root_child(scores, n, heads, integers, floats):
    """Return the root's child in the best tree with a single root, or 0 if there is none."""
    if best_arborescence(scores, n, True, heads, integers, floats) != FEASIBLE:
        return 0
    for modifier in range(1, n + 1):
        if heads[modifier] == 0:
            return modifier
    return 0


@kernel
def last_token(scores, n, single_root):
    """Return the token to eliminate last, or 0 if there is no tree.

    If the root is single, it must be a possible child of the root.
    """
    heads, integers = np.empty(n + 1, np.int32), np.empty(integer_workspace_size(n), np.int32)
    floats = np.empty(float_workspace_size(n))
    if single_root:
        return root_child(scores, n, heads, integers, floats)
    found = best_arborescence(scores, n, False, heads, integers, floats)
    return 1 if found == FEASIBLE else 0


@kernel
def swap(a, i, j, n):
    """Exchange nodes i and j of ``a`` ``(n+1, ...)``."""
    for k in range(n + 1):
        a[i, k], a[j, k] = a[j, k], a[i, k]
    for k in range(n + 1):
        a[k, i], a[k, j] = a[k, j], a[k, i]


@kernel
def _write_marginals(weights, g, n, out):
    for h in range(n + 1):
        of_head, adjoint, target = weights[h], g[h], out[h]
        for m in range(n + 1):
            target[m] = of_head[m] * adjoint[m]


@kernel
def _tangents_of_weights(weights, along, n, result):
    """Write the tangent of the weights, 0 for an arc of weight 0."""
    result[:] = 0.0
    for h in range(n + 1):
        of_head, upstream, target = weights[h], along[h], result[h]
        for m in range(n + 1):
            value = of_head[m] * upstream[m]
            target[m] = value if of_head[m] > 0.0 else 0.0


@kernel
def _write_products(weights, g, dg, along, n, out):
    for h in range(n + 1):
        of_head, adjoint, tangent = weights[h], g[h], dg[h]
        upstream, target = along[h], out[h]
        for m in range(n + 1):
            value = of_head[m] * (adjoint[m] * upstream[m] + tangent[m])
            target[m] = value if of_head[m] > 0.0 else 0.0


@kernel
def sum_over_trees(start, stop, items, batch, along, operation, results):
    """Compute sums over trees by elimination, as ``Family.total`` of kernels.autograd.families.

    Scores are ``(B, N+1, N+1)``, [head, modifier]. No values are saved for later calls.
    """
    scores, lengths, options = batch
    single_root = options[2]
    log_partition, result, _, status = results
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    area, first_node = padded_shape(longest)[0] * padded_shape(longest)[1], 1 if single_root else 0
    integers = np.empty(integer_workspace_size(longest), dtype=np.int32)
    floats = np.empty(float_workspace_size(longest))
    heads = np.empty(longest + 1, dtype=np.int32)
    rows, pivots = np.zeros((4, padded_shape(longest)[1])), np.empty((2, longest + 1))
    matrices, squares = np.empty(2 * area), np.empty(4 * area)
    d_squares = np.empty(4 * area if operation == HESSIAN_PRODUCT else 0)
    along_workspace = np.empty((longest + 1) ** 2 if operation == HESSIAN_PRODUCT else 0)
    for b in items[start:stop]:
        n, size, shape = lengths[b], lengths[b] + 1, padded_shape(lengths[b])
        log_partition[b], status[b] = 0.0, FEASIBLE
        if operation != LOG_PARTITION:
            result[b] = 0.0
        if n == 0:
            continue
        own = workspace(squares, pivots[0], n)
        weights = matrices[: shape[0] * shape[1]].reshape(shape)
        matrix = matrices[area : area + size * shape[1]].reshape((size, shape[1]))
        status[b], offset = read_weights(
            scores[b], n, options, matrix, weights, 0, rows[0], rows[1]
        )
        # With a single root, the token eliminated last must be a possible child of the root.
        child = 1
        if single_root and status[b] == FEASIBLE:
            child = root_child(matrix, n, heads, integers, floats)
            if child == 0:
                status[b] = INFEASIBLE
        if status[b] != FEASIBLE:
            continue
        if child != 1:
            swap(weights, 1, child, n)
            swap(matrix, 1, child, n)
        value = np.nan
        for smallest_chance in (SMALLEST_CHANCE, 0.0):
            copy(weights, own.weights, *shape)
            value = eliminate(own, n, first_node, smallest_chance, rows[0])
            # If only log Z is wanted and no weight has underflowed, repeat without the bound on the
            # chance.
            if (
                operation != LOG_PARTITION
                or not math.isnan(value)
                or not loses_nothing(matrix, weights, n, 0)
            ):
                break
        if math.isnan(value):
            status[b] = UNSOLVED
            continue
        log_partition[b] = value + offset
        if operation != LOG_PARTITION:
            _adjoint(own, n, first_node, rows[0], rows[1])
        if operation == MARGINALS:
            _write_marginals(weights, own.gradient, n, result[b])
        elif operation == HESSIAN_PRODUCT:
            swapped = along_workspace[: size * size].reshape((size, size))
            copy(along[b], swapped, size, size)
            if child != 1:
                swap(swapped, 1, child, n)
            tangents = workspace(d_squares, pivots[1], n)
            _tangents_of_weights(weights, swapped, n, tangents.weights)
            _tangent(own, tangents, n, first_node, rows[0], rows[1])
            _tangent_of_adjoint(own, tangents, n, first_node, rows)
            _write_products(weights, own.gradient, tangents.gradient, swapped, n, result[b])
        if child != 1 and operation != LOG_PARTITION:
            swap(result[b], 1, child, n)
