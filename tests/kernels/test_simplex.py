from __future__ import annotations

import numpy as np
import pytest
import torch

from spacy_latent.kernels.choices.simplex import capped_simplex, sparsemax


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numbers_as_large_as_the_threshold(dtype: type[np.floating]) -> None:
    """Rounding decides whether such a number is above the threshold. The search still ends."""
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
    # The nearest point of the simplex is the scores minus a number, clipped at 0.
    less = (rows - found).max(1, keepdims=True, initial=-np.inf, where=found > 1e-6)
    np.testing.assert_allclose(found, np.maximum(rows - less, 0.0), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("exactly", [True, False])
def test_numbers_that_rounding_lifts_above_one(dtype: torch.dtype, exactly: bool) -> None:
    """x − (x − 1) may exceed 1, so that x seems to be at its bound at the end of the search."""
    generator = torch.Generator().manual_seed(0)
    rows = 2 * torch.randn(4000, 5, generator=generator, dtype=torch.float64).to(dtype)
    rows[0] = torch.tensor([2.0, -1.99, -2.29, -9.0, -9.0])
    for k in (1, 2, 3):
        found = capped_simplex(rows, torch.full((4000,), 5), k, exactly, "test")
        assert found.min() >= 0 and found.max() <= 1
        total = found.sum(1)
        over = rows.clamp(0, 1).sum(1) > k
        tight = over | exactly
        torch.testing.assert_close(total[tight], torch.full_like(total[tight], k))
        # Optimality conditions of the nearest point p: scores − p is τ if p is inside of its
        # bounds, at most τ if p is 0, and at least τ if p is 1.
        inside = (found > 1e-5) & (found < 1 - 1e-5)
        less = rows - found
        high = less.masked_fill(~inside, -torch.inf).amax(1)
        low = less.masked_fill(~inside, torch.inf).amin(1)
        assert (high - low)[inside.any(1)].max() < 1e-5
        zero, one = found <= 1e-5, found >= 1 - 1e-5
        bound = torch.where(inside.any(1), high, torch.nan)
        assert not (rows.masked_fill(~zero, -torch.inf).amax(1) > bound + 1e-4).any()
        assert not ((rows - 1).masked_fill(~one, torch.inf).amin(1) < bound - 1e-4).any()
