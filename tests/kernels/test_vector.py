from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from spacy_latent.kernels.simd.exponential import exponential, exponentials
from spacy_latent.kernels.simd.vector import (
    LANES,
    add_product,
    best_of_rows,
    best_outside,
    column_maxima,
    count_equal,
    merge_column,
    scan,
    widen,
)


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


@njit(fastmath=False)
def _add(result, i, factors, begin, across, along, rows, k, size):
    add_product(result, i, factors, begin, across, along, rows, k, size)


@pytest.mark.parametrize("turned", [False, True])
def test_groups_of_rows_times_a_corner_of_a_matrix(turned: bool) -> None:
    random = np.random.default_rng(1)
    result, rows, factors = random.normal(size=(3, 12, 16))
    before, size = result.copy(), 9
    corner = factors[2:6, 5:9].T if turned else factors[2:6, 5:9]
    steps = (1, 16) if turned else (16, 1)
    _add(result, 8, factors, 2 * 16 + 5, *steps, rows, 4, size)
    expected = before[8:, :size] + corner @ rows[4:8, :size]
    np.testing.assert_allclose(result[8:, :size], expected, rtol=0.0, atol=1e-13)
    np.testing.assert_array_equal(result[:8], before[:8])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 51])
def test_copies_to_float64_tell_what_is_wrong(size: int, dtype: type) -> None:
    row = np.random.default_rng(2).normal(size=60).astype(dtype)
    row[size] = np.nan
    result = np.full(60, 7.0)
    assert not widen(row, result, size)
    np.testing.assert_array_equal(result[:size], row[:size].astype(np.float64))
    assert (result[size:] == 7.0).all()
    for place in range(size):
        for value, wrong in ((np.inf, True), (np.nan, True), (-np.inf, False)):
            own = row.copy()
            own[place] = value
            assert widen(own, result, size) == wrong


@njit(fastmath=False)
def _best(previous, block, result):
    return best_of_rows(previous, block, result)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 9, 20])
def test_the_best_over_rows_and_what_is_wrong_with_them(size: int, dtype: type) -> None:
    random = np.random.default_rng(3)
    room = random.normal(size=size * size + LANES).astype(dtype)
    block = room[: size * size].reshape(size, size)
    block[random.random((size, size)) < 0.2] = -np.inf
    previous, result = random.normal(size=size), np.empty(size + LANES)
    assert _best(previous, block, result) < np.inf
    expected = (previous[:, None] + block.astype(np.float64)).max(0)
    np.testing.assert_array_equal(result[:size], expected)
    for place in np.ndindex(block.shape):
        for value in (np.inf, np.nan):
            kept, block[place] = block[place], value
            assert not _best(previous, block, result) < np.inf
            block[place] = kept


@njit(fastmath=False)
def _merge(matrix, column, cost, shift, label, size, row, labels):
    merge_column(matrix, column, cost, shift, label, size, row, labels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 20])
def test_a_column_takes_the_places_where_it_is_better(size: int, dtype: type) -> None:
    random = np.random.default_rng(4)
    # Rows are longer than the matrix is wide, and no memory follows the last one.
    wide = np.full((size, size + 3), np.nan, dtype=dtype)
    matrix, row = wide[:, :size], random.normal(size=size + LANES)
    matrix[:] = random.normal(size=(size, size))
    matrix[random.random(matrix.shape) < 0.2] = -np.inf
    labels = np.zeros(size + LANES)
    before = row.copy()
    for column in range(size):
        _merge(wide, column, -0.5, 0.25, float(column + 1), size, row, labels)
    # Each new column subtracts 0.5 from all values before it.
    candidates = np.vstack([before[:size], matrix.T.astype(float) + 0.25])
    candidates -= 0.5 * np.append(size, np.arange(size - 1, -1, -1))[:, None]
    np.testing.assert_allclose(row[:size], candidates.max(0), rtol=1e-13)
    np.testing.assert_array_equal(labels[:size], candidates.argmax(0))
    assert not labels[size:].any()


@njit(fastmath=False)
def _outside(row, owners, owner, begin, end):
    return best_outside(row, owners, owner, begin, end)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 20])
@pytest.mark.parametrize("begin", [0, 1])
def test_the_best_head_is_outside_the_node(size: int, begin: int) -> None:
    random = np.random.default_rng(6)
    for _ in range(20):
        row = np.full(size + 2 * LANES, -np.inf)
        row[:size] = random.integers(-3, 3, size)
        owners = np.full(len(row), -1)
        owners[:size] = random.integers(0, 2, size)
        expected = row[:size].copy()
        expected[begin:][owners[begin:size] == 1] = -np.inf
        found = _outside(row, owners, 1, begin, size)
        np.testing.assert_array_equal(row[:size], expected)
        assert (row[size:] == -np.inf).all()
        if (expected[begin:] == -np.inf).all():
            assert found == begin
        else:
            assert found == begin + expected[begin:].argmax()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 20])
@pytest.mark.parametrize("begin", [0, 1])
def test_the_best_of_each_column_is_off_the_diagonal(size: int, begin: int, dtype: type) -> None:
    random = np.random.default_rng(7)
    matrix = np.full((size, size + 5), np.nan, dtype=dtype)
    matrix[:, :size] = random.normal(size=(size, size)).round(1)
    matrix[random.random(matrix.shape) < 0.3] = -np.inf
    matrix[:, size:] = np.nan
    np.fill_diagonal(matrix, np.nan)
    matrix[:begin] = np.nan
    largest, where = np.empty(size), np.empty(size, dtype=np.int64)
    assert not column_maxima(matrix, begin, size, largest, where)
    known = matrix[:, :size].astype(np.float64)
    known[:begin] = -np.inf
    np.fill_diagonal(known, -np.inf)
    np.testing.assert_array_equal(largest, known.max(0))
    for j in range(size):
        expected = begin if known[:, j].max() == -np.inf else known[:, j].argmax()
        assert where[j] == expected
    for i, j in np.ndindex(size, size):
        for value in (np.inf, np.nan):
            kept, matrix[i, j] = matrix[i, j], value
            assert column_maxima(matrix, begin, size, largest, where) == (i != j and i >= begin)
            matrix[i, j] = kept


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 50])
def test_equal_numbers_are_counted(size: int) -> None:
    random = np.random.default_rng(8)
    first, second = random.integers(0, 3, (2, size + 4)).astype(np.int32)
    assert count_equal(first, second, size) == (first[:size] == second[:size]).sum()
    assert count_equal(first, first, size) == size
