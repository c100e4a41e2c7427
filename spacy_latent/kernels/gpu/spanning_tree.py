"""Spanning trees on a GPU: elimination without subtraction, and its adjoint.

The elimination is from Grassmann, Taksar and Heyman (1985). It removes token k from the graph. Its
arcs k → m go to the heads of k, in proportion to their weights: w[h, m] += w[h, k] / d · w[k, m].
The pivot is d = Σ_h w[h, k], and log Z is the sum of the logarithms of the pivots. No number loses
digits, however much a token prefers one head.

With a single root, the root's arcs are left out of all pivots except the last. If the root is the
only remaining head of a token, this token must be the root's child. It changes places with the
token that is eliminated last. There is at most one such token, since all others have a head on the
path from it.

Tokens are removed in blocks. The arcs of each token of a block are updated when its turn comes. The
arcs among all other tokens are updated once for the block, since reading and writing them takes
most of the time. The adjoint reads its matrix once for each token.

SHARES holds w[h, k] / d of each removed token k, ``[k, h]``. OUTER holds the gradients of log Z
with respect to the weights, ``[head, modifier]``. A program holds whole rows of WIDTH numbers.
"""

import triton
import triton.language as tl

from spacy_latent.kernels.core.operations import BEST, HESSIAN_PRODUCT
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
)  # fmt: skip
from spacy_latent.kernels.gpu.semirings import (
    EMPTY,
    LOG,
    SUM,
    add,
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

ARCS, OUTER, SHARES = (tl.constexpr(matrix) for matrix in range(3))
MATRICES = tl.constexpr(3)


@triton.jit
def read_weights(
    scores, along, top, matrices, side, n, direction, longest, offset,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Write the best score of each modifier, the weights relative to it, and zeros to OUTER.

    Returns:
        The sum of the best scores, and 1 if a score is not finite.
    """
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
    tl.debug_barrier()
    return tl.sum(shift, 0), tl.max(wrong, 0)


@triton.jit
def exchange(matrices, a, b, step, n, offset, PAIR: tl.constexpr, WIDTH: tl.constexpr):
    """Exchange two rows, or columns, of n + 1 numbers."""
    i = tl.arange(0, WIDTH)
    x, dx = get(matrices, a + i * step, offset, i <= n, LOG, PAIR)
    y, dy = get(matrices, b + i * step, offset, i <= n, LOG, PAIR)
    tl.debug_barrier()
    put(matrices, a + i * step, offset, y, dy, i <= n, PAIR)
    put(matrices, b + i * step, offset, x, dx, i <= n, PAIR)
    tl.debug_barrier()


@triton.jit
def arcs_of(
    matrices, k, last, side, offset, KIND: tl.constexpr, PAIR: tl.constexpr, WIDTH: tl.constexpr
):
    """Return the weights of the arcs from tokens before k to k, and from k to these tokens.

    Both are ``(WIDTH,)``, after the elimination of the tokens from k + 1 to ``last``.
    """
    i, shares = tl.arange(0, WIDTH), SHARES * side * side
    heads, modifiers = i < k, (i > 0) & (i < k)
    x, dx = get(matrices, i * side + k, offset, heads, KIND, PAIR)
    y, dy = get(matrices, k * side + i, offset, modifiers, KIND, PAIR)
    for done in range(0, last - k):
        p = last - done
        share, d = get(matrices, shares + p * side + i, offset, heads, KIND, PAIR)
        arc, e = get(matrices, p * side + k + 0 * i, offset, heads, KIND, PAIR)
        share, d = times(share, d, arc, e, KIND)
        x, dx = plus(x, dx, share, d, KIND)
        share, d = get(matrices, shares + p * side + k + 0 * i, offset, modifiers, KIND, PAIR)
        arc, e = get(matrices, p * side + i, offset, modifiers, KIND, PAIR)
        share, d = times(share, d, arc, e, KIND)
        y, dy = plus(y, dy, share, d, KIND)
    return x, dx, y, dy


@triton.jit
def sum_of(x, dx, keep, KIND: tl.constexpr, WIDTH: tl.constexpr):
    """Return the sum of a vector, ``(1,)``."""
    top, total, extra = begin(1, WIDTH)
    x, dx = tl.where(keep, x, zero(KIND)), tl.where(keep, dx, 0.0)
    top, total, extra = add(top, total, extra, x[None, :], dx[None, :], KIND)
    return finish(top, total, extra, KIND, 1)


@triton.jit
def eliminate(
    matrices, pivots, side, n, single_root, offset,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Eliminate all tokens.

    Returns:
        log Z of the weights; the logarithm of the smallest pivot; and the token that has changed
        places with the first, or 0.
    """
    # An exchange of tokens needs all arcs up to date, so blocks have one token.
    COUNT: tl.constexpr = 1 if KIND == LOG else TOGETHER
    shares = SHARES * side * side
    total, lowest = tl.zeros((1,), tl.float64), tl.zeros((1,), tl.float64)
    swapped = 0 * n
    i, one_number = tl.arange(0, WIDTH), tl.arange(0, 1)
    for done in range(0, n, COUNT):
        last = n - done
        low = tl.maximum(last - COUNT + 1, 1)
        for taken in range(0, last - low + 1):
            k = last - taken
            first = tl.where(k > 1, single_root, 0)
            x, dx, y, dy = arcs_of(matrices, k, last, side, offset, KIND, PAIR, WIDTH)
            pivot, d_pivot = sum_of(x, dx, (i >= first) & (i < k), KIND, WIDTH)
            if KIND == LOG:
                # Only for LOG, since a pivot of SUM may be 0 by underflow.
                if (tl.max(pivot, 0) < EMPTY_TOTAL) & (first > 0) & (swapped == 0):
                    swapped = k
                    exchange(matrices, 1, k, side, n, offset, PAIR, WIDTH)
                    exchange(matrices, shares + 1, shares + k, side, n, offset, PAIR, WIDTH)
                    exchange(matrices, side, k * side, 1, n, offset, PAIR, WIDTH)
                    x, dx, y, dy = arcs_of(matrices, k, last, side, offset, KIND, PAIR, WIDTH)
                    pivot, d_pivot = sum_of(x, dx, (i >= first) & (i < k), KIND, WIDTH)
            put(matrices, pivots + k + one_number, offset, pivot, d_pivot, one_number == 0, PAIR)
            log_pivot = tl.log(pivot) if KIND == SUM else pivot
            total += log_pivot
            lowest = tl.minimum(lowest, tl.where(log_pivot < float("inf"), log_pivot, EMPTY))
            x, dx = over(x, dx, pivot, d_pivot, KIND)
            put(matrices, shares + k * side + i, offset, x, dx, i < k, PAIR)
            # Several threads hold the same number, and another thread may still be reading the row.
            tl.debug_barrier()
            put(matrices, k * side + i, offset, y, dy, (i > 0) & (i < k), PAIR)
            tl.debug_barrier()
        for begins in range(0, tl.where(low > 1, low, 0), WAYS):
            h, m = begins + tl.arange(0, WAYS)[:, None], i[None, :]
            live = (h < low) & (m < low) & (m > 0) & (h != m)
            a, da = get(matrices, h * side + m, offset, live, KIND, PAIR)
            for taken in range(0, last - low + 1):
                p = last - taken
                x, dx = get(matrices, shares + p * side + h, offset, h < low, KIND, PAIR)
                y, dy = get(matrices, p * side + m, offset, (m > 0) & (m < low), KIND, PAIR)
                x, dx = times(x, dx, y, dy, KIND)
                a, da = plus(a, da, x, dx, KIND)
            put(matrices, h * side + m, offset, a, da, live, PAIR)
        tl.debug_barrier()
    return tl.sum(total, 0), tl.sum(lowest, 0), swapped


@triton.jit
def plus_number(a, da, b, db, KIND: tl.constexpr):
    """Return a + b for a plain number b that may be negative, if the sum is not negative."""
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
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Fill OUTER, the gradients of log Z with respect to the weights."""
    area = side * side
    outer, shares, reaches = OUTER * area, SHARES * area, pivots + side
    i = tl.arange(0, WIDTH)
    for k in range(1, n + 1):
        first, modifiers = tl.where(k > 1, single_root, 0), (i > 0) & (i < k)
        pivot, d_pivot = get(matrices, pivots + k + tl.arange(0, 1), offset, k > 0, KIND, PAIR)
        arc, d_arc = get(matrices, k * side + i, offset, modifiers, KIND, PAIR)
        top1, total1, extra1 = begin(WAYS, WIDTH)
        top2, total2, extra2 = begin(1, WAYS)
        for begins in range(0, k, WAYS):
            h = begins + tl.arange(0, WAYS)
            live, place = (h < k)[:, None] & modifiers[None, :], h[:, None] * side + i[None, :]
            a, da = get(matrices, outer + place, offset, live, KIND, PAIR)
            share, d_share = get(matrices, shares + k * side + h, offset, h < k, KIND, PAIR)
            # The gradients that the arcs of k pass to each head of k, and that the heads pass to
            # each arc of k.
            x, dx = times(a, da, arc[None, :], d_arc[None, :], KIND)
            top, total, extra = begin(WAYS, WIDTH)
            top, total, extra = add(top, total, extra, x, dx, KIND)
            reach, d_reach = finish(top, total, extra, KIND, 1)
            put(matrices, reaches + h, offset, reach, d_reach, h < k, PAIR)
            x, dx = times(a, da, share[:, None], d_share[:, None], KIND)
            top1, total1, extra1 = add(top1, total1, extra1, x, dx, KIND)
            x, dx = times(share, d_share, reach, d_reach, KIND)
            x, dx = tl.where(h < k, x, zero(KIND)), tl.where(h < k, dx, 0.0)
            top2, total2, extra2 = add(top2, total2, extra2, x[None, :], dx[None, :], KIND)
        given, d_given = finish(top1, total1, extra1, KIND)
        put(matrices, outer + k * side + i, offset, given, d_given, modifiers, PAIR)
        tl.debug_barrier()
        mean, d_mean = finish(top2, total2, extra2, KIND, 1)
        mean, d_mean = probability(mean, d_mean, KIND)
        reach, d_reach = get(matrices, reaches + i, offset, i < k, KIND, PAIR)
        more, d_more = plus_number(reach, d_reach, 1.0 - mean, -d_mean, KIND)
        reach = tl.where(i >= first, more, reach)
        d_reach = tl.where(i >= first, d_more, d_reach)
        reach, d_reach = over(reach, d_reach, pivot, d_pivot, KIND)
        put(matrices, outer + i * side + k, offset, reach, d_reach, i < k, PAIR)
        tl.debug_barrier()


@triton.jit
def write(
    scores, along, top, matrices, result, swapped, side, n, direction, longest, offset,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Write marginals, or their tangents if DERIVED.

    Returns:
        The sum of the marginals.
    """
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
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Write sums with their marginals or Hessian products."""
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
            *(KIND, DERIVED, WAYS, WIDTH),
        )
        total, lowest, swapped = eliminate(
            matrices, pivots, side, n, single_root, offset, KIND, DERIVED, WAYS, WIDTH, TOGETHER
        )
        tl.store(log_partition + item, total + shift)
        if KIND == SUM:
            found = tl.where(lowest > LEAST_LOG, FEASIBLE, UNSOLVED)
        else:
            # With such a small pivot, rounding hides the differences between likely trees.
            found = tl.where(lowest < -LARGE, TOO_LARGE, FEASIBLE)
            found = tl.where(lowest < EMPTY_TOTAL, INFEASIBLE, found)
        found = tl.where(wrong > 0, NOT_FINITE, found)
        if (operation >= MARGINALS) & (found == FEASIBLE):
            adjoint(matrices, pivots, side, n, single_root, offset, KIND, DERIVED, WAYS, WIDTH)
            mass = write(
                *(scores, along, top, matrices, result, swapped, side, n, direction, longest),
                *(offset, KIND, DERIVED, WAYS, WIDTH),
            )
            # Each token has one head. A different sum shows that precision was lost.
            if KIND == SUM:
                found = tl.where(tl.abs(mass - n) < n * LOST, FEASIBLE, UNSOLVED)
        tl.store(status + item, found)


def plan(shape: tuple[int, ...], operation: int) -> Plan:
    """Return the launch parameters for scores of this shape; best trees have another kernel."""
    if operation == BEST:
        return best_arborescence.plan(shape, operation)
    side, pair = shape[1], operation == HESSIAN_PRODUCT
    size = (MATRICES.value * side + 2) * side * (2 if pair else 1) + side
    width = max(32, triton.next_power_of_2(side))
    # The fastest of twelve settings on an H200.
    constants = {"WAYS": max(1, 1024 // width), "WIDTH": width, "TOGETHER": 8}
    return Plan(spanning_trees, size, SUMS, constants, {"num_warps": 4 if width <= 64 else 8})
