from __future__ import annotations

import numpy as np
import pytest

from spacy_latent.kernels.exponential import exponential, exponentials
from spacy_latent.kernels.vector import scan


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 200])
def test_exponentials_of_rows(size: int, dtype: type) -> None:
    row = np.linspace(-700, 700, size).astype(dtype)
    result = np.empty(size)
    exponentials(row, 3.0, result)
    np.testing.assert_allclose(result, np.exp(row.astype(np.float64) - 3.0), rtol=1e-15)
    np.testing.assert_allclose([exponential(x - 3.0) for x in row.astype(np.float64)], result)
    exponentials(np.full(size, -np.inf, dtype=dtype), 3.0, result)
    assert not result.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 20])
def test_the_largest_of_a_row_and_what_is_wrong_with_it(size: int, dtype: type) -> None:
    row = np.random.default_rng(0).normal(size=size).astype(dtype)
    for place in range(size):
        own = row.copy()
        own[place] = 5.0
        assert scan(own) == (5.0, False)
        own[place] = -np.inf
        assert not scan(own)[1]
        for value in (np.inf, np.nan, -np.nan):
            own[place] = value
            assert scan(own)[1]
    assert scan(np.full(size, -np.inf, dtype=dtype)) == (-np.inf, False)
