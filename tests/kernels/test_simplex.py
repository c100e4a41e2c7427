from __future__ import annotations

import numpy as np
import pytest
import torch

from spacy_latent.kernels.choices.simplex import sparsemax


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numbers_as_large_as_the_threshold(dtype: type[np.floating]) -> None:
    """Rounding says now that such a number lies above the threshold, now that it does not: the
    search for it ends all the same."""
    generator = np.random.default_rng(0)
    rows = np.full((3000, 12), -2.0, dtype=dtype)
    for row in rows:
        row[0] = 0.0
        row[1:7] = -0.6 * generator.random(6)
        ordered = np.sort(row[:7])[::-1]
        thresholds = (ordered.cumsum() - 1.0) / np.arange(1, 8)
        threshold = dtype(thresholds[ordered > thresholds][-1])
        towards = generator.choice([-10.0, threshold, 10.0])
        row[7 : generator.integers(8, 12)] = np.nextafter(threshold, dtype(towards))
    lengths = torch.full((len(rows),), 12)
    found = sparsemax(torch.from_numpy(rows), lengths, "test").numpy()
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)
    # The nearest point of the simplex is scores less a number, or 0 where that is below.
    less = (rows - found).max(1, keepdims=True, initial=-np.inf, where=found > 1e-6)
    np.testing.assert_allclose(found, np.maximum(rows - less, 0.0), atol=1e-6)
