"""Projective dependency trees on a GPU: Eisner's charts (1996), inside and outside.

Charts are ``[length, left end]``. Spans of one length do not depend on each other, so all of them
are filled at once, in tiles ``[split, span]``. The rows of a tile are contiguous, and the splits of
a span lie at constant distances.

TO_RIGHT and TO_LEFT are incomplete spans, with an arc between their ends. RIGHT and LEFT are
complete spans, with all descendants of one end. ARC_RIGHT and ARC_LEFT are the weights of arcs.
OUTER_BETWEEN, OUTER_RIGHT and OUTER_LEFT are gradients of log Z, with respect to the sum over
splits between the ends of an arc, to RIGHT, and to LEFT.
"""

import triton
import triton.language as tl

from spacy_latent.kernels.core.operations import BEST, HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.gpu.programs import (
    FEASIBLE,
    LOST,
    MARGINALS,
    MAXIMA,
    NOT_FINITE,
    SUMS,
    UNSOLVED,
    Plan,
    kernel,
    not_finite,
    read_arcs,
    state_of,
    tile,
)  # fmt: skip
from spacy_latent.kernels.gpu.semirings import (
    EMPTY,
    LOG,
    MAX,
    SUM,
    add,
    begin,
    finish,
    get,
    one,
    plus,
    probability,
    put,
    three_sums,
    times,
    weight,
    zero,
)  # fmt: skip

ARC_RIGHT, ARC_LEFT, TO_RIGHT, TO_LEFT, RIGHT, LEFT = (tl.constexpr(chart) for chart in range(6))
OUTER_BETWEEN, OUTER_RIGHT, OUTER_LEFT = (tl.constexpr(chart) for chart in range(6, 9))
INNER_CHARTS, CHARTS = 6, 9
# Marks a span of the best tree. It exceeds all sums of scores.
MARK = tl.constexpr(1e301)


@triton.jit
def scale(
    scores, shift, side, n, direction, longest, WAYS: tl.constexpr, SPANS: tl.constexpr
):  # fmt: skip
    """Write the numbers to subtract from the scores of each modifier.

    Such a number is the logarithm of the sum of the modifier's weights less log γ, but at least its
    largest score. γ is n / e^1.91, at least 1: each token has n heads to choose from, and the
    number of trees grows by a factor of e^1.91 ≈ 6.75 per token.

    Returns:
        The sum of the subtracted numbers, and 1 if a score is not finite.
    """
    log_gamma = tl.maximum(tl.log(n.to(tl.float64)) - 1.91, 0.0)
    total_shift, wrong = tl.zeros((SPANS,), tl.float64), tl.zeros((SPANS,), tl.int32)
    for start in range(0, n + 1, SPANS):
        m = start + tl.arange(0, SPANS)
        top, total, extra = begin(WAYS, SPANS)
        for first in range(0, n + 1, WAYS):
            h = first + tl.arange(0, WAYS)
            score, keep = read_arcs(scores, h[:, None], m[None, :], side, n, direction, longest)
            wrong = tl.maximum(wrong, tl.max(not_finite(score), 0))
            score, extra = weight(score, extra, keep, LOG)
            top, total, extra = add(top, total, extra, score, extra, LOG)
        largest = tl.max(top, 0)
        whole, _ = finish(top, total, extra, LOG)
        found = tl.where(largest > EMPTY, tl.maximum(whole - log_gamma, largest), 0.0)
        tl.store(shift + m, found, m <= n)
        total_shift += tl.where((m > 0) & (m <= n), found, 0.0)
    tl.debug_barrier()
    return tl.sum(total_shift, 0), tl.max(wrong, 0)


