"""Features of spans, against a loop over all spans."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.layers.encoded_scorer import DISTANCE_BUCKETS, distance_buckets
from spacy_latent.layers.span_features import span_cells, span_features


def one_by_one(roles: Tensor, width: Tensor, bound: int | None) -> Tensor:
    first, last, inner = roles.chunk(3, -1)
    n = len(roles)
    rows = []
    for i in range(n):
        for j in range(i, n if bound is None else min(n, i + bound)):
            own = width[distance_buckets(torch.tensor(j - i + 1))]
            rows.append(torch.relu(first[i] + last[j] + inner[i : j + 1].mean(0) + own))
    return torch.stack(rows)


@pytest.mark.parametrize("bound", [None, 1, 3, 9])
def test_features_and_gradients(bound: int | None) -> None:
    torch.manual_seed(0)
    roles = torch.randn(5, 2, 9, dtype=torch.float64, requires_grad=True)
    width = torch.randn(DISTANCE_BUCKETS, 3, dtype=torch.float64, requires_grad=True)
    cells = span_cells(5, bound)
    found, expected = span_features(roles, width, cells), one_by_one(roles, width, bound)
    torch.testing.assert_close(found, expected)
    along = torch.randn_like(found)
    own = torch.autograd.grad(found, (roles, width), along)
    torch.testing.assert_close(own, torch.autograd.grad(expected, (roles, width), along))


def test_cells_are_spans_row_by_row() -> None:
    cells = span_cells(4, 2)
    assert len(cells) == 7 and cells.starts == (0, 2, 4, 6, 7)
    places = list(zip(cells.first.tolist(), cells.last.tolist()))
    assert places == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]
    values = torch.arange(14.0).view(7, 2)
    chart = cells.chart(values)
    assert chart.shape == (2, 4, 4) and chart[1, 1, 2] == values[3, 1] and chart[0, 0, 3] == 0
    torch.testing.assert_close(cells.of_chart(chart), values.double())
