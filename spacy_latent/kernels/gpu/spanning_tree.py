"""Spanning trees: the elimination of Grassmann, Taksar and Heyman (1985), which subtracts nothing,
and its adjoint.

Token k is taken out of the graph by giving each arc k → m to the heads of k, in proportion to their
weights: w[h, m] += w[h, k] / d · w[k, m] with the pivot d = Σ_h w[h, k]. log Z is the sum of the
logarithms of the pivots, and no number loses digits, however much a token prefers one head.

With a single root the root's arcs are left out of all pivots but the last. A token that has no head
but the root among those that are left must then be the root's child, and changes places with the
token that is eliminated last. There is at most one: all others have a head on the way from it.

OUTER and TURNED hold the gradients of log Z by the weights, ``[head, modifier]`` and ``[modifier,
head]``, so that sums over either run over contiguous rows.
"""

import triton
import triton.language as tl

from spacy_latent.kernels.gpu import best_arborescence
from spacy_latent.kernels.gpu.programs import (
    EMPTY_TOTAL,
    FEASIBLE,
    INFEASIBLE,
    LARGE,
    LEAST_LOG,
    LOST,
    MARGINALS,
    NOT_FINITE,
    SUMS,
    TOO_LARGE,
    UNSOLVED,
    Plan,
    kernel,
    not_finite,
    read_arcs,
    tile,
)  # fmt: skip
from spacy_latent.kernels.gpu.semirings import (
    EMPTY,
    LOG,
    SUM,
    add,
    add_products,
    begin,
    finish,
    get,
    over,
    plus,
    probability,
    put,
    times,
    weight,
    zero,
)  # fmt: skip
from spacy_latent.kernels.operations import BEST, HESSIAN_PRODUCT

ARCS, OUTER, TURNED = (tl.constexpr(matrix) for matrix in range(3))
MATRICES = tl.constexpr(3)


