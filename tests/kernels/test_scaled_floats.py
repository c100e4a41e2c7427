from __future__ import annotations

import math

import numpy as np
import pytest

from spacy_latent.kernels.simd.scaled_floats import EMPTY, normalised, power, split
from spacy_latent.kernels.spans.scaled_charts import (
    draw_split,
    pull_row,
    push_row,
    scaled_charts,
)


@pytest.mark.parametrize("x", [-1e30, -5000.0, -1.5, 0.0, 3.25, 700.0, 5000.0])
def test_a_logarithm_and_its_number(x: float) -> None:
    mantissa, exponent = split(x)
    assert 0.3 < mantissa < 3.0 and exponent == round(exponent)
    assert math.log(mantissa) + exponent * math.log(2.0) == pytest.approx(x, rel=1e-14, abs=1e-15)


def test_zero_stays_zero() -> None:
    assert split(-np.inf) == (0.0, EMPTY)
    assert normalised(0.0, 17.0) == (1.0, EMPTY)
    assert power(-2000.0) == 0.0 and power(-1022.0) == 2.0**-1022 and power(3.0) == 8.0
    charts = scaled_charts(2, 1, 3)
    push_row(charts, 0, 0, 1, 0, (1, 0, 0), 0, 3)
    assert not charts.values.any()


@pytest.mark.parametrize("shift", [-40_000.0, 0.0, 40_000.0])
def test_sums_and_their_adjoints_at_any_size(shift: float) -> None:
    random, numbers = np.random.default_rng(0), 9
    target, row, cell = (0, 0), (1, 0), (2, 0, 0)
    charts = scaled_charts(3, 1, numbers)
    charts.values[:] = random.uniform(0.5, 1.0, size=charts.values.shape)
    charts.tangents[:] = random.normal(size=charts.values.shape)
    charts.powers[:] = random.integers(-3, 4, size=charts.values.shape)
    plain, d_plain = charts.values * 2.0**charts.powers, charts.tangents * 2.0**charts.powers
    charts.powers[target] += shift
    charts.powers[cell] += shift
    push_row(charts, *target, *row, cell, 0, numbers)
    expected = plain[target] + plain[row] * plain[cell]
    changed = d_plain[target] + d_plain[row] * plain[cell] + plain[row] * d_plain[cell]
    scales = 2.0 ** (charts.powers[target] - shift)
    np.testing.assert_allclose(charts.values[target] * scales, expected, rtol=1e-14)
    np.testing.assert_allclose(charts.tangents[target] * scales, changed, rtol=1e-13)
    # The adjoint of x = mantissa · 2^e is stored as its product with 2^e.
    charts.outer[target], charts.d_outer[target] = random.normal(size=(2, numbers))
    pull_row(charts, *target, *row, cell, 0, numbers)
    outer, d_outer = charts.outer[target] / scales, charts.d_outer[target] / scales
    given = charts.outer[row] / 2.0 ** charts.powers[row]
    d_given = charts.d_outer[row] / 2.0 ** charts.powers[row]
    np.testing.assert_allclose(given, outer * plain[cell], rtol=1e-14)
    expected = d_outer * plain[cell] + outer * d_plain[cell]
    np.testing.assert_allclose(d_given, expected, rtol=1e-13, atol=1e-14)
    factor = 2.0 ** (charts.powers[cell] - shift)
    assert charts.outer[cell] / factor == pytest.approx((outer * plain[row]).sum(), rel=1e-13)
    expected = (d_outer * plain[row] + outer * d_plain[row]).sum()
    assert charts.d_outer[cell] / factor == pytest.approx(expected, rel=1e-13)


def test_splits_are_drawn_by_their_products_at_any_size() -> None:
    charts = scaled_charts(2, 5, 4)
    charts.values[0, 0], charts.values[1, 1:5, 2] = 0.5, (1.0, 1.0, 0.75, 0.0)
    charts.powers[0, 0], charts.powers[1, 1:5, 2] = 40_000.0, (-5.0, -4.0, -3.0, EMPTY)
    state, terms = np.array([7], dtype=np.uint64), np.empty(4)
    counts = np.zeros(4)
    for _ in range(6000):
        split_at = draw_split(charts.values, charts.powers, (0, 0), (1, 1, 2), 0, 4, terms, state)
        counts[split_at] += 1
    np.testing.assert_allclose(counts / 6000, [1 / 6, 1 / 3, 1 / 2, 0.0], atol=0.02)
    assert counts[3] == 0
