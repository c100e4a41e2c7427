"""Fused loops beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from spacy_latent.kernels.vector import LANES, fused_loop

_sums = fused_loop(
    [("add", 0, ((0, 2), (1, 3))), ("dot", 0, ((2, 3), (3, 3))), ("add", 1, ((1, 2),))]
)
_maxima = fused_loop([("max", 0, ((0, 1),))])


@njit
def _run_sums(a, b, c, d, s, t, begin, end):
    return _sums((a, b, c, d), (s, t), begin, end)


@njit
def _run_maxima(a, b, s, begin, end):
    return _maxima((a, b), (s,), begin, end)


@pytest.mark.parametrize("begin, end", [(0, 24), (0, 8), (8, 19), (3, 11), (5, 5), (0, 1)])
def test_loops_do_what_their_statements_say(begin: int, end: int) -> None:
    rng = np.random.default_rng(0)
    a, b, c, d = rng.normal(size=(4, 32))
    # Whole vectors from the beginning on.
    stop = begin + -(-(end - begin) // LANES) * LANES
    worked = slice(begin, stop)
    first, second = a.copy(), b.copy()
    first[worked] += 2.0 * c[worked] - 3.0 * d[worked]
    second[worked] += -3.0 * c[worked]
    dot = (c[worked] * d[worked]).sum() + (d[worked] ** 2).sum()
    results = _run_sums(a, b, c, d, 2.0, -3.0, begin, end)
    np.testing.assert_allclose(a, first, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(b, second, rtol=1e-12, atol=1e-12)
    assert results == pytest.approx((0.0, dot))


def test_maxima_keep_minus_infinity() -> None:
    a, b = np.full(16, -np.inf), np.full(16, -np.inf)
    a[3], b[3], b[9] = 1.0, 5.0, 2.0
    assert _run_maxima(a, b, -1.0, 0, 16) == (0.0,)
    expected = np.full(16, -np.inf)
    expected[3], expected[9] = 4.0, 1.0
    np.testing.assert_array_equal(a, expected)
