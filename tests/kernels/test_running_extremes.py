"""Least and greatest values between places, beside slices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_latent.kernels.running_extremes import running_extremes


def by_slices(values, length):
    shape = (values.shape[0], values.shape[0], values.shape[1])
    least, greatest = values.new_zeros(shape), values.new_zeros(shape)
    for i in range(length):
        for j in range(length):
            between = values[min(i, j) : max(i, j) + 1]
            least[i, j], greatest[i, j] = between.amin(0), between.amax(0)
    return least, greatest


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_equals_slices(lengths, channels, double):
    torch.manual_seed(sum(lengths))
    dtype = torch.float64 if double else torch.float32
    values = torch.randn(len(lengths), max(lengths) + 1, channels, dtype=dtype)
    for b, n in enumerate(lengths):
        values[b, n:] = torch.nan
    least, greatest = running_extremes(values, torch.tensor(lengths))
    assert least.dtype == greatest.dtype == dtype
    for b, n in enumerate(lengths):
        expected = by_slices(values[b], n)
        assert torch.equal(least[b], expected[0])
        assert torch.equal(greatest[b], expected[1])


def test_gradients():
    torch.manual_seed(0)
    lengths = torch.tensor([5, 3, 0])
    values = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: running_extremes(v, lengths), values)


def test_equal_extremes_give_the_gradient_to_the_first():
    values = torch.tensor([[[1.0], [0.0], [0.0], [2.0]]], requires_grad=True)
    least, _ = running_extremes(values, torch.tensor([4]))
    (gradient,) = torch.autograd.grad(least[0, 3, 0, 0], values)
    assert gradient.flatten().tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("lengths", [[5, 3, 0], [5, 5, 5]])
def test_is_a_whole_operator(lengths):
    values = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(running_extremes, (values, torch.tensor(lengths)))
