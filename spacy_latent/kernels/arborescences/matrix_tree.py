"""Sums over spanning arborescences without subtraction.

Sums over arborescences are determinants of a Laplacian (Koo et al. 2007; Smith and Smith 2007). The
determinant loses all digits if two tokens prefer each other. The elimination of Grassmann, Taksar
and Heyman (1985) avoids this. It removes a token k and gives each arc k → m to the heads of k, in
shares f[h] = w[h, k] / d with the pivot d = Σ_h w[h, k]: w[h, m] += f[h]·w[k, m]. Self-loops are
dropped. Then log Z = Σ_k log d. Every number stays positive and accurate to its last digits. With a
single root, the root's arcs count only to first order. They are left out of d, except for the last
token, whose d is its root arc.

**Underflow.** Weights are exp(score − the column's best), and everything is float64. If
cancellation is strong, weights that underflowed could matter, or the adjoint could overflow. The
same elimination then runs on logarithms. The effect of a lost weight is at most its quotient by the
product of all pivots. This product is the probability that independently chosen heads form a tree
(SMALLEST_CHANCE). If every arc between tokens has a weight of at least SMALLEST_WEIGHT, no weight
is lost: weights between tokens only grow, and a summand that underflows is smaller than the other
one by a factor of 1e-100. Sums and marginals then need no logarithms, however improbable trees are.

**Marginals** are w[h, m]·B[m, m]·Q[h, m], with the inverse B of the Laplacian and the escape
probabilities Q of a walk over heads. kernels.arborescences.escape_probabilities computes both
without subtraction. Marginals then have a relative error of about 1e-14, however small they are,
also with a single root. It was at most 2e-14 for 12 and 30 tokens at scores of scale 1 to 40, with
2e-134 as the smallest marginal. Marginals below 1e-150 may be lost.

**Hessian products** take two matrix products with Q, and differences of entries of Q. Their error
grows with the *returns*: the mean number of times that a walk from a token leaves this token by
another arc than its best one before it reaches the root. With a single root, the error grows with
that number times the largest Q of the token. For 12 and 50 tokens at scores of scale 5 to 40, the
error was at most a few 1e-15 and 2e-15 times that number, times the vector. If the number exceeds
LARGEST_RETURNS of the required precision, the product comes from the elimination and its adjoint.
The subtraction there, 1 − Σ_h f[h]·reach[h], has an error of a few 1e-15 for any scores. Marginals
are computed in the same way if weights are too small for
kernels.arborescences.escape_probabilities. Marginals below 1e-15 may then have no correct digit.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.arborescences.arborescence import (
    best_arborescence,
    best_arborescences,
    float_workspace_size,
    integer_workspace_size,
)
from spacy_latent.kernels.arborescences.escape_probabilities import (
    COLUMN,
    column_weights,
    escape_probabilities,
    log_of_product,
    product,
    read_change,
    room_shape,
    turn_to,
    turned_product,
    write_change,
    write_probabilities,
)
from spacy_latent.kernels.arborescences.escape_probabilities import NOTHING as ZERO
from spacy_latent.kernels.autograd.operators import Family
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.draws import choose
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, UNSOLVED
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.arc_scores import read_arc_scores
from spacy_latent.kernels.simd.vector import GROUP, LANES, aligned_empty, fused_loop

# Weights below 1e−308 underflow. They cannot matter in a pivot above this.
SMALLEST_PIVOT = 1e-150
# Smallest product of all pivots, each divided by the sum of its token's weights. Errors and
# gradients grow with its inverse, and second derivatives with the square of its inverse.
SMALLEST_CHANCE = 1e-100
LOG_SMALLEST_CHANCE = math.log(SMALLEST_CHANCE)
# Products of two such weights and a share do not underflow.
SMALLEST_WEIGHT = 1e-100
# Largest number of returns of a walk to a token (see above), in float32 and float64.
LARGEST_RETURNS = 1e7, 1e3
HEADER = LANES
# Kind of values saved for an item: none, escape probabilities, or none because Hessian products
# need the elimination.
NOTHING, ESCAPES, REFUSED = 0.0, 1.0, 2.0
FAST = {"reassoc", "contract", "nsz"}


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


@kernel
def _shape(n):
    """Return the shape of the square workspaces: whole vectors and whole groups of heads.

    Only (n+1, n+1) entries are used. The padding is finite and does not affect them.
    """
    return n + 2 * HEADS - 1, (n + LANES) // LANES * LANES


@kernel(fastmath=FAST)
def _eliminate(w, n, first, smallest_chance, shares, pivots, row):
    """Eliminate tokens n .. 1 of ``w``, [head, modifier], in place.

    Afterwards row k holds the weights w[k, m], m < k, at the elimination of token k.

    Args:
        first: the first node that counts in pivots: 1 with a single root, else 0.
        smallest_chance: see SMALLEST_CHANCE.
        shares: like w; written: shares[k, h] is f[h] of k for h < k, and 0 elsewhere.
        pivots: written: d.
        row: workspace.

    Returns:
        log Z, or NaN if pivots are too small for a precise result.
    """
    total, chance = 0.0, 1.0
    _sum_columns(w, first, n + 1, n + 1, pivots)
    for k in range(n, 0, -1):
        share = shares[k]
        pivot = 0.0
        for h in range(k):
            share[h] = w[h, k]
        for h in range(first if k > 1 else 0, k):
            pivot += share[h]
        if not pivot > SMALLEST_PIVOT:
            return np.nan
        # The root's arcs form the last pivot. They choose its child and close no cycle.
        if k > first:
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


@kernel(fastmath=FAST)
def _sum_columns(weights, begin, end, columns, sums):
    """Write the sums of columns over the rows from ``begin`` to ``end``."""
    for m in range(columns):
        sums[m] = 0.0
    for h in range(begin, end):
        row = weights[h]
        for m in range(columns):
            sums[m] += row[m]


@kernel
def _read_row(source, k, row):
    """Copy the entries before column k, and write 0 to the others."""
    for m in range(k):
        row[m] = source[m]
    for m in range(k, row.shape[0]):
        row[m] = 0.0


@kernel(fastmath=FAST)
def _adjoint(w, n, first, shares, pivots, g, reach, row, passed):
    """Write the gradient ∂ log Z / ∂ weight to ``g``, [head, modifier], after :func:`_eliminate`.

    Args:
        g: zeros at first.
        reach: like w; written: reach[k, h] = Σ_m w[k, m]·g[h, m] over m < k.
        row, passed: workspaces.
    """
    for k in range(1, n + 1):
        inverse = 1.0 / pivots[k]
        begin = first if k > 1 else 0
        _read_row(w[k], k, row)
        passed[:] = 0.0
        share, reached = shares[k], reach[k]
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
def _tangent(w, n, first, shares, pivots, g, reach, dw, dshares, dg, rows):
    """Write the tangent ``dg`` of the gradient ``g`` along the tangent ``dw`` of the weights.

    Args:
        w .. reach: the results of _eliminate and _adjoint.
        dw: overwritten.
        dg: zeros at first.
        dshares: workspace like shares.
        rows: ``(5, width)`` workspace.
    """
    row, drow, dpassed, dreach, dpivots = rows[0], rows[1], rows[2], rows[3], rows[4]
    for k in range(n, 0, -1):
        share, dshare = shares[k], dshares[k]
        dpivot = 0.0
        for h in range(k):
            dshare[h] = dw[h, k]
        for h in range(first if k > 1 else 0, k):
            dpivot += dshare[h]
        inverse = 1.0 / pivots[k]
        for h in range(k):
            dshare[h] = (dshare[h] - share[h] * dpivot) * inverse
        for h in range(k, dshare.shape[0]):
            dshare[h] = 0.0
        dpivots[k] = dpivot
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
    for k in range(1, n + 1):
        dpivot, inverse = dpivots[k], 1.0 / pivots[k]
        begin = first if k > 1 else 0
        share, dshare, reached = shares[k], dshares[k], reach[k]
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
def _change_of_escapes(weights, best, escapes, inverse, n, single_root, along, squares, rows, out):
    """Write the Hessian product from escape probabilities Q and the inverses b of exits.

    Let e = w·(along − along of the best head). The tangent of log Q[h, m] in the marginal is

        −b[m]·Σ_k b[k]·(Q[h, k] − Q[m, k])·Σ_j e[j, k]·(Q[j, m] − Q[k, m])

    A common offset of all heads of a token changes nothing, and the tangents of the heads of a
    token sum to 0. So the tangent of its best head, whose weight may be much larger than all
    others, is neither read nor computed.

    Args:
        along: the direction, [head, modifier].
        squares: three square workspaces.
        rows: three rows of workspace.
        out: written.
    """
    change, left, both = squares[0], squares[1], squares[2]
    common, total, diagonal = rows[0], rows[1], rows[2]
    size, reach = change.shape[1], max(n, LANES)
    for m in range(n):
        common[m] = along[int(best[m]), m + 1]
    for h in range(reach + 1):
        for m in range(n, size):
            change[h, m] = 0.0
    read_change(weights, inverse, along, common, reach, single_root, change, total)
    for m in range(n):
        change[m, m] = -total[m]
    turned_product(COLUMN, change, 0, 0, escapes, 0, 0, left, 0, 0, size, reach, size)
    product(ZERO, escapes, 0, 0, left, 0, 0, both, 0, 0, size, n, size)
    for m in range(n):
        diagonal[m] = both[m, m]
    write_change(
        *(weights, escapes, inverse, along, common, best, left, both, diagonal),
        *(reach, single_root, total, out),
    )
    for m in range(n):
        out[int(best[m]), m + 1] = -total[m]


@kernel
def _read_weights(scores, n, direction, max_arc_length, matrix, weights, begin, top, best):
    """Write the scores and the weights of one sentence.

    Args:
        matrix: ``(n+1, ...)``, [head, modifier], written: the scores.
        weights: [head, modifier], written: exp(score − top of its modifier), for modifiers from
            ``begin`` on. Rows after n are 0.
        best: written: a head with the top score.

    Returns:
        The status, and the sum of top over the tokens.
    """
    status = read_arc_scores(scores, n, direction, max_arc_length, matrix)
    if status != FEASIBLE:
        return status, 0.0
    column_weights(matrix, begin, n + 1, weights.shape[1], weights, top, best)
    for h in range(n + 1, weights.shape[0]):
        weights[h] = 0.0
    offset = 0.0
    for m in range(1 - begin, n + 1 - begin):
        offset += top[m]
        if not weights[int(best[m]), m] > 0.0:
            return INFEASIBLE, 0.0
    return FEASIBLE, offset


@kernel
def _loses_nothing(matrix, weights, n, begin):
    """Return whether no weight has underflowed: all are at least SMALLEST_WEIGHT.

    Arcs from the root may also be forbidden, since the first eliminated token with a root arc gives
    one to all others.

    Args:
        matrix, weights, begin: see :func:`_read_weights`.
    """
    for h in range(n + 1):
        for m in range(1, n + 1):
            if h != m and not weights[h, m - begin] >= SMALLEST_WEIGHT:
                if h > 0 or matrix[h, m] > -np.inf:
                    return False
    return True


@kernel
def _log_add(a, b):
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + math.log1p(math.exp(b - a))


@kernel
def _mix(a, da, b, db):
    """Return the tangent of log(e^a + e^b), for tangents da of a and db of b."""
    top = max(a, b)
    if top == -np.inf:
        return 0.0
    ea, eb = math.exp(a - top), math.exp(b - top)
    return (ea * da + eb * db) / (ea + eb)


@kernel
def log_domain(w, n, first, dw, g, dg):
    """Run elimination, adjoint and tangent on logarithms.

    Args:
        w: ``(n+1, n+1)``, [modifier, head], log weights; overwritten.
        dw: the tangent of w; overwritten.
        g, dg: written: log ∂ log Z / ∂ weight, and its tangent.

    Returns:
        log Z, or −inf.
    """
    total = 0.0
    for k in range(n, 0, -1):
        begin = first if k > 1 else 0
        pivot, dpivot = -np.inf, 0.0
        for h in range(begin, k):
            dpivot = _mix(pivot, dpivot, w[k, h], dw[k, h])
            pivot = _log_add(pivot, w[k, h])
        if pivot == -np.inf:
            return -np.inf
        total += pivot
        for h in range(k):
            w[k, h] -= pivot
            dw[k, h] -= dpivot
        w[k, k], dw[k, k] = pivot, dpivot
        for m in range(1, k):
            for h in range(k):
                if h != m:
                    b, db = w[m, k] + w[k, h], dw[m, k] + dw[k, h]
                    dw[m, h] = _mix(w[m, h], dw[m, h], b, db)
                    w[m, h] = _log_add(w[m, h], b)
    for k in range(1, n + 1):
        begin = first if k > 1 else 0
        for m in range(1, k):
            value, derivative = -np.inf, 0.0
            for h in range(k):
                if h != m:
                    b, db = w[k, h] + g[m, h], dw[k, h] + dg[m, h]
                    derivative = _mix(value, derivative, b, db)
                    value = _log_add(value, b)
            g[m, k], dg[m, k] = value, derivative
        mean, dmean = 0.0, 0.0
        for h in range(k):
            value, derivative = -np.inf, 0.0
            for m in range(1, k):
                if h != m:
                    b, db = w[m, k] + g[m, h], dw[m, k] + dg[m, h]
                    derivative = _mix(value, derivative, b, db)
                    value = _log_add(value, b)
            g[k, h], dg[k, h] = value, derivative
            if value > -np.inf and w[k, h] > -np.inf:
                share = math.exp(w[k, h] + value)
                mean += share
                dmean += share * (dw[k, h] + derivative)
        for h in range(k):
            value, derivative = g[k, h], dg[k, h]
            if h >= begin:
                if value > 30.0:
                    # e^value may overflow, and 1 − mean only affects the last digits of its
                    # logarithm.
                    small = (1.0 - mean) * math.exp(-value)
                    value += math.log1p(small)
                    derivative -= math.exp(-g[k, h]) * (dmean + (1.0 - mean) * dg[k, h])
                else:
                    reach = math.exp(value)
                    own = 1.0 - mean + reach
                    if own > 1e-300:
                        derivative = (reach * derivative - dmean) / own
                        value = math.log(own)
                    else:
                        value, derivative = -np.inf, 0.0
            g[k, h] = value - w[k, k]
            dg[k, h] = derivative - dw[k, k]
        g[k, k], dg[k, k] = -np.inf, 0.0
    return total


@kernel
def _root_child(scores, n, heads, integers, floats):
    """Return the root's child in the best tree with a single root, or 0 if there is none."""
    if best_arborescence(scores, n, True, heads, integers, floats) != FEASIBLE:
        return 0
    for modifier in range(1, n + 1):
        if heads[modifier] == 0:
            return modifier
    return 0