@triton.jit
def weigh(
    scores, along, shift, charts, side, n, direction, longest, offset,
    KIND: tl.constexpr, DERIVED: tl.constexpr, PAIR: tl.constexpr,
    WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Fill the charts of arcs, and the spans of a single node."""
    area = side * side
    for start in range(0, n + 1, SPANS):
        m = start + tl.arange(0, SPANS)
        for first in range(0, n + 1, WAYS):
            h = first + tl.arange(0, WAYS)[:, None]
            score, keep = read_arcs(scores, h, m[None, :], side, n, direction, longest)
            derivative = tl.zeros_like(score)
            if DERIVED:
                derivative = tl.load(along + h * side + m[None, :], keep, other=0.0).to(tl.float64)
            if KIND != MAX:
                score -= tl.load(shift + m, m <= n, other=0.0)[None, :]
            value, second = weight(score, derivative, keep, KIND)
            length, left = tl.abs(m[None, :] - h), tl.minimum(h, m[None, :])
            chart = tl.where(h < m[None, :], ARC_RIGHT, ARC_LEFT)
            cell = (chart * side + length) * side + left
            put(charts, cell, offset, value, second, (length > 0) & (left + length <= n), PAIR)
        unit = tl.full((SPANS,), one(KIND), tl.float64)
        put(charts, RIGHT * area + m, offset, unit, tl.zeros_like(unit), m <= n, PAIR)
        put(charts, LEFT * area + m, offset, unit, tl.zeros_like(unit), m <= n, PAIR)
    tl.debug_barrier()


@triton.jit
def inside(
    charts, side, n, single_root, offset,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Fill TO_RIGHT, TO_LEFT, RIGHT and LEFT."""
    area = side * side
    to_right, to_left, right, left = TO_RIGHT * area, TO_LEFT * area, RIGHT * area, LEFT * area
    for length in range(1, n + 1):
        for start in range(0, n + 1 - length, SPANS):
            i = start + tl.arange(0, SPANS)
            live, cell = i + length <= n, length * side + i
            s, ds = get(charts, ARC_RIGHT * area + cell, offset, live, KIND, PAIR)
            o, do = get(charts, ARC_LEFT * area + cell, offset, live, KIND, PAIR)
            # A split gives a span from the left end, longer with k, and a span up to the right end.
            own, rest = side + i, (length - 1) * side + i + 1
            between, d, r, dr, l, dl = three_sums(
                charts,
                *(right + i, left + rest),
                *(to_right + own, right + rest),
                *(left + own, to_left + rest),
                *(side, 1 - side, length + 0 * i, length, 1, offset, live),
                *(KIND, PAIR, WAYS, SPANS),
            )
            s, ds = times(between, d, s, ds, KIND)
            o, do = times(between, d, o, do, KIND)
            put(charts, to_right + cell, offset, s, ds, live, PAIR)
            put(charts, to_left + cell, offset, o, do, live, PAIR)
            if KIND == MAX:
                ds, do = 0.0 * ds + (length - 1), 0.0 * do - 1
            # The arc over the whole span is the last split of RIGHT, and the first split of LEFT.
            r, dr = plus(r, dr, s, ds, KIND)
            l, dl = plus(o, do, l, dl, KIND)
            # With a single root, RIGHT spans of the root only exist for the whole sentence.
            closed = (single_root > 0) & (i == 0) & (length < n)
            r, dr = tl.where(closed, zero(KIND), r), tl.where(closed, 0.0, dr)
            put(charts, right + cell, offset, r, dr, live, PAIR)
            put(charts, left + cell, offset, l, dl, live, PAIR)
        tl.debug_barrier()


@triton.jit
def outside(
    charts, result, side, n, single_root, offset, inverse, d_inverse,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Fill the charts of gradients, and write marginals, or their tangents if DERIVED.

    Args:
        inverse, d_inverse: 1/Z and its tangent.

    Returns:
        The sum of the marginals.
    """
    area = side * side
    to_right, to_left, right, left = TO_RIGHT * area, TO_LEFT * area, RIGHT * area, LEFT * area
    outer, outer_right, outer_left = OUTER_BETWEEN * area, OUTER_RIGHT * area, OUTER_LEFT * area
    mass = tl.zeros((SPANS,), tl.float64)
    for shorter in range(0, n):
        length = n - shorter
        for start in range(0, n + 1 - length, SPANS):
            i = start + tl.arange(0, SPANS)
            j, live, cell = i + length, i + length <= n, length * side + i
            s, ds = get(charts, ARC_RIGHT * area + cell, offset, live, KIND, DERIVED)
            o, do = get(charts, ARC_LEFT * area + cell, offset, live, KIND, DERIVED)
            x, dx = get(charts, to_right + cell, offset, live, KIND, DERIVED)
            y, dy = get(charts, to_left + cell, offset, live, KIND, DERIVED)
            # Longer spans with the same left end, then with the same right end.
            longer = cell + side
            r, dr, l, dl, a, da = three_sums(
                charts,
                *(outer + longer, left + j + 1),
                *(outer_left + longer, to_left + side + j),
                *(outer_right + longer, right + side + j),
                *(side, side, n - j, n - length - start, 0, offset, live),
                *(KIND, DERIVED, WAYS, SPANS),
            )
            longer, before = longer - 1, i - 1
            most = tl.minimum(start + SPANS - 1, n - length)
            more_right, e, more_left, f, b, db = three_sums(
                charts,
                *(outer_right + longer, to_right + side + before),
                *(outer + longer, right + before),
                *(outer_left + longer, left + side + before),
                *(side - 1, side - 1, i, most, 0, offset, live),
                *(KIND, DERIVED, WAYS, SPANS),
            )
            r, dr = plus(r, dr, more_right, e, KIND)
            l, dl = plus(l, dl, more_left, f, KIND)
            whole = (i == 0) & (length == n)
            closed = (single_root > 0) & (i == 0)
            r = tl.where(whole, inverse, tl.where(closed, zero(KIND), r))
            dr = tl.where(whole, d_inverse, tl.where(closed, 0.0, dr))
            put(charts, outer_right + cell, offset, r, dr, live, DERIVED)
            put(charts, outer_left + cell, offset, l, dl, live, DERIVED)

            # Gradients of TO_RIGHT and TO_LEFT, which pass to OUTER_BETWEEN through the
            # weights of the arcs.
            a, da = plus(a, da, r, dr, KIND)
            b, db = plus(b, db, l, dl, KIND)
            s, ds = times(a, da, s, ds, KIND)
            o, do = times(b, db, o, do, KIND)
            s, ds = plus(s, ds, o, do, KIND)
            put(charts, outer + cell, offset, s, ds, live, DERIVED)
            x, dx = times(x, dx, a, da, KIND)
            y, dy = times(y, dy, b, db, KIND)
            x, dx = probability(x, dx, KIND)
            y, dy = probability(y, dy, KIND)
            mass += tl.where(live, x + y, 0.0)
            if DERIVED:
                x, y = dx, dy
            tl.store(result + i * side + j, x, live)
            tl.store(result + j * side + i, y, live & (i > 0))
        tl.debug_barrier()
    return tl.sum(mass, 0)


@triton.jit
def backtrack(charts, best, side, n, offset, SPANS: tl.constexpr):
    """Write the heads of the best tree, by marking its spans from the longest down."""
    area = side * side
    to_right, to_left, right, left = TO_RIGHT * area, TO_LEFT * area, RIGHT * area, LEFT * area
    # Other threads may still be reading the sum over the whole sentence.
    tl.debug_barrier()
    tl.store(charts + right + n * side, MARK)
    tl.debug_barrier()
    for shorter in range(0, n):
        length = n - shorter
        for start in range(0, n + 1 - length, SPANS):
            i = start + tl.arange(0, SPANS)
            live, cell = i + length <= n, length * side + i
            value, split = get(charts, right + cell, offset, live, MAX, True)
            k, here = split.to(tl.int32) + 1, live & (value == MARK)
            tl.store(charts + to_right + k * side + i, MARK, here)
            tl.store(charts + right + (length - k) * side + i + k, MARK, here)
            value, split = get(charts, left + cell, offset, live, MAX, True)
            k, here = split.to(tl.int32) + 1, live & (value == MARK)
            tl.store(charts + left + k * side + i, MARK, here)
            tl.store(charts + to_left + (length - k) * side + i + k, MARK, here)
        tl.debug_barrier()
        for start in range(0, n + 1 - length, SPANS):
            i = start + tl.arange(0, SPANS)
            live, cell = i + length <= n, length * side + i
            value, split = get(charts, to_right + cell, offset, live, MAX, True)
            other = tl.load(charts + to_left + cell, live, other=0.0)
            tl.store(best + i + length, i, live & (value == MARK))
            tl.store(best + i, i + length, live & (other == MARK))
            k, here = split.to(tl.int32), live & ((value == MARK) | (other == MARK))
            tl.store(charts + right + k * side + i, MARK, here)
            tl.store(charts + left + (length - 1 - k) * side + i + k + 1, MARK, here)
        tl.debug_barrier()


@kernel
def projective_trees(
    scores, lengths, along, workspace, log_partition, result, status,
    first, size, operation, side, tags, direction, longest, single_root,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Write sums with their marginals or Hessian products, or heads of best trees."""
    PAIR: tl.constexpr = DERIVED or KIND == MAX
    program = tl.program_id(0).to(tl.int64)
    item = first + program
    n, area = tl.load(lengths + item).to(tl.int32), side * side
    if KIND == LOG:
        if tl.load(status + item) != UNSOLVED:
            n = n * 0
    if n > 0:
        scores += item * area
        along += item * area
        charts = workspace + program * size
        shift = charts + size - side
        offset = (size - side) // 2
        total_shift, wrong = scale(scores, shift, side, n, direction, longest, WAYS, SPANS)
        weigh(
            *(scores, along, shift, charts, side, n, direction, longest, offset),
            *(KIND, DERIVED, PAIR, WAYS, SPANS),
        )
        inside(charts, side, n, single_root, offset, KIND, PAIR, WAYS, SPANS)
        total = tl.load(charts + RIGHT * area + n * side)
        found = tl.where(wrong > 0, NOT_FINITE, state_of(total, n, KIND))
        if KIND == MAX:
            if found == FEASIBLE:
                backtrack(charts, result + item * side, side, n, offset, SPANS)
        else:
            log_total = tl.log(total) if KIND == SUM else total
            tl.store(log_partition + item, log_total + total_shift)
            if (operation >= MARGINALS) & (found == FEASIBLE):
                inverse = 1.0 / total if KIND == SUM else -total
                d_inverse = 0.0 * inverse
                if DERIVED:
                    d_total = tl.load(charts + RIGHT * area + n * side + offset)
                    d_inverse = -d_total * inverse * inverse if KIND == SUM else -d_total
                mass = outside(
                    *(charts, result + item * area, side, n, single_root, offset),
                    *(inverse, d_inverse, KIND, DERIVED, WAYS, SPANS),
                )
                # Each token has one head. A different sum shows that the outside pass lost
                # precision.
                if KIND == SUM:
                    found = tl.where(tl.abs(mass - n) < n * LOST, FEASIBLE, UNSOLVED)
        tl.store(status + item, found)


def plan(shape: tuple[int, ...], operation: int) -> Plan:
    """Return the launch parameters for scores of this shape."""
    side, pair = shape[1], operation in (BEST, HESSIAN_PRODUCT)
    charts = INNER_CHARTS if operation in (BEST, LOG_PARTITION) else CHARTS
    size = charts * (2 if pair else 1) * side * side + side
    # The fastest of twenty settings on an H200.
    if operation == HESSIAN_PRODUCT:
        constants, warps = tile(16, 32), 4
    else:
        constants, warps = (tile(8, 32), 4) if side <= 64 else (tile(16, 64), 8)
    kinds = MAXIMA if operation == BEST else SUMS
    return Plan(projective_trees, size, kinds, constants, {"num_warps": warps})
