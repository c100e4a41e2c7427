"""Marginals and Hessian products from escape probabilities, in vectors of tokens."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.arborescences.block_products import address, vector_in
from spacy_latent.kernels.simd.vector import (
    VECTOR,
    broadcast,
    constant,
    in_blocks,
    read_arguments,
    vector_from,
    vector_of,
)

MATRIX = types.Array(types.float64, 2, "C")


@intrinsic
def write_probabilities(typingctx, weights, escapes, inverse, n, total, out):
    """Write the marginals out[h, m + 1] = weights[h, m] · inverse[m] · escapes[h − 1, m].

    For the root h = 0, the last factor is 1. total[m] = Σ_h weights[h, m] · inverse[m] is written
    too. n is at least LANES, and out is float32 or float64.
    """
    signature = types.none(weights, escapes, inverse, types.int64, total, out)

    def generate(context, builder, signature, arguments):
        given, chances, factors, n, sums, target = read_arguments(
            context, builder, signature, arguments
        )
        kind = signature.args[5]
        number = n.type
        total = cgutils.alloca_once(builder, VECTOR)
        with in_blocks(builder, number(0), n) as j:
            share_of = builder.load(vector_from(builder, factors.data, j), align=8)

            def share(h: Any) -> Any:
                weight = builder.load(vector_in(builder, given, h, j), align=8)
                return builder.fmul(weight, share_of)

            def put(h: Any, value: Any) -> None:
                _put(builder, kind, target, h, builder.add(j, number(1)), value)

            first = share(number(0))
            builder.store(first, total)
            put(number(0), first)
            with cgutils.for_range(builder, n) as loop:
                h = builder.add(loop.index, number(1))
                value = share(h)
                builder.store(builder.fadd(builder.load(total), value), total)
                chance = builder.load(vector_in(builder, chances, loop.index, j), align=8)
                put(h, builder.fmul(value, chance))
            builder.store(builder.load(total), vector_from(builder, sums.data, j), align=8)
        return context.get_dummy_value()

    return signature, generate


def _put(builder: Any, kind: Any, array: Any, i: Any, j: Any, value: Any) -> None:
    """Store a vector in a matrix of float32 or float64."""
    vector = vector_of(kind)
    if vector != VECTOR:
        value = builder.fptrunc(value, vector)
    place = builder.bitcast(address(builder, array, i, j), vector.as_pointer())
    builder.store(value, place, align=4)


def _get(builder: Any, kind: Any, array: Any, i: Any, j: Any) -> Any:
    """Load a vector from a matrix of float32 or float64."""
    vector = vector_of(kind)
    place = builder.bitcast(address(builder, array, i, j), vector.as_pointer())
    value = builder.load(place, align=4)
    return value if vector == VECTOR else builder.fpext(value, VECTOR)


@intrinsic
def read_change(typingctx, weights, inverse, along, common, n, single_root, change, total):
    """Write e[h, m] = weights[h, m] · inverse[m] · (along[h, m + 1] − common[m]), and its sums.

    e[h, m] is written to change[h − 1, m], or to change[n, m] for the root h = 0. total[m] = Σ_h
    e[h, m], which leaves out the root if there is a single root. ``along`` is not read at arcs of
    weight 0. n is at least LANES, and along is float32 or float64.
    """
    number = types.int64
    signature = types.none(weights, inverse, along, common, number, number, change, total)

    def generate(context, builder, signature, arguments):
        given, factors, upstream, shared, n, single_root, target, sums = read_arguments(
            context, builder, signature, arguments
        )
        number, kind, zero = n.type, signature.args[2], constant(0.0)
        total = cgutils.alloca_once(builder, VECTOR)
        with in_blocks(builder, number(0), n) as j:
            factor, shift = (
                builder.load(vector_from(builder, array.data, j), align=8)
                for array in (factors, shared)
            )

            def work(h: Any, row: Any) -> Any:
                weight = _get(builder, MATRIX, given, h, j)
                moved = _get(builder, kind, upstream, h, builder.add(j, number(1)))
                value = builder.fmul(builder.fmul(weight, factor), builder.fsub(moved, shift))
                value = builder.select(builder.fcmp_ordered(">", weight, zero), value, zero)
                builder.store(value, vector_in(builder, target, row, j), align=8)
                return value

            first = work(number(0), n)
            counted = builder.icmp_signed("==", single_root, number(0))
            builder.store(builder.select(counted, first, zero), total)
            with cgutils.for_range(builder, n) as loop:
                value = work(builder.add(loop.index, number(1)), loop.index)
                builder.store(builder.fadd(builder.load(total), value), total)
            builder.store(builder.load(total), vector_from(builder, sums.data, j), align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def write_change(
    typingctx, weights, escapes, inverse, along, common, best, left, both, diagonal,
    n, single_root, total, out,
):  # fmt: skip
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

    def generate(context, builder, signature, arguments):
        values = read_arguments(context, builder, signature, arguments)
        given, chances, factors, upstream, shared, skipped, before, after, corners = values[:9]
        n, single_root, sums, target = values[9:]
        number, zero, ones = n.type, constant(0.0), constant(1.0)
        total = cgutils.alloca_once(builder, VECTOR)
        with in_blocks(builder, number(0), n) as j:
            factor, shift, where, corner = (
                builder.load(vector_from(builder, array.data, j), align=8)
                for array in (factors, shared, skipped, corners)
            )

            def work(h: Any, chance: Any, moved: Any) -> None:
                weight = _get(builder, MATRIX, given, h, j)
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
                value = _get(builder, MATRIX, before, loop.index, j)
                builder.store(builder.fadd(builder.load(total), value), total)
            counted = builder.icmp_signed("==", single_root, number(0))
            moved = builder.fsub(builder.load(total), builder.select(counted, corner, zero))
            builder.store(zero, total)
            work(number(0), ones, moved)
            with cgutils.for_range(builder, n) as loop:
                moved = builder.fsub(_get(builder, MATRIX, after, loop.index, j), corner)
                chance = _get(builder, MATRIX, chances, loop.index, j)
                work(builder.add(loop.index, number(1)), chance, moved)
            builder.store(builder.load(total), vector_from(builder, sums.data, j), align=8)
        return context.get_dummy_value()

    return signature, generate
