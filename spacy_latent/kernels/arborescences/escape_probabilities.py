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

Sets consist of whole blocks of LANES tokens. A set of one block is solved for all its tokens at
once: lane k runs the elimination that keeps token k.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.arborescences.block_products import (
    COLUMN,
    GIVEN,
    address,
    copy_block,
    multiply_block,
    product,
    vector_in,
)
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.vector import (
    LANES,
    broadcast,
    constant,
    over_vectors,
    read_arguments,
    times_plus,
    transposed,
    vector_from,
)

# Weights below 1e−308 underflow. They cannot matter in a pivot above this.
SMALLEST_PIVOT = 1e-150


def _lane(k: int) -> Any:
    """Return a mask that is true only in lane k."""
    return ir.Constant(ir.VectorType(ir.IntType(1), LANES), [int(i == k) for i in range(LANES)])


def _spread_lane(builder: Any, vector: Any, k: int) -> Any:
    mask = constant(k, ir.VectorType(ir.IntType(32), LANES))
    return builder.shuffle_vector(vector, vector, mask)


def _total(builder: Any, values: list[Any]) -> Any:
    while len(values) > 1:
        pairs = [builder.fadd(*values[k : k + 2]) for k in range(0, len(values) - 1, 2)]
        values = pairs + values[2 * len(pairs) :]
    return values[0]


@intrinsic
def _invert_block(typingctx, x, i, j, end, inverse, pivots):
    """Write the transposed inverse of the Laplacian of LANES tokens, and their pivots.

    Args:
        x: contiguous float64. The weights of the tokens start at x[i, j]. All weights after them in
            these rows, before column ``end``, count as root arcs.
        inverse: ``(LANES, LANES)``, written.
        pivots: ``(LANES,)``, written.
    """
    number = types.int64
    signature = types.none(x, number, number, number, inverse, pivots)

    def generate(context, builder, signature, arguments):
        source, i, j, end, result, divisors = read_arguments(context, builder, signature, arguments)
        number, zero, ones = i.type, constant(0.0), constant(1.0)
        starts = [
            address(builder, source, builder.add(i, number(r)), number(0)) for r in range(LANES)
        ]
        outside = [cgutils.alloca_once_value(builder, zero) for _ in starts]
        with over_vectors(builder, builder.add(j, number(LANES)), end) as at:
            for start, place in zip(starts, outside):
                value = builder.load(vector_from(builder, start, at), align=8)
                builder.store(builder.fadd(builder.load(place), value), place)
        exits = _total(builder, transposed(builder, [builder.load(place) for place in outside]))
        rows = [builder.load(vector_from(builder, start, j), align=8) for start in starts]
        columns = transposed(builder, rows)
        found, one = zero, ir.DoubleType()(1.0)
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
                column = times_plus(builder, passing, value, column)
                if m < LANES:
                    columns[m] = column
                else:
                    exits = column
            columns[k] = builder.fmul(passing, share)
        for k, column in enumerate(columns):
            builder.store(column, vector_in(builder, result, number(k), number(0)), align=8)
        builder.store(found, vector_from(builder, divisors.data, number(0)), align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _solve_block(typingctx, x, i, counted, escapes, lo, exits, smallest, pivots):
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

    def generate(context, builder, signature, arguments):
        source, i, counted, target, lo, left, least, divisors = read_arguments(
            context, builder, signature, arguments
        )
        counted = broadcast(builder, counted)
        number, zero, ones = i.type, constant(0.0), constant(1.0)
        # In lane k, which keeps token k: the weights among the others, to k, and to the root.
        weights = []
        to_last, to_root = [], []
        for r in range(LANES):
            start = address(builder, source, builder.add(i, number(r)), number(0))
            to_last.append(builder.load(vector_from(builder, start, number(0)), align=8))
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
                        weights[r][c] = times_plus(builder, passed, own[c], weights[r][c])
                to_last[r] = times_plus(builder, passed, to_last[k], to_last[r])
                to_root[r] = times_plus(builder, passed, to_root[k], to_root[r])
        found = [None] * LANES
        last = zero
        for k in reversed(range(LANES)):
            value = to_root[k]
            for c in range(k + 1, LANES):
                value = times_plus(builder, weights[k][c], found[c], value)
            last = builder.select(_lane(k), value, last)
            found[k] = builder.select(_lane(k), zero, builder.fmul(value, shares[k][1]))
            place = vector_in(builder, target, builder.add(lo, number(k)), lo)
            builder.store(found[k], place, align=8)
        builder.store(last, vector_from(builder, left.data, lo), align=8)
        tiny = builder.select(builder.fcmp_ordered("<", last, tiny), last, tiny)
        builder.store(tiny, vector_from(builder, least.data, number(0)), align=8)
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
        multiply_block(inverse, x, row, rest, width)
        for other in range(blocks):
            if other != k:
                place = i + LANES * other
                product(
                    *(GIVEN, x, (place, begin), x, (row, rest), x, (place, rest)),
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
def matrix_shape(n):
    """Return the shape of the workspace ``matrix`` of :func:`escape_probabilities` for n tokens."""
    blocks = max(1, (n + LANES - 1) // LANES)
    rows, own = 0, blocks
    while own > 1:
        rows += own + (own + 1) // 2
        own = (own + 1) // 2
    return LANES * (rows + 1), LANES * (blocks + 1)


@kernel
def escape_probabilities(n, single_root, matrix, stack, scratch, escapes, exits):
    """Write the escape probabilities and exits of all tokens (see the module).

    With a single root, they are limits as the weights of the root's arcs go to 0, and exits are
    relative to these weights.

    Args:
        matrix: ``matrix_shape(n)``, overwritten. Its first rows are the weights of the tokens,
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
            _solve_block(matrix, x, weight, escapes, LANES * lo, exits, smallest, pivots)
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
            rows, columns = LANES * (stop - gone), LANES * size
            product(
                *(COLUMN, matrix, (y, rows), escapes, (LANES * left, LANES * left)),
                *(escapes, (LANES * gone, LANES * left), rows, columns, columns),
            )
            if phase == 2:
                level -= 1
                continue
        gone, size, left = 0, LANES * (middle - lo), LANES * (middle - lo)
        others = LANES * (hi - middle)
        if phase == 1:
            gone, size, left, others = left, others, 0, size
        # The columns of the eliminated tokens, of the remaining tokens, of the root.
        copy_block(matrix, x + gone, gone, y, 0, size, size)
        copy_block(matrix, x + gone, left, y, size, size, others)
        copy_block(matrix, x + gone, width - LANES, y, width - LANES, size, LANES)
        found = _eliminate_blocks(
            matrix, y, size // LANES, width, counted, single_root, inverse, pivots
        )
        if math.isnan(found):
            return np.nan
        total += found
        after = y + LANES * ((hi - lo + 1) // 2)
        copy_block(matrix, x + left, left, after, 0, others, others)
        copy_block(matrix, x + left, width - LANES, after, others, others, LANES)
        product(
            *(GIVEN, matrix, (x + left, gone), matrix, (y, size), matrix, (after, np.int64(0))),
            *(others, size, others + LANES),
        )
        stack[level, 2] = phase + 1
        level += 1
        first = lo + left // LANES
        stack[level, 0], stack[level, 1] = first, first + others // LANES
        stack[level, 2], stack[level, 3] = 0, after
    return total