@kernel
def _copy(source, target, rows, columns):
    """Copy a matrix; numba's own assignment takes seconds to compile."""
    for i in range(rows):
        of_row, row = source[i], target[i]
        for j in range(columns):
            row[j] = of_row[j]


@kernel
def _swap(a, i, j, n):
    """Exchange nodes i and j of ``a`` ``(n+1, ...)``."""
    for k in range(n + 1):
        a[i, k], a[j, k] = a[j, k], a[i, k]
    for k in range(n + 1):
        a[k, i], a[k, j] = a[k, j], a[k, i]


@kernel
def _squares(room, n):
    """Return the square workspaces of an item of n tokens.

    They are for the weights before and after elimination, the shares, the adjoint, and its reach.
    """
    shape = _shape(n)
    squares = room[: 5 * shape[0] * shape[1]].reshape((5, *shape))
    return squares[0], squares[1], squares[2], squares[3], squares[4]


def kept_size(n):
    """Return the float64 numbers that an item of n tokens may save.

    They are a header with the kind of saved values, the escape probabilities, and the inverses of
    exits. It is Python code, since n may be a symbolic size of torch.
    """
    size = (n + LANES - 1) // LANES * LANES
    return HEADER + size * size + size


_kept_size = kernel(kept_size)


@kernel
def _kept_escapes(kept, n):
    size = (n + LANES - 1) // LANES * LANES
    area = size * size
    escapes = kept[HEADER : HEADER + area].reshape((size, size))
    return escapes, kept[HEADER + area : HEADER + area + size]


