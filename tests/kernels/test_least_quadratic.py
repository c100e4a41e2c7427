from __future__ import annotations

import itertools

import numpy as np

from spacy_latent.kernels.sparsemap.least_quadratic import WORTHLESS, find_least

RIDGE = 1e-10


def least_at_bounds(
    slopes: np.ndarray, matrix: np.ndarray, lowest: np.ndarray, highest: np.ndarray
) -> float:
    """Return the least value, over all choices of a lower bound, an upper bound or neither per
    variable.
    """
    number, least = len(slopes), np.inf
    for places in itertools.product((-1, 0, 1), repeat=number):
        where = np.array(places)
        step = np.where(where < 0, lowest, np.where(where > 0, highest, 0.0))
        if not np.isfinite(step).all():
            continue
        free = where == 0
        rest = -slopes[free] - matrix[np.ix_(free, ~free)] @ step[~free]
        step[free] = np.linalg.solve(matrix[np.ix_(free, free)], rest)
        if (step >= lowest - 1e-9).all() and (step <= highest + 1e-9).all():
            least = min(least, slopes @ step + 0.5 * step @ matrix @ step)
    return least


def test_the_least_against_every_choice_of_bounds() -> None:
    """The value is the least up to the tolerance of the solver, also if variables are dependent."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        number = int(generator.integers(1, 6))
        rows = generator.normal(size=(number, int(generator.integers(1, 7))))
        slopes, matrix = rows @ generator.normal(size=rows.shape[1]), rows @ rows.T
        lowest = -generator.random(number) * generator.integers(0, 2, number)
        highest = np.where(generator.random(number) < 0.7, np.inf, generator.random(number))
        lowest[0] = -np.inf
        whole = matrix + RIDGE * np.eye(number)
        least, step = least_at_bounds(slopes, whole, lowest, highest), np.empty(number)
        find_least(slopes, np.tril(matrix), number, RIDGE, lowest, highest, step)
        assert (step >= lowest).all() and (step <= highest).all()
        left = slopes + whole @ step
        away = np.clip(step - left, lowest, highest) - step
        assert np.abs(away).max() <= WORTHLESS * np.abs(slopes).max() + 1e-5
        value = slopes @ step + 0.5 * step @ whole @ step
        assert least - 1e-6 <= value <= min(0.99 * least, 0.0) + 1e-6


def test_nothing_to_choose() -> None:
    nothing = np.empty(0)
    find_least(nothing, np.empty((0, 0)), 0, RIDGE, nothing, nothing, nothing)
