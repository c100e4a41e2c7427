"""Products of matrix tiles that are kept in registers, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from spacy_latent.kernels.arborescences.block_products import (
    COLUMN,
    GIVEN,
    NOTHING,
    product,
    turned_product,
)
from spacy_latent.kernels.simd.vector import LANES


@pytest.mark.parametrize("start", [GIVEN, NOTHING, COLUMN])
@pytest.mark.parametrize("n", [0, 1, 4, 7, 20])
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 6])
def test_products_by_tiles(vectors: int, n: int, start: int) -> None:
    random = np.random.default_rng(9)
    rows, columns, size = 2 * LANES, vectors * LANES, 8 * LANES
    a, b, c = random.normal(size=(3, size, size))
    for turned in (False, True):
        left = a.T if turned else a
        expected = c.copy()
        begin = {
            GIVEN: c[1 : 1 + rows, 2 : 2 + columns],
            NOTHING: 0.0,
            COLUMN: left[3 : 3 + rows, 4 + n, None],
        }[start]
        expected[1 : 1 + rows, 2 : 2 + columns] = begin + (
            left[3 : 3 + rows, 4 : 4 + n] @ b[5 : 5 + n, 6 : 6 + columns]
        )
        result = c.copy()
        multiply = turned_product if turned else product
        multiply(start, a, (3, 4), b, (5, 6), result, (1, 2), rows, n, columns)
        # Entries outside of the tile stay unchanged.
        np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [1, 7, 8])
def test_the_result_may_be_a_factor(n: int) -> None:
    a, b = np.random.default_rng(10).normal(size=(2, LANES, 3 * LANES))
    result = b.copy()
    product(NOTHING, a, (0, 0), result, (0, 0), result, (0, 0), LANES, n, 3 * LANES)
    np.testing.assert_allclose(result, a[:, :n] @ b[:n], rtol=1e-13, atol=1e-13)
