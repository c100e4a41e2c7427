from __future__ import annotations

import math

import numpy as np
import pytest

from spacy_latent.kernels.simd.scaled_floats import EMPTY, normalised, power, pull, push, split


@pytest.mark.parametrize("x", [-1e30, -5000.0, -1.5, 0.0, 3.25, 700.0, 5000.0])
def test_a_logarithm_and_its_number(x: float) -> None:
    mantissa, exponent = split(x)
    assert 0.3 < mantissa < 3.0 and exponent == round(exponent)
    assert math.log(mantissa) + exponent * math.log(2.0) == pytest.approx(x, rel=1e-14, abs=1e-15)


def test_zero_stays_zero() -> None:
    assert split(-np.inf) == (0.0, EMPTY)
    assert normalised(0.0, 17.0) == (1.0, EMPTY)
    assert power(-2000.0) == 0.0 and power(-1022.0) == 2.0**-1022 and power(3.0) == 8.0
    target, exponents = np.zeros(3), np.full(3, EMPTY)
    push(target, exponents, np.zeros(3), np.full(3, EMPTY), 1.0, 5.0, 3)
    assert not target.any()


@pytest.mark.parametrize("shift", [-40_000.0, 0.0, 40_000.0])
def test_sums_and_their_adjoints_at_any_size(shift: float) -> None:
    random = np.random.default_rng(0)
    target, row, outer = random.uniform(0.5, 1.0, size=(3, 9))
    of_target, of_row = random.integers(-3, 4, size=(2, 9)).astype(float)
    expected = target * 2.0**of_target + 0.7 * row * 2.0 ** (of_row + 2.0)
    sums, exponents = target.copy(), of_target + shift
    push(sums, exponents, row, of_row, 0.7, 2.0 + shift, 9)
    np.testing.assert_allclose(sums * 2.0 ** (exponents - shift), expected, rtol=1e-14)
    # The adjoint of x = mantissa · 2^e is kept as its product with 2^e.
    given = np.zeros(9)
    total = pull(outer, exponents, row, given, of_row, 0.7, 2.0 + shift, 9)
    factors = 2.0 ** (2.0 + of_row + shift - exponents)
    assert total == pytest.approx((outer * factors * row).sum(), rel=1e-14)
    np.testing.assert_allclose(given, outer * factors * 0.7, rtol=1e-14)
