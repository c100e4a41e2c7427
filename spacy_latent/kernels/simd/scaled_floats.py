"""Scaled floats: numbers mantissa · 2^exponent.

They serve sentences whose sums do not fit in float64, without logarithms. Mantissa and exponent are
float64; the exponent is an integer, and EMPTY for the number 0.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
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
