"""Sums over trees whose spans have classes, against torch and lists of all labelled trees."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, library

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.kernels.core.pool import SERIAL_NANOSECONDS
from spacy_latent.kernels.spans import labelled_spans as kernels
from spacy_latent.kernels.spans.labelled_spans import LabelledSpans, log_partition
from spacy_latent.layers.span_features import SpanCells, span_cells
from spacy_latent.structures.constituency_tree import ConstituencyTree
from tests.enumeration import constituency_trees

TREES = ConstituencyTree()


def draw(
    classes: int,
    cells: SpanCells,
    lengths: list[int],
    padding: float = torch.nan,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return scores and lengths. Spans that end in the padding have the score ``padding``."""
    torch.manual_seed(classes + len(cells))
    scores = scale * torch.randn(classes, len(cells), len(lengths), dtype=dtype)
    sizes = torch.tensor(lengths, dtype=torch.int64)
    scores[:, cells.last[:, None] >= sizes] = padding
    return scores, sizes


def by_torch(scores: Tensor, lengths: Tensor, cells: SpanCells) -> Tensor:
    known = torch.where(cells.last[:, None] < lengths, scores.double(), 0.0)
    return TREES.log_partition(cells.chart(known.logsumexp(0)), lengths)


def with_gradient(total: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.arange(1.0, 1.0 + len(total), dtype=total.dtype)
    (gradient,) = torch.autograd.grad(total @ weights, scores)
    return total.detach().double(), gradient.double()


def compare(scores: Tensor, lengths: Tensor, cells: SpanCells, tolerance: float) -> None:
    given = scores.clone().requires_grad_()
    found = with_gradient(log_partition(given, lengths, cells.starts), given)
    # The reference sums the same numbers, in float64.
    exact = scores.double().requires_grad_()
    expected = with_gradient(by_torch(exact, lengths, cells), exact)
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found[1], expected[1], rtol=tolerance, atol=tolerance / 100)
    assert not found[1][:, cells.last[:, None] >= lengths].any()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 7),
    st.lists(st.integers(0, 12), min_size=1, max_size=9),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([(torch.float32, 1e-5), (torch.float64, 1e-10)]),
)
def test_equals_a_sum_over_classes_before_the_chart(
    classes: int, lengths: list[int], bound: int | None, precision: tuple[torch.dtype, float]
) -> None:
    dtype, tolerance = precision
    cells = span_cells(max(1, *lengths, 1), bound)
    compare(*draw(classes, cells, lengths, dtype=dtype), cells, tolerance)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_whole_blocks_of_many_spans(dtype: torch.dtype, tolerance: float) -> None:
    cells = span_cells(30)
    scores, lengths = draw(21, cells, [30, 29, 30, 3, 17, 30, 8, 30, 2], dtype=dtype, scale=3.0)
    compare(scores, lengths, cells, tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_equals_all_trees_with_all_classes(n: int) -> None:
    classes, cells = 3, span_cells(n)
    scores, lengths = draw(classes, cells, [n])
    chart = torch.stack([cells.chart(part)[0] for part in scores])
    totals = []
    for tree in constituency_trees(n):
        spans = np.argwhere(tree).tolist()
        for labels in itertools.product(range(classes), repeat=len(spans)):
            totals.append(sum(chart[c, i, j] for (i, j), c in zip(spans, labels)))
    expected = torch.stack([torch.as_tensor(total) for total in totals]).logsumexp(0)
    found = log_partition(scores, lengths, cells.starts)
    torch.testing.assert_close(found[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lengths", [[4], [3, 4], [4, 1, 0, 4, 2, 3, 4, 4, 4]])
def test_the_gradient_is_that_of_the_sum(lengths: list[int]) -> None:
    cells = span_cells(4)
    scores, sizes = draw(3, cells, lengths, padding=0.0)
    assert torch.autograd.gradcheck(
        lambda leaf: log_partition(leaf, sizes, cells.starts), [scores.requires_grad_()]
    )


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("n, batch", [(3, 1), (5, 2), (9, 8)])
def test_forbidden_and_large_scores(
    n: int, batch: int, dtype: torch.dtype, tolerance: float
) -> None:
    cells = span_cells(n)
    scores, lengths = draw(5, cells, [n] * batch, dtype=dtype, scale=1000.0)
    scores[1] = -torch.inf
    scores[3:, ::2] = -torch.inf
    scores[:, 1, 0] = -torch.inf
    given = scores.clone().requires_grad_()
    found = with_gradient(log_partition(given, lengths, cells.starts), given)
    exact = torch.where(scores.isneginf(), -1e8, scores.double()).requires_grad_()
    expected = with_gradient(by_torch(exact, lengths, cells), exact)
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=tolerance)
    # The tolerance is the rounding error of a sum of such numbers.
    torch.testing.assert_close(found[1], expected[1], rtol=tolerance, atol=1e-3 * tolerance)
    assert not found[1][scores.isneginf()].any()


@pytest.mark.parametrize("n, batch", [(2, 1), (6, 2), (9, 9)])
def test_what_is_no_number_is_told_of(n: int, batch: int) -> None:
    cells = span_cells(n)
    for value in (torch.nan, torch.inf):
        for cell, item in itertools.product((0, len(cells) - 1), (0, batch - 1)):
            scores, lengths = draw(3, cells, [n] * batch)
            scores[1, cell, item] = value
            with pytest.raises(InvalidScores, match=rf"\b{item}\b"):
                log_partition(scores, lengths, cells.starts)
    scores, lengths = draw(3, cells, [n] * batch)
    scores[:, 0, batch - 1] = -torch.inf
    with pytest.raises(InfeasibleError):
        log_partition(scores, lengths, cells.starts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_do_not_depend_on_threads(
    dtype: torch.dtype, set_threads: Callable[[int], None]
) -> None:
    """The calls are large enough to be shared among threads."""
    cells = span_cells(50)
    scores, lengths = draw(21, cells, [50] * 64, dtype=dtype)
    spans = LabelledSpans(scores.numpy(), lengths.numpy(), cells.starts)
    assert spans.costs.sum() > SERIAL_NANOSECONDS
    charts = np.empty((2, 64, 50, 50))
    set_threads(1)
    spans.fold(charts[0])
    gradient = spans.gradient(charts[0])
    set_threads(3)
    spans.fold(charts[1])
    again = spans.gradient(charts[0])
    np.testing.assert_array_equal(charts[1], charts[0])
    np.testing.assert_array_equal(again, gradient)


@pytest.mark.parametrize(
    "lengths, starts, told",
    [
        ([3, 4], (0, 3, 5, 6), "3 and 4.*0 to 3"),
        ([-1, 3], (0, 3, 5, 6), "-1 and 3"),
        ([3, 3, 3], (0, 3, 5, 6), r"\(3,\)"),
        ([3, 3], (0, 3, 5, 7), r"\[7\]"),
        ([3, 3], (0, 3, 5), r"\[5\]"),
        ([3, 3], (), r"\[\]"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    lengths: list[int], starts: tuple[int, ...], told: str
) -> None:
    with pytest.raises(InvalidScores, match=told):
        log_partition(torch.zeros(2, 6, 2), torch.tensor(lengths), starts)


def test_is_an_operator() -> None:
    cells = span_cells(4)
    scores, lengths = draw(3, cells, [4, 2], padding=0.0)
    arguments = (scores.requires_grad_(), lengths, list(cells.starts), True)
    library.opcheck(kernels._log_partition.overload, arguments)