@triton.jit
def read_weights(
    scores, along, top, matrices, side, n, direction, longest, offset,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Write the best score of each modifier, the weights relative to it, and gradients of zero.
    RETURNS: the sum of the best scores, and 1 if a score is not finite."""
    shift, wrong = tl.zeros((SPANS,), tl.float64), tl.zeros((SPANS,), tl.int32)
    for start in range(0, n + 1, SPANS):
        m = (start + tl.arange(0, SPANS))[None, :]
        best = tl.full((1, SPANS), EMPTY, tl.float64)
        for first in range(0, n + 1, WAYS):
            h = first + tl.arange(0, WAYS)[:, None]
            score, keep = read_arcs(scores, h, m, side, n, direction, longest)
            wrong = tl.maximum(wrong, tl.max(not_finite(score), 0))
            best = tl.maximum(best, tl.max(tl.where(keep, score, EMPTY), 0, keep_dims=True))
        best = tl.where(best > EMPTY, best, 0.0)
        tl.store(top + m, best, m <= n)
        shift += tl.sum(tl.where((m > 0) & (m <= n), best, 0.0), 0)
        for first in range(0, n + 1, WAYS):
            h = first + tl.arange(0, WAYS)[:, None]
            score, keep = read_arcs(scores, h, m, side, n, direction, longest)
            derivative = tl.zeros_like(score)
            if DERIVED:
                derivative = tl.load(along + h * side + m, keep, other=0.0).to(tl.float64)
            value, second = weight(score - best, derivative, keep, KIND)
            there = (h <= n) & (m <= n)
            put(matrices, h * side + m, offset, value, second, there, DERIVED)
            nothing, none = tl.zeros_like(value) + zero(KIND), tl.zeros_like(value)
            put(matrices, (OUTER * side + h) * side + m, offset, nothing, none, there, DERIVED)
            put(matrices, (TURNED * side + h) * side + m, offset, nothing, none, there, DERIVED)
    tl.debug_barrier()
    return tl.sum(shift, 0), tl.max(wrong, 0)


@triton.jit
def dot(
    matrices, a, a_step, b, b_step, first, count, offset,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """Σ x_k·y_k over first ≤ k < count, ``(1,)``; y is 1 where b is negative."""
    top, total, extra = begin(WAYS, 1)
    for start in range(0, count, WAYS):
        k = start + tl.arange(0, WAYS)[:, None]
        keep = (k >= first) & (k < count)
        x, dx = get(matrices, a + k * a_step, offset, keep, KIND, PAIR)
        if b >= 0:
            y, dy = get(matrices, b + k * b_step, offset, keep, KIND, PAIR)
            x, dx = times(x, dx, y, dy, KIND)
        top, total, extra = add(top, total, extra, x, dx, KIND)
    return finish(top, total, extra, KIND)


@triton.jit
def exchange(matrices, a, b, step, n, offset, PAIR: tl.constexpr, SPANS: tl.constexpr):
    """Exchange two rows, or columns, of n + 1 numbers."""
    for start in range(0, n + 1, SPANS):
        i = start + tl.arange(0, SPANS)
        x, dx = get(matrices, a + i * step, offset, i <= n, LOG, PAIR)
        y, dy = get(matrices, b + i * step, offset, i <= n, LOG, PAIR)
        tl.debug_barrier()
        put(matrices, a + i * step, offset, y, dy, i <= n, PAIR)
        put(matrices, b + i * step, offset, x, dx, i <= n, PAIR)
    tl.debug_barrier()


@triton.jit
def eliminate(
    matrices, pivots, side, n, single_root, offset,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """RETURNS: log Z of the weights; the logarithm of the smallest pivot; and the token that has
    changed places with the first, or 0."""
    total, lowest = tl.zeros((1,), tl.float64), tl.zeros((1,), tl.float64)
    swapped = 0 * n
    one_number = tl.arange(0, 1)
    for done in range(0, n):
        k = n - done
        first = tl.where(k > 1, single_root, 0)
        pivot, d_pivot = dot(matrices, k, side, -1, 0, first, k, offset, KIND, PAIR, WAYS)
        if KIND == LOG:
            # Only here: a pivot of SUM may be 0 because it is too small for float64.
            if (tl.max(pivot, 0) < EMPTY_TOTAL) & (first > 0) & (swapped == 0):
                swapped = k
                exchange(matrices, 1, k, side, n, offset, PAIR, SPANS)
                exchange(matrices, side, k * side, 1, n, offset, PAIR, SPANS)
                again, d_again = dot(matrices, k, side, -1, 0, first, k, offset, KIND, PAIR, WAYS)
                pivot, d_pivot = again, d_again
        put(matrices, pivots + k + one_number, offset, pivot, d_pivot, one_number == 0, PAIR)
        log_pivot = tl.log(pivot) if KIND == SUM else pivot
        total += log_pivot
        lowest = tl.minimum(lowest, tl.where(log_pivot < float("inf"), log_pivot, EMPTY))
        for start in range(1, k, SPANS):
            m = (start + tl.arange(0, SPANS))[None, :]
            x, dx = get(matrices, k * side + m, offset, m < k, KIND, PAIR)
            for begins in range(0, k, WAYS):
                h = begins + tl.arange(0, WAYS)[:, None]
                live = (h < k) & (m < k) & (h != m)
                share, d = get(matrices, h * side + k, offset, h < k, KIND, PAIR)
                share, d = over(share, d, pivot, d_pivot, KIND)
                share, d = times(share, d, x, dx, KIND)
                a, da = get(matrices, h * side + m, offset, live, KIND, PAIR)
                a, da = plus(a, da, share, d, KIND)
                put(matrices, h * side + m, offset, a, da, live, PAIR)
        tl.debug_barrier()
    return tl.sum(total, 0), tl.sum(lowest, 0), swapped


@triton.jit
def plus_number(a, da, b, db, KIND: tl.constexpr):
    """a + b, where b is a plain number that may be negative, and the sum is not."""
    if KIND == SUM:
        return a + b, da + db
    else:
        large, share = a > 0.0, tl.exp(-tl.abs(a))
        whole = tl.where(large, 1.0 + share * b, share + b)
        known = whole > 1e-300
        whole = tl.where(known, whole, 1.0)
        change = tl.where(large, da + share * db, share * da + db)
        value = tl.where(known, tl.maximum(a, 0.0) + tl.log(whole), EMPTY)
        return value, tl.where(known, change / whole, 0.0)


@triton.jit
def adjoint(
    matrices, pivots, side, n, single_root, offset,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Fill OUTER and TURNED."""
    area = side * side
    outer, turned, reaches = OUTER * area, TURNED * area, pivots + side
    for k in range(1, n + 1):
        first = tl.where(k > 1, single_root, 0)
        pivot, d_pivot = get(matrices, pivots + k + tl.arange(0, 1), offset, k > 0, KIND, PAIR)
        # What k's arcs give to each of its heads, and what those give to each of k's arcs.
        for start in range(0, k, SPANS):
            i = start + tl.arange(0, SPANS)
            live = (i[None, :] < k) & (tl.arange(0, WAYS)[:, None] >= 0)
            top1, total1, extra1 = begin(WAYS, SPANS)
            top2, total2, extra2 = begin(WAYS, SPANS)
            for begins in range(0, k, WAYS):
                j = begins + tl.arange(0, WAYS)[:, None]
                inner, both = live & (j > 0) & (j < k), live & (j < k)
                place = j * side + i[None, :]
                top1, total1, extra1 = add_products(
                    *(top1, total1, extra1, matrices, turned + place, k * side + j + 0 * place, j),
                    *(offset, inner, KIND, PAIR),
                )
                top2, total2, extra2 = add_products(
                    *(top2, total2, extra2, matrices, outer + place, j * side + k + 0 * place, j),
                    *(offset, both, KIND, PAIR),
                )
            reach, d_reach = finish(top1, total1, extra1, KIND)
            put(matrices, reaches + i, offset, reach, d_reach, i < k, PAIR)
            given, d_given = finish(top2, total2, extra2, KIND)
            given, d_given = over(given, d_given, pivot, d_pivot, KIND)
            there = (i > 0) & (i < k)
            put(matrices, outer + k * side + i, offset, given, d_given, there, PAIR)
            put(matrices, turned + i * side + k, offset, given, d_given, there, PAIR)
        tl.debug_barrier()
        mean, d_mean = dot(matrices, k, side, reaches, 1, 0, k, offset, KIND, PAIR, WAYS)
        mean, d_mean = over(mean, d_mean, pivot, d_pivot, KIND)
        mean, d_mean = probability(mean, d_mean, KIND)
        for start in range(0, k, SPANS):
            h = start + tl.arange(0, SPANS)
            reach, d_reach = get(matrices, reaches + h, offset, h < k, KIND, PAIR)
            more, d_more = plus_number(reach, d_reach, 1.0 - mean, -d_mean, KIND)
            reach = tl.where(h >= first, more, reach)
            d_reach = tl.where(h >= first, d_more, d_reach)
            reach, d_reach = over(reach, d_reach, pivot, d_pivot, KIND)
            put(matrices, outer + h * side + k, offset, reach, d_reach, h < k, PAIR)
            put(matrices, turned + k * side + h, offset, reach, d_reach, h < k, PAIR)
        tl.debug_barrier()


@triton.jit
def write(
    scores, along, top, matrices, result, swapped, side, n, direction, longest, offset,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Write marginals, or their derivatives. RETURNS: the sum of the marginals."""
    mass = tl.zeros((SPANS,), tl.float64)
    for start in range(1, n + 1, SPANS):
        m = (start + tl.arange(0, SPANS))[None, :]
        column = tl.where(swapped > 0, tl.where(m == 1, swapped, tl.where(m == swapped, 1, m)), m)
        for first in range(0, n + 1, WAYS):
            h = first + tl.arange(0, WAYS)[:, None]
            row = tl.where(swapped > 0, tl.where(h == 1, swapped, tl.where(h == swapped, 1, h)), h)
            score, keep = read_arcs(scores, h, m, side, n, direction, longest)
            score -= tl.load(top + m, m <= n, other=0.0)
            derivative = tl.zeros_like(score)
            if DERIVED:
                derivative = tl.load(along + h * side + m, keep, other=0.0).to(tl.float64)
            x, dx = weight(score, derivative, keep, KIND)
            at = (OUTER * side + row) * side + column
            y, dy = get(matrices, at, offset, keep, KIND, DERIVED)
            x, dx = times(x, dx, y, dy, KIND)
            x, dx = probability(x, dx, KIND)
            mass += tl.sum(tl.where(keep, x, 0.0), 0)
            tl.store(result + h * side + m, dx if DERIVED else x, keep)
    return tl.sum(mass, 0)


@kernel
def spanning_trees(
    scores, lengths, along, workspace, log_partition, result, status,
    first, size, operation, side, tags, direction, longest, single_root,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    item = first + program
    n, area = tl.load(lengths + item).to(tl.int32), side * side
    if KIND == LOG:
        if tl.load(status + item) != UNSOLVED:
            n = n * 0
    if n > 0:
        scores += item * area
        along += item * area
        result += item * area
        matrices = workspace + program * size
        pivots, offset, top = MATRICES * area, (size - side) // 2, matrices + size - side
        shift, wrong = read_weights(
            *(scores, along, top, matrices, side, n, direction, longest, offset),
            *(KIND, DERIVED, WAYS, SPANS),
        )
        total, lowest, swapped = eliminate(
            matrices, pivots, side, n, single_root, offset, KIND, DERIVED, WAYS, SPANS
        )
        tl.store(log_partition + item, total + shift)
        if KIND == SUM:
            found = tl.where(lowest > LEAST_LOG, FEASIBLE, UNSOLVED)
        else:
            # What the likely trees differ in is lost in so small a pivot.
            found = tl.where(lowest < -LARGE, TOO_LARGE, FEASIBLE)
            found = tl.where(lowest < EMPTY_TOTAL, INFEASIBLE, found)
        found = tl.where(wrong > 0, NOT_FINITE, found)
        if (operation >= MARGINALS) & (found == FEASIBLE):
            adjoint(matrices, pivots, side, n, single_root, offset, KIND, DERIVED, WAYS, SPANS)
            mass = write(
                *(scores, along, top, matrices, result, swapped, side, n, direction, longest),
                *(offset, KIND, DERIVED, WAYS, SPANS),
            )
            # Each token has one head; else something was lost.
            if KIND == SUM:
                found = tl.where(tl.abs(mass - n) < n * LOST, FEASIBLE, UNSOLVED)
        tl.store(status + item, found)


def plan(shape: tuple[int, ...], operation: int) -> Plan:
    if operation == BEST:
        return best_arborescence.plan(shape, operation)
    side, pair = shape[1], operation == HESSIAN_PRODUCT
    size = (MATRICES.value * side + 2) * side * (2 if pair else 1) + side
    # The fastest of twelve on an H200.
    if side <= 64:
        return Plan(spanning_trees, size, SUMS, tile(16, 32), {"num_warps": 4})
    return Plan(spanning_trees, size, SUMS, tile(16, 64), {"num_warps": 8, "maxnreg": 128})