@kernel
def _find_escapes(weights, n, single_root, escapes, inverse, room, stack, scratch):
    """Write escape probabilities and inverses of exits.

    kernels.arborescences.escape_probabilities explains them.

    Returns:
        log Z, or NaN.
    """
    size = len(inverse)
    own = room[:size]
    turn_to(weights, 1, size, own)
    for m in range(size):
        for h in range(size, size + LANES):
            own[m, h] = 0.0
    for m in range(n):
        own[m, size] = weights[0, m]
    for m in range(n, size):
        own[m, 0] = 1.0
    value = escape_probabilities(n, single_root, room, stack, scratch, escapes, inverse)
    if not math.isnan(value):
        for m in range(size):
            inverse[m] = 1.0 / inverse[m] if m < n else 0.0
    return value


@kernel
def _log_chance(value, weights, n, single_root, sums):
    """Return the log-probability that independently chosen heads form a tree; ``value`` is log Z.

    With a single root, all tokens except one choose their heads.

    Args:
        weights: [head, token].
        sums: workspace of whole blocks.
    """
    if single_root and n == 1:
        return 0.0
    for m in range(n, len(sums)):
        sums[m] = 1.0
    _sum_columns(weights, 1 if single_root else 0, n + 1, n, sums)
    largest = 0.0
    if single_root:
        for m in range(n):
            largest = max(largest, weights[0, m] / sums[m])
        value -= math.log(largest)
    for m in range(0, n, LANES):
        value -= log_of_product(sums[m : m + LANES])
    return value


