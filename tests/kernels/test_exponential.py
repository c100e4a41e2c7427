"""The vectorised exponential beside NumPy's."""

from __future__ import annotations

import numpy as np
from numba import njit

from spacy_latent.kernels.exponential import exponential


@njit
def _each(values: np.ndarray, result: np.ndarray) -> None:
    for i in range(len(values)):
        result[i] = exponential(values[i])


def test_exponential_is_right_to_the_last_digits() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(-700, 700, 10_000), rng.normal(0, 1, 10_000)])
    result = np.empty_like(values)
    _each(values, result)
    np.testing.assert_allclose(result, np.exp(values), rtol=5e-16, atol=0)


def test_exponential_at_its_ends() -> None:
    values = np.array([0.0, -0.0, -np.inf, -708.5, -1e300, -1e-320, 709.0])
    result = np.empty_like(values)
    _each(values, result)
    assert result[:6].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    np.testing.assert_allclose(result[6], np.exp(709.0), rtol=5e-16)
