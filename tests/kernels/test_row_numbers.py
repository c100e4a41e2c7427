from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.row_numbers import (
    Join,
    Maxima,
    Sums,
    Tangents,
    marginal,
    pulls_of,
    pushes_of,
    read,
    times_weight,
)

SPAN, LONGER, FOLLOWING = range(3)
GRADIENT = 3
JOINS = [Join(LONGER, SPAN, FOLLOWING)]
_push = pushes_of(JOINS)
_pull = pulls_of(JOINS, {chart: GRADIENT + chart for chart in range(3)})
# Two rows of a chart. The range of the loop ends inside of its second vector.
ROW, FOLLOWS, AT, BEGIN, END = 1, 2, 3, 8, 18


@kernel
def _pushed(number):
    total = read(number, SPAN, ROW, AT)
    _push(number, ROW, AT, (FOLLOWS,), (total,), BEGIN, END)


@kernel
def _pulled(number):
    (total,) = _pull(number, ROW, AT, (FOLLOWS,), BEGIN, END)
    return total


@kernel
def _products(number):
    total = read(number, SPAN, ROW, AT)
    weighted = times_weight(number, total, SPAN, ROW, AT, 0, 2)
    return weighted, marginal(number, total, SPAN, FOLLOWING, ROW, AT)


def numbers() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    shapes = (3, 5), (3, 5), (2 * GRADIENT, 4, 24), (2 * GRADIENT, 4, 24)
    return tuple(random.normal(size=shape) for shape in shapes)


@pytest.mark.parametrize("best", [False, True])
def test_a_span_goes_into_all_longer_ones(best: bool) -> None:
    weights, _, charts, _ = numbers()
    span, following, expected = charts[SPAN, ROW, AT], charts[FOLLOWING, FOLLOWS], charts.copy()
    inner = slice(BEGIN, 24)
    if best:
        rows = expected[LONGER, ROW, inner], span + following[inner]
        expected[LONGER, ROW, inner] = np.maximum(*rows)
        _pushed(Maxima(weights, charts))
    else:
        expected[LONGER, ROW, inner] += span * following[inner]
        _pushed(Sums(weights, charts, 0.0))
    np.testing.assert_allclose(charts, expected)


def test_gradients_go_back_to_what_was_joined() -> None:
    weights, _, charts, _ = numbers()
    expected, inner = charts.copy(), slice(BEGIN, 24)
    given = charts[GRADIENT + LONGER, ROW, inner]
    total = given @ charts[FOLLOWING, FOLLOWS, inner]
    expected[GRADIENT + FOLLOWING, FOLLOWS, inner] += charts[SPAN, ROW, AT] * given
    assert _pulled(Sums(weights, charts, 0.0)) == pytest.approx(total)
    np.testing.assert_allclose(charts, expected)


@pytest.mark.parametrize("operation", [_pushed, _pulled, _products])
def test_derivatives_are_those_of_sums(operation: Any) -> None:
    weights, d_weights, charts, change = numbers()
    sides = []
    for step in (0.5, -0.5):
        moved = charts + step * change
        results = operation(Sums(weights + step * d_weights, moved, 0.0))
        sides.append((np.array(results, dtype=float), moved))
    # The central difference of a product of two numbers is its exact derivative.
    derivative = operation(Tangents(weights, d_weights, charts.copy(), change))
    for (found, other), mine in zip(zip(*sides), (np.array(derivative, dtype=float), change)):
        np.testing.assert_allclose(mine, found - other, rtol=1e-10, atol=1e-10)
