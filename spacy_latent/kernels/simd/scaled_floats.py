"""Sums of products in scaled floats: rows of numbers mantissa · 2^exponent.

They serve sentences whose sums do not fit in float64, without logarithms. Mantissa and exponent are
float64 arrays; the exponent is an integer, and EMPTY for the number 0. A tangent has the exponent
of its number.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.core.compilation import ANY_ORDER, FUSED, kernel
from spacy_latent.kernels.simd.exponential import (
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    ROUND,
    _bits,
    _from_bits,
)

EMPTY = -1e300
LN2 = math.log(2.0)


@kernel
def power(x):
    """Return 2^x for integer x ≤ 1023; 0 below −1022."""
    x = x if x > -1023.0 else -1023.0
    return _from_bits(_bits(1.0) + (_bits(x + ROUND) << 52))


@kernel
def split(x):
    """Return mantissa and exponent of exp(x) for x < +inf."""
    if x == -np.inf:
        return 0.0, EMPTY
    exponent = np.floor(x * LOG2_E + 0.5)
    rest = (x - exponent * LN2_HIGH) - exponent * LN2_LOW
    # If x is so large that its last digit is above 1, the remainder has no correct digit.
    return math.exp(min(max(rest, -1.0), 1.0)), exponent


@kernel
def normalised(value, exponent):
    """Return the factor that scales a value ≥ 0 into [1/2, 1), and the new exponent."""
    if not value > 0.0:
        return 1.0, EMPTY
    shift = float(math.frexp(value)[1])
    return power(-shift), exponent + shift


@kernel(fastmath=FUSED)
def push(target, target_exponents, row, exponents, scalar, exponent, size):
    """Add scalar · row[j] to target[j] for j < size."""
    for j in range(size):
        old, other = target_exponents[j], exponent + exponents[j]
        new = other if other > old else old
        target[j] = target[j] * power(old - new) + scalar * row[j] * power(other - new)
        target_exponents[j] = new


@kernel(fastmath=FUSED)
def push_tangent(
    target, dtarget, target_exponents, row, drow, exponents, scalar, dscalar, exponent, size
):
    """Run :func:`push` and its tangent."""
    for j in range(size):
        old, other = target_exponents[j], exponent + exponents[j]
        new = other if other > old else old
        kept, added = power(old - new), power(other - new)
        target[j] = target[j] * kept + scalar * row[j] * added
        dtarget[j] = dtarget[j] * kept + (dscalar * row[j] + scalar * drow[j]) * added
        target_exponents[j] = new


@kernel(fastmath=ANY_ORDER)
def pull(outer, target_exponents, row, outer_row, exponents, scalar, exponent, size):
    """Run the adjoint of :func:`push`.

    The adjoint of the row is added to ``outer_row``. The adjoint of a number with exponent e has
    the exponent −e.

    Args:
        outer: the adjoint of the target.

    Returns:
        The adjoint of the scalar.
    """
    total = 0.0
    for j in range(size):
        given = outer[j] * power(exponent + exponents[j] - target_exponents[j])
        total += given * row[j]
        outer_row[j] += given * scalar
    return total


@kernel(fastmath=ANY_ORDER)
def pull_tangent(
    outer,
    douter,
    target_exponents,
    row,
    drow,
    outer_row,
    douter_row,
    exponents,
    scalar,
    dscalar,
    exponent,
    size,
):
    """Run :func:`pull` and its tangent."""
    total, dtotal = 0.0, 0.0
    for j in range(size):
        factor = power(exponent + exponents[j] - target_exponents[j])
        given, dgiven = outer[j] * factor, douter[j] * factor
        total += given * row[j]
        dtotal += dgiven * row[j] + given * drow[j]
        outer_row[j] += given * scalar
        douter_row[j] += dgiven * scalar + given * dscalar
    return total, dtotal
