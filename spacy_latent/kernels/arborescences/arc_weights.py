"""Weights of the arcs of a sentence, and whether sums over trees lose any of them."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.arborescences.block_products import address, vector_in
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE
from spacy_latent.kernels.simd.arc_scores import read_arc_scores
from spacy_latent.kernels.simd.exponential import exponential_of
from spacy_latent.kernels.simd.vector import (
    VECTOR,
    broadcast,
    constant,
    over_vectors,
    read_arguments,
    vector_from,
)

# Products of two such weights and a share do not underflow.
SMALLEST_WEIGHT = 1e-100
FAST = {"reassoc", "contract", "nsz"}


@intrinsic
def column_weights(typingctx, scores, j, rows, columns, weights, tops, best):
    """Write weights[h, c] = exp(scores[h, j + c] − tops[c]), with tops[c] the maximum of a column.

    best[c] is the first row with the maximum. If the maximum is −inf, tops[c] is 0. All arrays are
    contiguous float64 without NaN and +inf, and ``columns`` is a number of whole vectors.
    """
    number = types.int64
    signature = types.none(scores, number, number, number, weights, tops, best)

    def generate(context, builder, signature, arguments):
        source, j, rows, columns, target, largest, where = read_arguments(
            context, builder, signature, arguments
        )
        number, low, zero = j.type, constant(-np.inf), constant(0.0)
        top, place = cgutils.alloca_once(builder, VECTOR), cgutils.alloca_once(builder, VECTOR)
        with over_vectors(builder, number(0), columns) as c:
            begin = address(builder, source, number(0), builder.add(j, c))
            width = builder.extract_value(source.shape, 1)

            def load(h):
                return builder.load(vector_from(builder, begin, builder.mul(h, width)), align=8)

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
                builder.store(value, vector_from(builder, array.data, c), align=8)
            with cgutils.for_range(builder, rows) as loop:
                values = exponential_of(builder, builder.fsub(load(loop.index), found))
                builder.store(values, vector_in(builder, target, loop.index, c), align=8)
        return context.get_dummy_value()

    return signature, generate


@kernel
def read_weights(scores, n, options, matrix, weights, begin, top, best):
    """Write the scores and the weights of one sentence.

    Args:
        options: direction, longest arc, whether the root is single.
        matrix: ``(n+1, ...)``, [head, modifier], written: the scores.
        weights: [head, modifier], written: exp(score − top of its modifier), for modifiers from
            ``begin`` on. Rows after n are 0.
        best: written: a head with the top score.

    Returns:
        The status, and the sum of top over the tokens.
    """
    direction, max_arc_length, _ = options
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
def loses_nothing(matrix, weights, n, begin):
    """Return whether no weight has underflowed: all are at least SMALLEST_WEIGHT.

    Root arcs may be forbidden: as soon as a token with a root arc is eliminated, all remaining
    tokens get one.

    Args:
        matrix, weights, begin: see :func:`read_weights`.
    """
    for h in range(n + 1):
        for m in range(1, n + 1):
            if h != m and not weights[h, m - begin] >= SMALLEST_WEIGHT:
                if h > 0 or matrix[h, m] > -np.inf:
                    return False
    return True


@kernel(fastmath=FAST)
def sum_columns(weights, begin, end, columns, sums):
    """Write the sums of columns over the rows from ``begin`` to ``end``."""
    for m in range(columns):
        sums[m] = 0.0
    for h in range(begin, end):
        row = weights[h]
        for m in range(columns):
            sums[m] += row[m]