@kernel
def _returns(weights, best, escapes, inverse, n, single_root, others, largest):
    """Return the largest number of returns of a walk, with which errors of Hessian products grow.

    The module explains it.

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
        row = weights[h]
        for m in range(n):
            others[m] += row[m] if best[m] != h else 0.0
    if single_root:
        for h in range(n):
            own = escapes[h]
            for m in range(n):
                largest[m] = own[m] if own[m] > largest[m] else largest[m]
    found = 0.0
    for m in range(n):
        found = max(found, others[m] * inverse[m] * largest[m])
    return found


@kernel
def sum_by_escapes(
    start,
    stop,
    items,
    scores,
    lengths,
    direction,
    max_arc_length,
    single_root,
    change,
    what,
    log_partition,
    result,
    kept,
    status,
):
    """Compute the sums (what > 0) like :func:`sum_over_trees`, by escape probabilities.

    Items whose weights are too small get the status UNSOLVED, and so do Hessian products that would
    lose too many digits.
    """
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    blocks = (longest + LANES - 1) // LANES * LANES
    rows = np.zeros((6, blocks + LANES))
    tops, best = rows[3], rows[4]
    spare = aligned_empty(_kept_size(longest) if kept.shape[1] == 0 else 0)
    rows_of_room, width = room_shape(longest)
    room_of_longest = aligned_empty(rows_of_room * width)
    squares_room = aligned_empty(3 * (blocks + LANES) * blocks if what == 2 else 0)
    matrices = aligned_empty((longest + 1) * (blocks + LANES) + (blocks + 1) * blocks)
    stack = np.empty((64, 4), np.int64)
    scratch = aligned_empty((LANES + 2) * LANES).reshape((LANES + 2, LANES))
    # For sentences shorter than a vector, padded to one.
    short = np.zeros((LANES + 1, LANES + 1), result.dtype)
    short_along = np.zeros((LANES + 1, LANES + 1), change.dtype)
    largest_returns = LARGEST_RETURNS[0 if result.itemsize == 4 else 1]
    for b in items[start:stop]:
        n = lengths[b]
        own = kept[b] if kept.shape[1] > 0 else spare
        known = own[0] if n > 0 and what == 2 and kept.shape[1] > 0 else NOTHING
        if known == REFUSED:
            continue
        log_partition[b] = 0.0
        result[b] = 0.0
        status[b] = FEASIBLE
        if n == 0:
            continue
        escapes, inverse = _kept_escapes(own, n)
        size = len(inverse)
        area = (n + 1) * (size + LANES)
        matrix = matrices[:area].reshape((n + 1, size + LANES))
        weights = matrices[area : area + (size + 1) * size].reshape((size + 1, size))
        status[b], offset = _read_weights(
            *(scores[b], n, direction, max_arc_length, matrix, weights, 1, tops, best)
        )
        if status[b] != FEASIBLE:
            continue
        if known == NOTHING:
            own[0] = NOTHING
            shape = room_shape(n)
            room = room_of_longest[: shape[0] * shape[1]].reshape(shape)
            value = _find_escapes(weights, n, single_root, escapes, inverse, room, stack, scratch)
            if math.isnan(value) or not (
                _log_chance(value, weights, n, single_root, rows[5]) > LOG_SMALLEST_CHANCE
                or _loses_nothing(matrix, weights, n, 1)
            ):
                status[b], own[0] = UNSOLVED, REFUSED
                continue
            log_partition[b] = value + offset
            target = result[b] if n >= LANES else short
            write_probabilities(weights, escapes, inverse, max(n, LANES), rows[0], target)
            if n < LANES and what == 1:
                _copy(target, result[b], n + 1, n + 1)
            own[0] = ESCAPES
            returns = _returns(weights, best, escapes, inverse, n, single_root, rows[0], rows[1])
            if not returns <= largest_returns:
                own[0] = REFUSED
        if what == 2:
            if own[0] == REFUSED:
                status[b] = UNSOLVED
                continue
            along, target = change[b], result[b]
            if n < LANES:
                along, target = short_along, short
                _copy(change[b], along, n + 1, n + 1)
            squares = squares_room[: 3 * (size + LANES) * size].reshape((3, size + LANES, size))
            _change_of_escapes(
                *(weights, best, escapes, inverse, n, single_root, along, squares, rows),
                target,
            )
            if n < LANES:
                _copy(target, result[b], n + 1, n + 1)


@kernel
def sum_over_trees(
    start,
    stop,
    items,
    scores,
    lengths,
    direction,
    max_arc_length,
    single_root,
    change,
    what,
    log_partition,
    result,
    kept,
    status,
):
    """Compute sums over trees by elimination, as ``Family.total`` of kernels.autograd.operators.

    Scores are ``(B, N+1, N+1)``, [head, modifier]. No values are saved for later calls.
    """
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    rows_of_longest, widest = _shape(longest)
    area = rows_of_longest * widest
    integers = np.empty(integer_workspace_size(longest), dtype=np.int32)
    floats = np.empty(float_workspace_size(longest))
    heads = np.empty(longest + 1, dtype=np.int32)
    rows = np.zeros((5, widest))
    squares_room = np.empty(5 * area)
    pivots = np.empty(longest + 1)
    tangents = np.empty((3 if what == 2 else 0) * area)
    along_room = np.empty((longest + 1) ** 2 if what == 2 else 0)
    matrix_room = np.empty(area)
    first = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        size = n + 1
        shape = _shape(n)
        log_partition[b] = 0.0
        if what > 0:
            result[b] = 0.0
        status[b] = FEASIBLE
        if n == 0:
            continue
        weights, w, shares, g, reach = _squares(squares_room, n)
        matrix = matrix_room[: size * shape[1]].reshape((size, shape[1]))
        status[b], offset = _read_weights(
            *(scores[b], n, direction, max_arc_length, matrix, weights, 0, rows[0], rows[1])
        )
        # With a single root, the token eliminated last must be a possible child of the root.
        child = 1
        if single_root and status[b] == FEASIBLE:
            child = _root_child(matrix, n, heads, integers, floats)
            if child == 0:
                status[b] = INFEASIBLE
        if status[b] != FEASIBLE:
            continue
        if child != 1:
            _swap(weights, 1, child, n)
        _copy(weights, w, *shape)
        value = _eliminate(w, n, first, SMALLEST_CHANCE, shares, pivots, rows[0])
        if math.isnan(value) and what == 0:
            if child != 1:
                _swap(matrix, 1, child, n)
            if _loses_nothing(matrix, weights, n, 0):
                _copy(weights, w, *shape)
                value = _eliminate(w, n, first, 0.0, shares, pivots, rows[0])
        if math.isnan(value):
            status[b] = UNSOLVED
            continue
        log_partition[b] = value + offset
        if what == 0:
            continue
        g[:] = 0.0
        _adjoint(w, n, first, shares, pivots, g, reach, rows[0], rows[1])
        out = result[b]
        if what == 1:
            _write_marginals(weights, g, n, out)
        else:
            along = along_room[: size * size].reshape((size, size))
            _copy(change[b], along, size, size)
            if child != 1:
                _swap(along, 1, child, n)
            tangent = tangents[: 3 * shape[0] * shape[1]].reshape((3, *shape))
            dw, dshares, dg = tangent[0], tangent[1], tangent[2]
            dg[:] = 0.0
            _change_of_weights(weights, along, n, dw)
            _tangent(w, n, first, shares, pivots, g, reach, dw, dshares, dg, rows)
            _write_products(weights, g, dg, along, n, out)
        if child != 1:
            _swap(out, 1, child, n)


@kernel
def _write_marginals(weights, g, n, out):
    for h in range(n + 1):
        of_head, adjoint, target = weights[h], g[h], out[h]
        for m in range(n + 1):
            target[m] = of_head[m] * adjoint[m]


@kernel
def _change_of_weights(weights, along, n, dw):
    """Write the tangent of the weights, 0 for an arc of weight 0."""
    for h in range(n + 1):
        of_head, upstream, target = weights[h], along[h], dw[h]
        for m in range(n + 1):
            change = of_head[m] * upstream[m]
            target[m] = change if of_head[m] > 0.0 else 0.0
        for m in range(n + 1, dw.shape[1]):
            target[m] = 0.0
    for h in range(n + 1, dw.shape[0]):
        dw[h] = 0.0


@kernel
def _write_products(weights, g, dg, along, n, out):
    for h in range(n + 1):
        of_head, adjoint, tangent = weights[h], g[h], dg[h]
        upstream, target = along[h], out[h]
        for m in range(n + 1):
            value = of_head[m] * (adjoint[m] * upstream[m] + tangent[m])
            target[m] = value if of_head[m] > 0.0 else 0.0


@kernel
def sum_by_logarithms(
    start,
    stop,
    items,
    scores,
    lengths,
    direction,
    max_arc_length,
    single_root,
    change,
    what,
    log_partition,
    result,
    kept,
    status,
):
    """Compute the sums like :func:`sum_over_trees`, on logarithms, for items it leaves UNSOLVED."""
    for b in items[start:stop]:
        n = lengths[b]
        size = n + 1
        if what > 0:
            result[b] = 0.0
        matrix = np.empty((size, size))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix)
        if status[b] != FEASIBLE:
            continue
        integers = np.empty(integer_workspace_size(n), dtype=np.int32)
        floats = np.empty(float_workspace_size(n))
        heads = np.empty(size, dtype=np.int32)
        child = 1
        if single_root:
            child = _root_child(matrix, n, heads, integers, floats)
        elif best_arborescence(matrix, n, False, heads, integers, floats) != FEASIBLE:
            child = 0
        if child == 0:
            status[b] = INFEASIBLE
            continue
        order = np.arange(size)
        order[1], order[child] = child, 1
        w, dw = np.empty((size, size)), np.zeros((size, size))
        g, dg = np.full((size, size), -np.inf), np.zeros((size, size))
        offset = 0.0
        for m in range(1, size):
            best = -np.inf
            for h in range(size):
                best = max(best, matrix[h, order[m]])
            offset += best
            for h in range(size):
                w[m, h] = matrix[order[h], order[m]] - best
                if what == 2 and w[m, h] > -np.inf:
                    dw[m, h] = change[b, order[h], order[m]]
            w[m, m] = -np.inf
        arcs = w.copy()
        log_partition[b] = log_domain(w, n, 1 if single_root else 0, dw, g, dg) + offset
        if what > 0:
            for m in range(1, size):
                for h in range(size):
                    if h != m and arcs[m, h] > -np.inf and g[m, h] > -np.inf:
                        value = math.exp(arcs[m, h] + g[m, h])
                        if what == 2:
                            value *= change[b, order[h], order[m]] + dg[m, h]
                        result[b, order[h], order[m]] = value


@kernel
def _marginals_alone(scores, size, single_root, empty, value, result, nothing, status):
    """Write the marginals of one item, by logarithms if needed."""
    item = np.zeros(1, np.int64)
    options = (0, -1, single_root)
    outputs = (value, result, nothing, status)
    sum_over_trees(0, 1, item, scores, size, *options, empty, 1, *outputs)
    if status[0] == UNSOLVED:
        sum_by_logarithms(0, 1, item, scores, size, *options, empty, 1, *outputs)


@kernel
def _has_tree(scores, n):
    """Return whether each of n tokens can be reached from the root by allowed arcs."""
    reached = np.zeros(n + 1, dtype=np.uint8)
    queue = np.zeros(n + 1, dtype=np.int64)
    reached[0] = 1
    first, end = 0, 1
    while first < end:
        head = queue[first]
        first += 1
        for token in range(1, n + 1):
            if not reached[token] and scores[head, token] > -np.inf:
                reached[token] = 1
                queue[end] = token
                end += 1
    return end == n + 1


@kernel
def _wilson(scores, n, root, heads, column, state, max_steps):
    """Draw a tree by Wilson's algorithm (1996): loop-erased random walks into the tree.

    The walks start from the tree that consists of ``root``, whose head is given. If ``root`` is a
    token, no other token attaches to node 0.

    Returns:
        Whether the walks ended within max_steps.
    """
    reached = np.zeros(n + 1, dtype=np.uint8)
    reached[0] = 1
    reached[root] = 1
    steps = 0
    for start in range(1, n + 1):
        node = start
        while not reached[node]:
            for head in range(n + 1):
                column[head] = scores[head, node]
            if root != 0:
                column[0] = -np.inf
            heads[node] = choose(column, n + 1, state)
            node = heads[node]
            steps += 1
            if steps > max_steps:
                return False
        node = start
        while not reached[node]:
            reached[node] = 1
            node = heads[node]
    return True


@kernel
def sample_trees(
    start, stop, scores, lengths, direction, max_arc_length, single_root, seeds, samples, status
):
    """Draw exact samples for the items start .. stop−1.

    Walks take long if tokens prefer each other. If they do not end soon, the heads are drawn one
    token after another from their exact conditional distributions.

    Args:
        seeds: ``(B,)`` uint64, not zero.
        samples: ``(K, B, N+1)`` int32 heads.
    """
    empty, nothing = np.zeros((1, 1, 1)), np.empty((1, 0))
    for b in range(start, stop):
        n = lengths[b]
        for k in range(samples.shape[0]):
            samples[k, b, :] = -1
        matrix = np.empty((1, n + 1, n + 1))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix[0])
        if status[b] != FEASIBLE or n == 0:
            continue
        marginals = np.empty((1, n + 1, n + 1))
        size, value = np.full(1, n), np.empty(1)
        flag = np.empty(1, dtype=np.int8)
        if single_root:
            # The root's child is drawn from its marginals.
            _marginals_alone(matrix, size, single_root, empty, value, marginals, nothing, flag)
            status[b] = flag[0]
        elif not _has_tree(matrix[0], n):
            status[b] = INFEASIBLE
        if status[b] != FEASIBLE:
            continue
        state = seeds[b : b + 1].copy()
        column = np.empty(n + 1)
        for k in range(samples.shape[0]):
            heads = samples[k, b]
            root = 0
            if single_root:
                for token in range(n + 1):
                    column[token] = -np.inf
                    if marginals[0, 0, token] > 0.0:
                        column[token] = math.log(marginals[0, 0, token])
                root = choose(column, n + 1, state)
                heads[root] = 0
            # This many steps take less than half of the time of the exact method below.
            steps = max(100 * (n + 1), (n + 1) ** 3 // 100)
            if _wilson(matrix[0], n, root, heads, column, state, steps):
                continue
            # Erased cycles are independent of the tree, so giving up on long walks does not bias
            # it. The drawn child of the root is kept, since walks are longer for some children than
            # for others.
            fixed = matrix.copy()
            if single_root:
                for token in range(1, n + 1):
                    if token == root:
                        fixed[0, 1:, token] = -np.inf
                    else:
                        fixed[0, 0, token] = -np.inf
            conditional = np.empty((1, n + 1, n + 1))
            for modifier in range(1, n + 1):
                _marginals_alone(fixed, size, single_root, empty, value, conditional, nothing, flag)
                for head in range(n + 1):
                    column[head] = -np.inf
                    if conditional[0, head, modifier] > 0.0:
                        column[head] = math.log(conditional[0, head, modifier])
                heads[modifier] = choose(column, n + 1, state)
                for head in range(n + 1):
                    if head != heads[modifier]:
                        fixed[0, head, modifier] = -np.inf


FAMILY = Family(
    name="SpanningTree",
    best=best_arborescences,
    total=sum_over_trees,
    sample=sample_trees,
    best_shape=lambda shape: tuple(shape[:2]),
    best_cost=lambda n: 500 + 0.65 * n**2,
    total_cost=lambda n: 2_000 + 6.0 * n**2 + 0.1 * n**3,
    kept_size=lambda shape: kept_size(shape[1] - 1),
    fallback=sum_by_logarithms,
    first=sum_by_escapes,
    first_for=lambda what, options: what > 0,
    same_dtype=True,
    device=GpuKernels("spanning_tree"),
)
