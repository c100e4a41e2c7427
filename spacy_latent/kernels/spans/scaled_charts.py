"""Charts of scaled floats, for sums over trees that leave the range of float64.

See kernels.simd.scaled_floats. A *cell* [chart, i, k] is the entry of a chart for a span. All sums
have tangents. Sums alone would be faster, but few sentences need them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.core.compilation import ANY_ORDER, FUSED, kernel
from spacy_latent.kernels.core.draws import uniform_of_splitmix
from spacy_latent.kernels.simd.scaled_floats import EMPTY, normalised, power, split


class ScaledCharts(NamedTuple):
    """Charts of numbers, ``(count, rows, columns)``.

    Attributes:
        values, powers: mantissas and exponents.
        tangents: tangents of the mantissas.
        outer, d_outer: adjoints and their tangents. Their exponents are the negated ``powers``.
    """

    values: np.ndarray
    powers: np.ndarray
    tangents: np.ndarray
    outer: np.ndarray
    d_outer: np.ndarray


class ScaledWeights(NamedTuple):
    """Weights exp(score), and the tangents of the scores, 0 for a weight of 0."""

    values: np.ndarray
    powers: np.ndarray
    tangents: np.ndarray


@kernel
def scaled_charts(count, rows, columns):
    """Return charts of zeros."""
    shape = (count, rows, columns)
    values, tangents = np.zeros(shape), np.zeros(shape)
    return ScaledCharts(
        values, np.full(shape, EMPTY), tangents, np.zeros_like(values), np.zeros_like(tangents)
    )


@kernel
def scaled_weights(scores, size, along):
    """Return the weights of the first ``size`` rows and columns.

    ``along`` are the tangents of the scores, empty if they are 0.
    """
    shape = (size, size)
    weights = ScaledWeights(np.empty(shape), np.empty(shape), np.zeros(shape))
    for i in range(size):
        for k in range(size):
            weights.values[i, k], weights.powers[i, k] = split(scores[i, k])
            if len(along) > 0 and scores[i, k] > -np.inf:
                weights.tangents[i, k] = along[i, k]
    return weights


@kernel
def cell_of(chart, i, k):
    """Return a cell. numba compiles functions again for tuples with literals, such as a chart."""
    return chart, i, k


@kernel
def set_one(charts, chart, i):
    """Write 1 to the cell of a single token."""
    charts.values[chart, i, i], charts.powers[chart, i, i] = 1.0, 0.0


@kernel
def normalise(charts, chart, i, k):
    """Scale the mantissa of a cell into [1/2, 1)."""
    place = chart, i, k
    factor, charts.powers[place] = normalised(charts.values[place], charts.powers[place])
    charts.values[place] *= factor
    charts.tangents[place] *= factor


@kernel
def weigh(charts, to, by, weights, h, m):
    """Write the product of the cell ``by`` and the weight [h, m] to the cell ``to``."""
    value, weight, along = charts.values[by], weights.values[h, m], weights.tangents[h, m]
    charts.values[to] = value * weight
    charts.powers[to] = charts.powers[by] + weights.powers[h, m]
    charts.tangents[to] = (charts.tangents[by] + value * along) * weight


@kernel
def weigh_back(charts, to, by, weights, h, m, marginals, products):
    """Run the adjoint of :func:`weigh`, and write the marginal of the weight and its tangent."""
    outer, d_outer = charts.outer[to], charts.d_outer[to]
    weight, along = weights.values[h, m], weights.tangents[h, m]
    charts.outer[by] += outer * weight
    charts.d_outer[by] += (d_outer + outer * along) * weight
    marginals[h, m] = outer * charts.values[to]
    products[h, m] = d_outer * charts.values[to] + outer * charts.tangents[to]


@kernel(fastmath=FUSED)
def push_row(charts, to, i, row, k, cell, begin, end):
    """Add row k of the chart ``row`` times a cell to row i of ``to``, from ``begin`` to ``end``."""
    target, d_target, powers = charts.values[to, i], charts.tangents[to, i], charts.powers[to, i]
    source, d_source = charts.values[row, k], charts.tangents[row, k]
    factor, d_factor = charts.values[cell], charts.tangents[cell]
    exponents, exponent = charts.powers[row, k], charts.powers[cell]
    for j in range(begin, end):
        old, other = powers[j], exponent + exponents[j]
        new = other if other > old else old
        kept, added = power(old - new), power(other - new)
        target[j] = target[j] * kept + factor * source[j] * added
        d_target[j] = d_target[j] * kept + (d_factor * source[j] + factor * d_source[j]) * added
        powers[j] = new


@kernel(fastmath=ANY_ORDER)
def pull_row(charts, to, i, row, k, cell, begin, end):
    """Run the adjoint of :func:`push_row`."""
    outer, d_outer, powers = charts.outer[to, i], charts.d_outer[to, i], charts.powers[to, i]
    source, d_source = charts.values[row, k], charts.tangents[row, k]
    of_source, d_of_source = charts.outer[row, k], charts.d_outer[row, k]
    factor, d_factor = charts.values[cell], charts.tangents[cell]
    exponents, exponent = charts.powers[row, k], charts.powers[cell]
    total, d_total = 0.0, 0.0
    for j in range(begin, end):
        scale = power(exponent + exponents[j] - powers[j])
        given, d_given = outer[j] * scale, d_outer[j] * scale
        total += given * source[j]
        d_total += d_given * source[j] + given * d_source[j]
        of_source[j] += given * factor
        d_of_source[j] += d_given * factor + given * d_factor
    charts.outer[cell] += total
    charts.d_outer[cell] += d_total


@kernel
def start_outside(charts, cell):
    """Write the adjoint of the logarithm of a cell, and its tangent."""
    value = charts.values[cell]
    charts.outer[cell], charts.d_outer[cell] = 1.0 / value, -charts.tangents[cell] / value**2


@kernel
def draw_split(charts, powers, left, right, low, high, terms, state):
    """Draw k ≥ low and < high, with a probability proportional to the product of two cells.

    Args:
        powers: exponents of the charts, or an empty array for charts of plain numbers.
        left: (chart, i), the cells [i, k].
        right: (chart, shift, j), the cells [k + shift, j].
    """
    (of_left, i), (of_right, shift, j), top, total = left, right, EMPTY, 0.0
    for k in range(low, high):
        terms[k] = charts[of_left, i, k] * charts[of_right, k + shift, j]
    if len(powers) > 0:
        for k in range(low, high):
            top = max(top, powers[of_left, i, k] + powers[of_right, k + shift, j])
        for k in range(low, high):
            terms[k] *= power(powers[of_left, i, k] + powers[of_right, k + shift, j] - top)
    for k in range(low, high):
        total += terms[k]
    rest, chosen = uniform_of_splitmix(state) * total, low
    for k in range(low, high):
        if terms[k] > 0.0:
            chosen = k
            rest -= terms[k]
            if rest < 0.0:
                break
    return chosen
