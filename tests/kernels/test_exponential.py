"""The vectorized exponential and logarithm, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.extending import intrinsic

from spacy_latent.kernels.simd.exponential import exponential, exponential_of
from spacy_latent.kernels.simd.logarithms import logarithm_of
from spacy_latent.kernels.simd.vector import line_of


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


def _of_a_line(build: Any) -> Any:
    """Return a function that applies ``build`` to the first cache line of one row, and writes to
    another.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = line_of(signature.args[0])
        places = [
            builder.bitcast(context.make_array(kind)(context, builder, value).data, pointer)
            for kind, value in zip(signature.args, arguments)
            for pointer in [vector.as_pointer()]
        ]
        found = build(builder, builder.load(places[0], align=4))
        builder.store(found, places[1], align=4)
        return context.get_dummy_value()

    return intrinsic(lambda typingctx, row, result: (types.none(row, result), generate))


exponential_line, logarithm_line = _of_a_line(exponential_of), _of_a_line(logarithm_of)


@njit
def _exponentials(values: np.ndarray, result: np.ndarray) -> None:
    for i in range(len(values)):
        exponential_line(values[i], result[i])


@njit
def _logarithms(values: np.ndarray, result: np.ndarray) -> None:
    for i in range(len(values)):
        logarithm_line(values[i], result[i])


def test_exponentials_of_float32() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.uniform(-87, 88, 16_000), rng.normal(0, 1, 16_000)])
    values = values.astype("float32").reshape(-1, 16)
    result = np.empty_like(values)
    _exponentials(values, result)
    expected = np.exp(values.astype("float64"))
    assert (np.abs(result / expected - 1) <= 2e-7 + 8e-8 * np.abs(values)).all()
    ends = np.array([[0.0, -0.0, -np.inf, np.nan, -88.0, -3e38, -1e-40, 88.0] * 2], "float32")
    result = np.empty_like(ends)
    _exponentials(ends, result)
    assert result[0, :7].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithm_is_right_to_the_last_digits(dtype: str) -> None:
    rng = np.random.default_rng(0)
    known = np.finfo(dtype)
    values = np.concatenate([np.exp(rng.uniform(-80, 80, 16_000)), rng.uniform(1, 100, 16_000)])
    values[:7] = [1.0, 2.0, 0.5, np.sqrt(2.0), np.sqrt(0.5), known.tiny, known.max]
    values = values.astype(dtype).reshape(-1, 64 // known.dtype.itemsize)
    result = np.empty_like(values)
    _logarithms(values, result)
    expected = np.log(values.astype("longdouble")).astype("float64")
    np.testing.assert_allclose(result, expected, rtol=2 * known.eps, atol=2 * known.eps)
    assert result[0, 0] == 0.0
    low = np.array([0.0, -0.0, -1.0, -np.inf] * 4, dtype).reshape(-1, values.shape[1])
    _logarithms(low, result)
    assert np.isneginf(result[: len(low)]).all()
