"""An exponential that vectorises: no call, no table, no branch; right to about one unit in the last
place (argument reduction by Cody and Waite 1980, then Taylor's polynomial)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10
# Added to a float64, it leaves the nearest integer in the lowest bits.
ROUND = 6755399441055744.0
# Below it the result would be subnormal; it is 0.
LOWEST = -708.0


@intrinsic
def _bits(typingctx: Any, value: Any) -> Any:
    """The bits of a float64 as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _from_bits(typingctx: Any, value: Any) -> Any:
    """The float64 of an int64's bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@njit(cache=True, nogil=True)
def exponential(x):
    """exp(x) for float64 x ≤ 709, −inf included; 0 below −708. Not for NaN."""
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
