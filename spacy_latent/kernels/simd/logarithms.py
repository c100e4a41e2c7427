"""Sums of logarithms, and a logarithm that vectorises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from spacy_latent.kernels.core.compilation import kernel

# Bits of the mantissa, the bits of √½, and the number of terms of the series that exceed rounding.
FLOAT64, FLOAT32 = (52, 0x3FE6A09E667F3BCD, 11), (23, 0x3F3504F3, 5)


@kernel
def log_add(a, b):
    """Return log(e^a + e^b), and the share of e^b in the sum."""
    if b == -np.inf:
        return a, 0.0
    if a == -np.inf:
        return b, 1.0
    if a >= b:
        ratio = math.exp(b - a)
        return a + math.log1p(ratio), ratio / (1.0 + ratio)
    ratio = math.exp(a - b)
    return b + math.log1p(ratio), 1.0 / (1.0 + ratio)


def logarithm_of(builder: Any, x: Any) -> Any:
    """Return the logarithm of a vector of float32 or float64.

    Numbers must be finite. The result is −∞ for numbers that are not above 0, and a wrong finite
    number for subnormal ones. The error is two units in the last place, or for numbers near 1 two
    units in the last place of 1.

    With x = 2**k · m and √½ ≤ m < √2, log x = k·log 2 + 2·artanh s for s = (m − 1)/(m + 1).
    """
    vector = x.type
    double = vector.element == ir.DoubleType()
    digits, half, terms = FLOAT64 if double else FLOAT32
    integers = ir.VectorType(ir.IntType(64 if double else 32), vector.count)

    def constant(value: float) -> Any:
        return ir.Constant(vector, [value if double else float(np.float32(value))] * vector.count)

    def whole(value: int) -> Any:
        return ir.Constant(integers, [value] * vector.count)

    def multiply_add(a: Any, b: Any, c: Any) -> Any:
        return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    above = builder.sub(builder.bitcast(x, integers), whole(half))
    power = builder.sitofp(builder.ashr(above, whole(digits)), vector)
    m = builder.and_(above, whole((1 << digits) - 1))
    m = builder.bitcast(builder.add(m, whole(half)), vector)
    s = builder.fdiv(builder.fsub(m, constant(1.0)), builder.fadd(m, constant(1.0)))
    square = builder.fmul(s, s)
    p = constant(2.0 / (2 * terms - 1))
    for k in range(terms - 2, -1, -1):
        p = multiply_add(p, square, constant(2.0 / (2 * k + 1)))
    value = multiply_add(power, constant(math.log(2.0)), builder.fmul(p, s))
    positive = builder.fcmp_ordered(">", x, constant(0.0))
    return builder.select(positive, value, constant(-math.inf))
