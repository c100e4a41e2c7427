"""An exponential that vectorises: no call, no table, no branch.

The argument is reduced as in Cody and Waite (1980), and a Taylor polynomial follows. The error is
about one unit in the last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.vector import (
    LANES,
    VECTOR,
    broadcast,
    over_vectors,
    read_arguments,
    vector_from,
    vector_of,
)

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10
# Adding it to a float64 leaves the nearest integer in the lowest bits.
ROUND = 6755399441055744.0
# Below this the result would be subnormal, and 0 is returned.
LOWEST = -708.0
# The same for float32, and the coefficients of a polynomial for 2**x, −.5 ≤ x ≤ .5, without the
# constant 1. Among such polynomials it has the smallest relative error, 1e-7.
ROUND_FLOAT32, LOWEST_FLOAT32 = 12582912.0, -87.0
POWER_OF_TWO = (0.69314698, 0.24022242, 0.055507337, 0.0096715126, 0.0013264727)


@intrinsic
def _bits(typingctx, value):
    """Return the bits of a float64 as int64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _from_bits(typingctx, value):
    """Return the float64 with the bits of an int64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@kernel
def exponential(x):
    """Return exp(x) for float64 x ≤ 709, −inf included.

    It is 0 below −708. NaN is not allowed.
    """
    shifted = x * LOG2_E + ROUND
    power = shifted - ROUND
    r = (x - power * LN2_HIGH) - power * LN2_LOW
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    value = _from_bits(_bits(p) + (_bits(shifted) << 52))
    return value if x >= LOWEST else 0.0


@intrinsic
def _exponentials_of_vectors(typingctx, row, shift, result):
    """Compute :func:`exponentials` for the whole vectors at the start of the row."""
    signature = types.none(row, types.float64, result)

    def generate(context, builder, signature, arguments):
        source, shift, target = read_arguments(context, builder, signature, arguments)
        size, vector = builder.extract_value(source.shape, 0), vector_of(signature.args[0])
        end = builder.sub(size, builder.srem(size, size.type(LANES)))
        shifts = broadcast(builder, shift)
        with over_vectors(builder, size.type(0), end) as index:
            values = builder.load(vector_from(builder, source.data, index, vector), align=4)
            values = exponential_of(builder, builder.fsub(builder.fpext(values, VECTOR), shifts))
            builder.store(values, vector_from(builder, target.data, index), align=8)
        return context.get_dummy_value()

    return signature, generate


def exponential_of(builder: Any, x: Any) -> Any:
    """Return :func:`exponential` of a vector of float64 or float32.

    For float32, x ≤ 88, and the result is 0 below −87. Its relative error is at most 2e-7 + 8e-8 ·
    |x|. NaN gives 0.
    """
    vector = x.type
    double = vector.element == ir.DoubleType()
    integers = ir.VectorType(ir.IntType(64 if double else 32), vector.count)

    def constant(value: float) -> Any:
        return ir.Constant(vector, [value if double else float(np.float32(value))] * vector.count)

    def multiply_add(a: Any, b: Any, c: Any) -> Any:
        return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    shift = constant(ROUND if double else ROUND_FLOAT32)
    shifted = multiply_add(x, constant(LOG2_E), shift)
    power = builder.fsub(shifted, shift)
    if double:
        r = multiply_add(power, constant(-LN2_HIGH), x)
        r = multiply_add(power, constant(-LN2_LOW), r)
        coefficients = [1.0 / math.factorial(degree) for degree in range(14)]
    else:
        r = builder.fmul(x, constant(LOG2_E), flags=("contract",))
        r = builder.fsub(r, power, flags=("contract",))
        coefficients = [1.0, *POWER_OF_TWO]
    p = constant(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        p = multiply_add(p, r, constant(coefficient))
    digits = ir.Constant(integers, [52 if double else 23] * vector.count)
    exponents = builder.shl(builder.bitcast(shifted, integers), digits)
    value = builder.bitcast(builder.add(builder.bitcast(p, integers), exponents), vector)
    above = builder.fcmp_ordered(">=", x, constant(LOWEST if double else LOWEST_FLOAT32))
    return builder.select(above, value, constant(0.0))


@kernel
def exponentials(row, shift, result):
    """Write exp(row − shift) of a contiguous row of float32 or float64 to a row of float64.

    The range is that of :func:`exponential`. numba's own loops use vectors of half the width.
    """
    _exponentials_of_vectors(row, shift, result)
    for j in range(len(row) // LANES * LANES, len(row)):
        result[j] = exponential(np.float64(row[j]) - shift)
