"""Escape probabilities of a random walk over heads, for all pairs of tokens.

The walk goes from a token m to its head h with probability w[h, m] / Σ w[·, m]. Its escape
probability Q[h, m] is the probability that it reaches the root before token m, if it starts at h.
With the inverse B of the Laplacian, Q[h, m] = 1 − B[m, h] / B[m, m]. That difference may lose all
digits, so it is not computed.

The elimination of Grassmann, Taksar and Heyman (1985) removes tokens from the graph without a
subtraction, and does not change the walks among the remaining tokens. If m is the only one left,
the weight of its arc to the root is 1 / B[m, m]. This weight is called its *exit*.

Each token must thus be the last one in some order of elimination. A recursion over sets of tokens
shares the work: it eliminates the first half of a set and continues with the second, and the
reverse. This takes 4/3·n³ products in all, little more than the inverse. All summands are positive,
so each result is accurate to its last digits, however small.

Sets consist of whole blocks of LANES tokens. The last block is solved in a vector, whose lanes each
keep a different token.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.exponential import exponential_of
from spacy_latent.kernels.simd.vector import (
    FLAGS,
    LANES,
    VECTOR,
    broadcast,
    in_blocks,
    transposed,
    vector_of,
)

# Weights below 1e−308 underflow. They cannot matter in a pivot above this.
SMALLEST_PIVOT = 1e-150
# Initial value of a tile of a product: the entries of the target, 0, or a column of the left
# factor, the one after the columns that are multiplied.
GIVEN, NOTHING, COLUMN = range(3)


def _address(builder: Any, array: Any, i: Any, j: Any) -> Any:
    """Return the address of a number in a contiguous matrix."""
    width = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.add(builder.mul(i, width), j)])


def _vector_at(builder: Any, place: Any) -> Any:
    return builder.bitcast(place, VECTOR.as_pointer())


def _times_plus(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(c, builder.fmul(a, b, flags=FLAGS), flags=FLAGS)


def _lane(k: int) -> Any:
    """Return a mask that is true only in lane k."""
    return ir.Constant(ir.VectorType(ir.IntType(1), LANES), [int(i == k) for i in range(LANES)])


def _spread_lane(builder: Any, vector: Any, k: int) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [k] * LANES)
    return builder.shuffle_vector(vector, vector, mask)


def _total(builder: Any, values: list[Any]) -> Any:
    while len(values) > 1:
        pairs = [builder.fadd(*values[k : k + 2]) for k in range(0, len(values) - 1, 2)]
        values = pairs + values[2 * len(pairs) :]
    return values[0]


def _tile(rows: int, vectors: int, turned: bool = False) -> Any:
    """Return a compiled function of (start, a, ai, aj, b, bi, bj, c, ci, cj, n).

    It computes

        c[ci + r, cj + s] = start + Σ_{k < n} a[ai + r, aj + k] · b[bi + k, bj + s]

    for r < ``rows`` and s < ``vectors`` · LANES, or the same with the transpose of a if ``turned``.
    Matrices are contiguous float64. The tile stays in registers and is written last, so c may be b.
    """

    def build(
        typingctx: Any,
        start: Any,
        a: Any,
        ai: Any,
        aj: Any,
        b: Any,
        bi: Any,
        bj: Any,
        c: Any,
        ci: Any,
        cj: Any,
        n: Any,
    ) -> Any:
        number = types.int64
        places = (number, number)
        signature = types.none(number, a, *places, b, *places, c, *places, number)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            left, right, target = (
                context.make_array(signature.args[place])(context, builder, arguments[place])
                for place in (1, 4, 7)
            )
            start, ai, aj, bi, bj, ci, cj, n = (
                arguments[place] for place in (0, 2, 3, 5, 6, 8, 9, 10)
            )
            number = n.type

            def factor(r: int, k: Any) -> Any:
                i, j = builder.add(ai, number(r)), builder.add(aj, k)
                place = _address(builder, left, j, i) if turned else _address(builder, left, i, j)
                return broadcast(builder, builder.load(place))

            def vectors_of(array: Any, i: Any, j: Any) -> list[Any]:
                begin = _address(builder, array, i, j)
                places = (builder.gep(begin, [number(v * LANES)]) for v in range(vectors))
                return [builder.bitcast(place, VECTOR.as_pointer()) for place in places]

            targets = [vectors_of(target, builder.add(ci, number(r)), cj) for r in range(rows)]
            sums = [[cgutils.alloca_once(builder, VECTOR) for _ in row] for row in targets]
            zero = ir.Constant(VECTOR, [0.0] * LANES)
            with builder.if_else(builder.icmp_signed("==", start, number(GIVEN))) as (
                given,
                not_given,
            ):
                with given:
                    for own, row in zip(sums, targets):
                        for place, known in zip(own, row):
                            builder.store(builder.load(known, align=8), place)
                with not_given:
                    by_column = builder.icmp_signed("==", start, number(COLUMN))
                    for own in sums:
                        for place in own:
                            builder.store(zero, place)
                    with builder.if_then(by_column):
                        for r, own in enumerate(sums):
                            value = factor(r, n)
                            for place in own:
                                builder.store(value, place)
            with cgutils.for_range(builder, n) as loop:
                known = [
                    builder.load(place, align=8)
                    for place in vectors_of(right, builder.add(bi, loop.index), bj)
                ]
                for r, own in enumerate(sums):
                    scalar = factor(r, loop.index)
                    for place, value in zip(own, known):
                        total = _times_plus(builder, scalar, value, builder.load(place))
                        builder.store(total, place)
            for own, row in zip(sums, targets):
                for place, known in zip(own, row):
                    builder.store(builder.load(place), known, align=8)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(build)


_tile_4, _tile_3, _tile_2, _tile_1 = (_tile(4, 4), *(_tile(LANES, v) for v in (3, 2, 1)))
_turned_4, _turned_3, _turned_2, _turned_1 = (
    _tile(4, 4, True),
    *(_tile(LANES, v, True) for v in (3, 2, 1)),
)


@kernel
def product(start, a, ai, aj, b, bi, bj, c, ci, cj, rows, n, columns):
    """Multiply as :func:`_tile` does, for whole blocks of ``rows`` and ``columns``.

    c must not be b if there are more than 3 · LANES columns.
    """
    j = 0
    while columns - j > 3 * LANES:
        for i in range(0, rows, 4):
            _tile_4(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        j += 4 * LANES
    rest = columns - j
    for i in range(0, rows, LANES):
        if rest == 3 * LANES:
            _tile_3(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == 2 * LANES:
            _tile_2(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == LANES:
            _tile_1(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)


@kernel
def turned_product(start, a, ai, aj, b, bi, bj, c, ci, cj, rows, n, columns):
    """Multiply as :func:`product` does, with the transpose of a."""
    j = 0
    while columns - j > 3 * LANES:
        for i in range(0, rows, 4):
            _turned_4(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        j += 4 * LANES
    rest = columns - j
    for i in range(0, rows, LANES):
        if rest == 3 * LANES:
            _turned_3(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == 2 * LANES:
            _turned_2(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == LANES:
            _turned_1(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)


@kernel
def _multiply_block(inverse, x, i, j, end):
    """Write x[i:i + LANES, j:end] = inverseᵀ · x[i:i + LANES, j:end]."""
    while j < end:
        if end - j >= 3 * LANES:
            _turned_3(NOTHING, inverse, 0, 0, x, i, j, x, i, j, LANES)
            j += 3 * LANES
        elif end - j == 2 * LANES:
            _turned_2(NOTHING, inverse, 0, 0, x, i, j, x, i, j, LANES)
            j += 2 * LANES
        else:
            _turned_1(NOTHING, inverse, 0, 0, x, i, j, x, i, j, LANES)
            j += LANES


@intrinsic
def _copy_block(
    typingctx: Any, a: Any, i: Any, j: Any, k: Any, l: Any, rows: Any, columns: Any
) -> Any:
    """Copy a[i:i + rows, j:j + columns] to a[k:k + rows, l:l + columns].

    Rows are whole vectors of a contiguous float64 matrix. The two blocks have no rows in common.
    """
    number = types.int64
    signature = types.none(a, number, number, number, number, number, number)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        i, j, k, l, rows, columns = arguments[1:]
        number = i.type
        with cgutils.for_range(builder, rows) as loop:
            source = _address(builder, array, builder.add(i, loop.index), j)
            target = _address(builder, array, builder.add(k, loop.index), l)
            step = number(LANES)
            with cgutils.for_range_slice(builder, number(0), columns, step, number) as (at, _):
                value = builder.load(_vector_at(builder, builder.gep(source, [at])), align=8)
                builder.store(value, _vector_at(builder, builder.gep(target, [at])), align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _invert_block(
    typingctx: Any, x: Any, i: Any, j: Any, end: Any, inverse: Any, pivots: Any
) -> Any:
    """Write the transposed inverse of the Laplacian of LANES tokens, and their pivots.

    Args:
        x: contiguous float64. The weights of the tokens start at x[i, j]. All weights after them in
            these rows, before column ``end``, count as root arcs.
        inverse: ``(LANES, LANES)``, written.
        pivots: ``(LANES,)``, written.
    """
    number = types.int64
    signature = types.none(x, number, number, number, inverse, pivots)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, result, divisors = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 4, 5)
        )
        i, j, end = arguments[1:4]
        number = i.type
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        starts = [
            _address(builder, source, builder.add(i, number(r)), number(0)) for r in range(LANES)
        ]
        outside = [cgutils.alloca_once_value(builder, zero) for _ in starts]
        step = number(LANES)
        begin = builder.add(j, step)
        with cgutils.for_range_slice(builder, begin, end, step, number) as (at, _):
            for start, place in zip(starts, outside):
                value = builder.load(_vector_at(builder, builder.gep(start, [at])), align=8)
                builder.store(builder.fadd(builder.load(place), value), place)
        exits = _total(builder, transposed(builder, [builder.load(place) for place in outside]))
        rows = [
            builder.load(_vector_at(builder, builder.gep(start, [j])), align=8) for start in starts
        ]
        columns = transposed(builder, rows)
        found, one = zero, ir.DoubleType()(1.0)
        ones = ir.Constant(VECTOR, [1.0] * LANES)
        for k in range(LANES):
            lane, at = _lane(k), ir.IntType(32)(k)
            pivot = builder.extract_element(_total(builder, [exits, *columns[k + 1 :]]), at)
            found = builder.insert_element(found, pivot, at)
            share = broadcast(builder, builder.fdiv(one, pivot))
            # The row of the token itself keeps only its own share.
            passing = builder.select(lane, ones, columns[k])
            for m, column in enumerate([*columns, exits]):
                if m == k:
                    continue
                value = builder.fmul(_spread_lane(builder, column, k), share)
                column = builder.select(lane, zero, column)
                column = _times_plus(builder, passing, value, column)
                if m < LANES:
                    columns[m] = column
                else:
                    exits = column
            columns[k] = builder.fmul(passing, share)
        for k, column in enumerate(columns):
            place = _address(builder, result, number(k), number(0))
            builder.store(column, _vector_at(builder, place), align=8)
        builder.store(found, _vector_at(builder, divisors.data), align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _solve_block(
    typingctx: Any,
    x: Any,
    i: Any,
    counted: Any,
    escapes: Any,
    lo: Any,
    exits: Any,
    smallest: Any,
    pivots: Any,
) -> Any:
    """Write the escape probabilities and exits of a set of LANES tokens.

    Args:
        x: the weights of the tokens start at x[i, 0], and those of the root at x[i, LANES].
        counted: 1, or 0 with a single root.
        escapes: escapes[lo + h, lo + k] is written.
        exits: exits[lo + k] is written: the weight of the arc from k to the root if only k is left.
        smallest: written: for each k, the smallest pivot.
        pivots: written: the pivots of the elimination that keeps token 0, whose own is its exit.
    """
    number = types.int64
    signature = types.none(x, number, types.float64, escapes, number, exits, smallest, pivots)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, left, least, divisors = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 3, 5, 6, 7)
        )
        i, lo, counted = arguments[1], arguments[4], broadcast(builder, arguments[2])
        number = i.type
        zero, ones = (ir.Constant(VECTOR, [value] * LANES) for value in (0.0, 1.0))
        # In lane k, which keeps token k: the weights among the others, to k, and to the root.
        weights: list[list[Any]] = []
        to_last, to_root = [], []
        for r in range(LANES):
            start = _address(builder, source, builder.add(i, number(r)), number(0))
            to_last.append(builder.load(_vector_at(builder, start), align=8))
            numbers = [builder.load(builder.gep(start, [number(c)])) for c in range(LANES + 1)]
            spread = [broadcast(builder, value) for value in numbers]
            to_root.append(spread.pop())
            weights.append(
                [builder.select(_lane(c), zero, value) for c, value in enumerate(spread)]
            )
        shares, tiny = [], ones
        for k in range(LANES):
            own = weights[k]
            root = builder.fmul(to_root[k], counted)
            pivot = _total(builder, [to_last[k], root, *own[k + 1 :]])
            pivot = builder.select(_lane(k), ones, pivot)
            tiny = builder.select(builder.fcmp_ordered("<", pivot, tiny), pivot, tiny)
            share = builder.fdiv(ones, pivot)
            shares.append((pivot, share))
            for r in range(k + 1, LANES):
                passed = builder.fmul(weights[r][k], share)
                for c in range(k + 1, LANES):
                    if c != r:
                        weights[r][c] = _times_plus(builder, passed, own[c], weights[r][c])
                to_last[r] = _times_plus(builder, passed, to_last[k], to_last[r])
                to_root[r] = _times_plus(builder, passed, to_root[k], to_root[r])
        found: list[Any] = [None] * LANES
        last = zero
        for k in reversed(range(LANES)):
            value = to_root[k]
            for c in range(k + 1, LANES):
                value = _times_plus(builder, weights[k][c], found[c], value)
            last = builder.select(_lane(k), value, last)
            found[k] = builder.select(_lane(k), zero, builder.fmul(value, shares[k][1]))
            place = _address(builder, target, builder.add(lo, number(k)), lo)
            builder.store(found[k], _vector_at(builder, place), align=8)
        builder.store(last, _vector_at(builder, builder.gep(left.data, [lo])), align=8)
        tiny = builder.select(builder.fcmp_ordered("<", last, tiny), last, tiny)
        builder.store(tiny, _vector_at(builder, least.data), align=8)
        for k in range(LANES):
            vector = last if k == 0 else shares[k][0]
            first = builder.extract_element(vector, ir.IntType(32)(0))
            builder.store(first, builder.gep(divisors.data, [number(k)]))
        return context.get_dummy_value()

    return signature, generate


@kernel
def _eliminate_blocks(x, i, blocks, width, counted, single_root, inverse, pivots):
    """Eliminate the first tokens of x[i:, :width] from the graph.

    In their rows, the weights of all later columns are replaced by the probabilities that a walk
    reaches these columns first. The last column is the root's.

    Returns:
        Σ log of the pivots, if ``counted``; NaN if a pivot is too small.
    """
    total = 0.0
    for k in range(blocks):
        begin = LANES * k
        row, rest = i + begin, begin + LANES
        _invert_block(x, row, begin, width - LANES if single_root else width, inverse, pivots)
        for m in range(LANES):
            if not pivots[m] > SMALLEST_PIVOT:
                return np.nan
        if counted:
            total += log_of_product(pivots)
        _multiply_block(inverse, x, row, rest, width)
        for other in range(blocks):
            if other != k:
                place = i + LANES * other
                product(
                    *(GIVEN, x, place, begin, x, row, rest, x, place, rest),
                    *(LANES, LANES, width - rest),
                )
    return total


@kernel
def log_of_product(values):
    """Return the logarithm of a product of LANES numbers of any magnitude.

    The product of two of them must neither overflow nor underflow.
    """
    total = 0.0
    for k in range(0, LANES, 2):
        total += math.log(values[k] * values[k + 1])
    return total


@kernel
def room_shape(n):
    """Return the shape of the matrix ``room`` of :func:`escape_probabilities` for n tokens."""
    blocks = max(1, (n + LANES - 1) // LANES)
    rows, own = 0, blocks
    while own > 1:
        rows += own + (own + 1) // 2
        own = (own + 1) // 2
    return LANES * (rows + 1), LANES * (blocks + 1)


@kernel
def escape_probabilities(n, single_root, room, stack, scratch, escapes, exits):
    """Write the escape probabilities and exits of all tokens (see the module).

    With a single root, they are limits as the weights of the root's arcs go to 0, and exits are
    relative to these weights.

    Args:
        room: ``room_shape(n)``, overwritten. Its first rows are the weights of the tokens,
            [modifier, head]. The weights of the root follow the last block of tokens, then only
            zeros. The diagonal may be anything. Padding tokens, from n up to whole blocks, must
            have a head and be the head of no token.
        stack: ``(64, 4)`` int64 workspace.
        scratch: ``(LANES + 2, LANES)`` workspace.
        escapes: [head, token], whole blocks, written: the escape probabilities, 0 on the diagonal.
            Entries of padding tokens are undefined.
        exits: [token], whole blocks, written; undefined for padding tokens.

    Returns:
        log Z, or NaN if a pivot was too small.
    """
    blocks = (n + LANES - 1) // LANES
    inverse, pivots, smallest = scratch[:LANES], scratch[LANES], scratch[LANES + 1]
    weight = 0.0 if single_root else 1.0
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, blocks, 0, 0
    level, total, counted = 0, 0.0, True
    while level >= 0:
        lo, hi, phase, x = stack[level, 0], stack[level, 1], stack[level, 2], stack[level, 3]
        if hi - lo == 1:
            _solve_block(room, x, weight, escapes, LANES * lo, exits, smallest, pivots)
            for m in range(min(LANES, n - LANES * lo)):
                if not smallest[m] > SMALLEST_PIVOT:
                    return np.nan
            if counted:
                total += log_of_product(pivots)
                counted = False
            level -= 1
            continue
        middle, width = (lo + hi) // 2, LANES * (hi - lo + 1)
        y = x + LANES * (hi - lo)
        if phase > 0:
            # The second set is solved. Return to the eliminated tokens.
            gone, stop, left, size = (lo, middle, middle, hi - middle)
            if phase == 2:
                gone, stop, left, size = (middle, hi, lo, middle - lo)
            product(
                *(COLUMN, room, y, LANES * (stop - gone), escapes, LANES * left, LANES * left),
                *(escapes, LANES * gone, LANES * left),
                *(LANES * (stop - gone), LANES * size, LANES * size),
            )
            if phase == 2:
                level -= 1
                continue
        gone, size, left = 0, LANES * (middle - lo), LANES * (middle - lo)
        others = LANES * (hi - middle)
        if phase == 1:
            gone, size, left, others = left, others, 0, size
        # The columns of the eliminated tokens, of the remaining tokens, of the root.
        _copy_block(room, x + gone, gone, y, 0, size, size)
        _copy_block(room, x + gone, left, y, size, size, others)
        _copy_block(room, x + gone, width - LANES, y, width - LANES, size, LANES)
        found = _eliminate_blocks(
            room, y, size // LANES, width, counted, single_root, inverse, pivots
        )
        if math.isnan(found):
            return np.nan
        total += found
        after = y + LANES * ((hi - lo + 1) // 2)
        _copy_block(room, x + left, left, after, 0, others, others)
        _copy_block(room, x + left, width - LANES, after, others, others, LANES)
        product(
            *(GIVEN, room, x + left, gone, room, y, size, room, after, 0),
            *(others, size, others + LANES),
        )
        stack[level, 2] = phase + 1
        level += 1
        first = lo + left // LANES
        stack[level, 0], stack[level, 1] = first, first + others // LANES
        stack[level, 2], stack[level, 3] = 0, after
    return total


@intrinsic
def turn_to(typingctx: Any, matrix: Any, begin: Any, size: Any, result: Any) -> Any:
    """Write the transpose of ``size`` rows from ``begin`` on, and as many columns from 0 on.

    ``size`` is a number of whole blocks of LANES. Both matrices are contiguous float64, and the
    result may have any width.
    """
    signature = types.none(matrix, types.int64, types.int64, result)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 3)
        )
        begin, size = arguments[1:3]
        number = size.type
        step, zero = number(LANES), number(0)

        def at(array: Any, i: Any, k: int, j: Any) -> Any:
            return _vector_at(builder, _address(builder, array, builder.add(i, number(k)), j))

        with cgutils.for_range_slice(builder, zero, size, step, number) as (i, _):
            with cgutils.for_range_slice(builder, zero, size, step, number) as (j, _):
                row = builder.add(i, begin)
                block = [builder.load(at(source, row, k, j), align=8) for k in range(LANES)]
                for k, value in enumerate(transposed(builder, block)):
                    builder.store(value, at(target, j, k, i), align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def column_weights(
    typingctx: Any,
    scores: Any,
    j: Any,
    rows: Any,
    columns: Any,
    weights: Any,
    tops: Any,
    best: Any,
) -> Any:
    """Write weights[h, c] = exp(scores[h, j + c] − tops[c]), with tops[c] the maximum of a column.

    best[c] is the first row with the maximum. If the maximum is −inf, tops[c] is 0. All arrays are
    contiguous float64 without NaN and +inf, and ``columns`` is a number of whole vectors.
    """
    number = types.int64
    signature = types.none(scores, number, number, number, weights, tops, best)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, largest, where = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 4, 5, 6)
        )
        j, rows, columns = arguments[1:4]
        number = j.type
        low, zero = (ir.Constant(VECTOR, [value] * LANES) for value in (float("-inf"), 0.0))
        top, place = cgutils.alloca_once(builder, VECTOR), cgutils.alloca_once(builder, VECTOR)
        with cgutils.for_range_slice(builder, number(0), columns, number(LANES), number) as (c, _):
            begin = _address(builder, source, number(0), builder.add(j, c))
            width = builder.extract_value(source.shape, 1)

            def load(h: Any) -> Any:
                at = builder.gep(begin, [builder.mul(h, width)])
                return builder.load(_vector_at(builder, at), align=8)

            builder.store(low, top)
            builder.store(zero, place)
            with cgutils.for_range(builder, rows) as loop:
                values, known = load(loop.index), builder.load(top)
                better = builder.fcmp_ordered(">", values, known)
                builder.store(builder.select(better, values, known), top)
                here = broadcast(builder, builder.sitofp(loop.index, ir.DoubleType()))
                builder.store(builder.select(better, here, builder.load(place)), place)
            found = builder.load(top)
            found = builder.select(builder.fcmp_ordered(">", found, low), found, zero)
            for array, value in ((largest, found), (where, builder.load(place))):
                at = _vector_at(builder, builder.gep(array.data, [c]))
                builder.store(value, at, align=8)
            with cgutils.for_range(builder, rows) as loop:
                values = exponential_of(builder, builder.fsub(load(loop.index), found))
                at = _address(builder, target, loop.index, c)
                builder.store(values, _vector_at(builder, at), align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def write_probabilities(
    typingctx: Any, weights: Any, escapes: Any, inverse: Any, n: Any, total: Any, out: Any
) -> Any:
    """Write the marginals out[h, m + 1] = weights[h, m] · inverse[m] · escapes[h − 1, m].

    For the root h = 0, the last factor is 1. total[m] = Σ_h weights[h, m] · inverse[m] is written
    too. n is at least LANES, and out is float32 or float64.
    """
    signature = types.none(weights, escapes, inverse, types.int64, total, out)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, chances, factors, sums, target = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 1, 2, 4, 5)
        )
        n, kind = arguments[3], signature.args[5]
        number = n.type
        total = cgutils.alloca_once(builder, VECTOR)
        with in_blocks(builder, number(0), n) as j:
            share_of = builder.load(_vector_at(builder, builder.gep(factors.data, [j])), align=8)

            def share(h: Any) -> Any:
                place = _vector_at(builder, _address(builder, given, h, j))
                return builder.fmul(builder.load(place, align=8), share_of)

            def put(h: Any, value: Any) -> None:
                _put(builder, kind, target, h, builder.add(j, number(1)), value)

            first = share(number(0))
            builder.store(first, total)
            put(number(0), first)
            with cgutils.for_range(builder, n) as loop:
                h = builder.add(loop.index, number(1))
                value = share(h)
                builder.store(builder.fadd(builder.load(total), value), total)
                place = _vector_at(builder, _address(builder, chances, loop.index, j))
                put(h, builder.fmul(value, builder.load(place, align=8)))
            place = _vector_at(builder, builder.gep(sums.data, [j]))
            builder.store(builder.load(total), place, align=8)
        return context.get_dummy_value()

    return signature, generate


def _put(builder: Any, kind: Any, array: Any, i: Any, j: Any, value: Any) -> None:
    """Store a vector in a matrix of float32 or float64."""
    vector = vector_of(kind)
    if vector != VECTOR:
        value = builder.fptrunc(value, vector)
    place = builder.bitcast(_address(builder, array, i, j), vector.as_pointer())
    builder.store(value, place, align=4)


def _get(builder: Any, kind: Any, array: Any, i: Any, j: Any) -> Any:
    """Load a vector from a matrix of float32 or float64."""
    vector = vector_of(kind)
    place = builder.bitcast(_address(builder, array, i, j), vector.as_pointer())
    value = builder.load(place, align=4)
    return value if vector == VECTOR else builder.fpext(value, VECTOR)


@intrinsic
def read_change(
    typingctx: Any,
    weights: Any,
    inverse: Any,
    along: Any,
    common: Any,
    n: Any,
    single_root: Any,
    change: Any,
    total: Any,
) -> Any:
    """Write e[h, m] = weights[h, m] · inverse[m] · (along[h, m + 1] − common[m]), and its sums.

    e[h, m] is written to change[h − 1, m], or to change[n, m] for the root h = 0. total[m] = Σ_h
    e[h, m], which leaves out the root if there is a single root. ``along`` is not read at arcs of
    weight 0. n is at least LANES, and along is float32 or float64.
    """
    number = types.int64
    signature = types.none(weights, inverse, along, common, number, number, change, total)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, factors, upstream, shared, target, sums = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 1, 2, 3, 6, 7)
        )
        n, single_root = arguments[4:6]
        number, kind = n.type, signature.args[2]
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        total = cgutils.alloca_once(builder, VECTOR)
        with in_blocks(builder, number(0), n) as j:
            factor, shift = (
                builder.load(_vector_at(builder, builder.gep(array.data, [j])), align=8)
                for array in (factors, shared)
            )

            def work(h: Any, row: Any) -> Any:
                weight = _get(builder, types.Array(types.float64, 2, "C"), given, h, j)
                moved = _get(builder, kind, upstream, h, builder.add(j, number(1)))
                value = builder.fmul(builder.fmul(weight, factor), builder.fsub(moved, shift))
                value = builder.select(builder.fcmp_ordered(">", weight, zero), value, zero)
                place = _vector_at(builder, _address(builder, target, row, j))
                builder.store(value, place, align=8)
                return value

            first = work(number(0), n)
            counted = builder.icmp_signed("==", single_root, number(0))
            builder.store(builder.select(counted, first, zero), total)
            with cgutils.for_range(builder, n) as loop:
                value = work(builder.add(loop.index, number(1)), loop.index)
                builder.store(builder.fadd(builder.load(total), value), total)
            place = _vector_at(builder, builder.gep(sums.data, [j]))
            builder.store(builder.load(total), place, align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def write_change(
    typingctx: Any,
    weights: Any,
    escapes: Any,
    inverse: Any,
    along: Any,
    common: Any,
    best: Any,
    left: Any,
    both: Any,
    diagonal: Any,
    n: Any,
    single_root: Any,
    total: Any,
    out: Any,
) -> Any:
    """Write the tangents of the marginals, and their sums over heads.

    out[h, m + 1] = weights[h, m] · inverse[m] · (escapes[h − 1, m] · (along[h, m + 1] − common[m])
    − both[h − 1, m] + diagonal[m]), or 0 if h is best[m] or the weight is 0. total[m] is the sum
    over h.

    For the root h = 0, the escape probability is 1, and the sum of the rows of ``left`` replaces
    ``both``. With a single root, 0 replaces the diagonal there. n is at least LANES; along and out
    are float32 or float64.
    """
    number = types.int64
    signature = types.none(
        *(weights, escapes, inverse, along, common, best, left, both, diagonal),
        *(number, number, total, out),
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, chances, factors, upstream, shared, skipped, before, after, corners = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:9], arguments[:9])
        )
        sums, target = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[11:], arguments[11:])
        )
        n, single_root = arguments[9:11]
        number, plain = n.type, types.Array(types.float64, 2, "C")
        zero, ones = (ir.Constant(VECTOR, [value] * LANES) for value in (0.0, 1.0))
        total = cgutils.alloca_once(builder, VECTOR)
        with in_blocks(builder, number(0), n) as j:
            factor, shift, where, corner = (
                builder.load(_vector_at(builder, builder.gep(array.data, [j])), align=8)
                for array in (factors, shared, skipped, corners)
            )

            def work(h: Any, chance: Any, moved: Any) -> None:
                weight = _get(builder, plain, given, h, j)
                change = _get(builder, signature.args[3], upstream, h, builder.add(j, number(1)))
                own = builder.fmul(builder.fsub(change, shift), chance)
                value = builder.fmul(builder.fmul(weight, factor), builder.fsub(own, moved))
                read = builder.fcmp_ordered(">", weight, zero)
                here = broadcast(builder, builder.sitofp(h, ir.DoubleType()))
                read = builder.and_(read, builder.fcmp_ordered("!=", where, here))
                value = builder.select(read, value, zero)
                builder.store(builder.fadd(builder.load(total), value), total)
                column = builder.add(j, number(1))
                _put(builder, signature.args[12], target, h, column, value)

            builder.store(zero, total)
            with cgutils.for_range(builder, n) as loop:
                value = _get(builder, plain, before, loop.index, j)
                builder.store(builder.fadd(builder.load(total), value), total)
            counted = builder.icmp_signed("==", single_root, number(0))
            moved = builder.fsub(builder.load(total), builder.select(counted, corner, zero))
            builder.store(zero, total)
            work(number(0), ones, moved)
            with cgutils.for_range(builder, n) as loop:
                moved = builder.fsub(_get(builder, plain, after, loop.index, j), corner)
                chance = _get(builder, plain, chances, loop.index, j)
                work(builder.add(loop.index, number(1)), chance, moved)
            place = _vector_at(builder, builder.gep(sums.data, [j]))
            builder.store(builder.load(total), place, align=8)
        return context.get_dummy_value()

    return signature, generate
