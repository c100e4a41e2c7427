"""Scores of pairs of positions from running sums: the kernels against tensors of all pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, library

from spacy_latent.kernels.scores import counter_pairs as kernels
from spacy_latent.kernels.scores import counter_rows
from spacy_latent.kernels.scores.counter_pairs import counter_pairs, pairs_by_tensors

UNITS = 5


def make(
    lengths: list[int], count: int, orders: int, padding: float, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    torch.manual_seed(len(lengths))
    batch, size = len(lengths), max(lengths, default=0) + 1
    values, heads, modifiers = (
        torch.randn(batch, size, width, dtype=dtype) for width in (count, UNITS, UNITS)
    )
    for b, n in enumerate(lengths):
        for item in (values, heads, modifiers):
            item[b, n:] = padding
    first = torch.randn(8 * count + 2, orders * UNITS, dtype=dtype)
    hidden, output = torch.randn(UNITS, UNITS, dtype=dtype), torch.randn(UNITS, dtype=dtype)
    return [
        values,
        torch.tensor(lengths, dtype=torch.int64),
        first,
        hidden,
        heads,
        modifiers,
        output,
    ]


def scores_and_gradients(score, given: list[Tensor], inner: bool = False) -> list[Tensor]:
    inputs = [item.clone().requires_grad_() for item in given if item.is_floating_point()]
    scores = score(inputs[0], given[1], *inputs[1:], inner)
    weights = torch.arange(scores.numel(), dtype=scores.dtype).view_as(scores).cos()
    return [scores, *torch.autograd.grad((scores * weights).sum(), inputs)]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([1, 7, 2048]),
    st.booleans(),
)
def test_equals_tensors_of_all_pairs(
    lengths: list[int], count: int, orders: int, pairs: int, inner: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter_rows, "PAIRS", pairs)
        found = scores_and_gradients(counter_pairs, make(lengths, count, orders, torch.nan), inner)
    expected = scores_and_gradients(pairs_by_tensors, make(lengths, count, orders, 0.0), inner)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("orders, inner", [(1, True), (2, False)])
def test_in_single_precision(orders: int, inner: bool) -> None:
    given = make([30, 3, 17], 4, orders, torch.nan, torch.float32)
    found = scores_and_gradients(counter_pairs, given, inner)
    double = [item.double() if item.is_floating_point() else item for item in given]
    for one, other in zip(found, scores_and_gradients(counter_pairs, double, inner), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inner", [True, False])
def test_gradients(inner: bool) -> None:
    given = make([4, 2, 0], 2, 2, 0.0)
    for item in given:
        if item.is_floating_point():
            item.requires_grad_()
    assert torch.autograd.gradcheck(lambda *item: counter_pairs(*item, inner), given)


def test_items_without_a_gradient_are_passed_over() -> None:
    given = make([6, 4, 5], 2, 2, torch.nan)
    change = torch.randn(3, 7, 7, dtype=torch.float64)
    change[1] = 0.0
    found = kernels._counter_pairs_gradient(*given, False, change)
    less = [item[[0, 2]] if item.shape[0] == 3 and item.dim() != 2 else item for item in given]
    others = kernels._counter_pairs_gradient(*less, False, change[[0, 2]])
    for one, other in zip(found, others, strict=True):
        if one.shape[0] == 3:
            assert not one[1].any()
            one = one[[0, 2]]
        torch.testing.assert_close(one, other)


def test_the_gradient_of_equal_extremes_goes_to_the_first() -> None:
    """Saturated counters return to exactly the same number, so equal extremes are common."""
    given = make([4], 1, 1, 0.0)
    given[0][0, :4, 0] = torch.tensor([0.5, 0.0, 0.0, 1.0])
    # The score is the least value minus the value of the first position.
    given[2].zero_()
    given[2][1] = -1.0
    given[3] = torch.eye(UNITS, dtype=torch.float64)
    given[4].zero_()
    given[5].zero_()
    values = given[0].requires_grad_()
    score = counter_pairs(*given)[0, 0, 3]
    (gradient,) = torch.autograd.grad(score, values)
    low, own = gradient[0, 1, 0], gradient[0, 0, 0]
    assert low == -own != 0.0
    assert gradient[0, 2, 0] == gradient[0, 3, 0] == 0.0


def test_threads_change_nothing(
    monkeypatch: pytest.MonkeyPatch, set_threads: Callable[[int], None]
) -> None:
    """Three ranges give the results of one range, and the number of threads changes no bit."""
    given = make([30, 3, 17, 25], 4, 2, torch.nan)
    alone = scores_and_gradients(counter_pairs, given)
    monkeypatch.setattr("spacy_latent.kernels.core.pool.SERIAL_NANOSECONDS", 0)
    monkeypatch.setattr("spacy_latent.kernels.core.pool.RANGE_NANOSECONDS", 1)
    monkeypatch.setattr("spacy_latent.kernels.core.pool.MOST_RANGES", 3)
    spread = []
    for number in (1, 3):
        set_threads(number)
        spread.append(scores_and_gradients(counter_pairs, given))
    for one, other, again in zip(alone, *spread, strict=True):
        torch.testing.assert_close(one, other)
        assert torch.equal(other, again)


def test_threads_do_not_change_the_last_digits_of_scores(
    monkeypatch: pytest.MonkeyPatch, set_threads: Callable[[int], None]
) -> None:
    """The last numbers of a vector may be rounded differently from the numbers before them."""
    monkeypatch.setattr("spacy_latent.kernels.core.pool.SERIAL_NANOSECONDS", 0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        lengths = torch.randint(8, 26, (150,), generator=generator).tolist()
        given, found = make(lengths, 4, 2, 0.0, torch.float32), []
        for count in (1, 2, 3):
            set_threads(count)
            found.append(counter_pairs(*given))
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("orders", [1, 2])
def test_is_a_whole_operator(orders: int) -> None:
    given = make([5, 3, 0], 2, orders, 0.0)
    for item in given:
        if item.is_floating_point():
            item.requires_grad_()
    library.opcheck(kernels._counter_pairs.overload, (*given, False))


def test_nothing_to_score() -> None:
    for lengths in ([], [0], [1, 1]):
        given = make(lengths, 2, 2, torch.nan)
        scores, *gradients = scores_and_gradients(counter_pairs, given)
        assert scores.shape == (len(lengths), *2 * [max(lengths, default=0) + 1])
        assert not scores.any() and not any(item.any() for item in gradients)
