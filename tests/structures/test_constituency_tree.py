"""Binary constituency trees: tests beyond the contract, which test_contract.py checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.structures.constituency_tree import ConstituencyTree
from tests.structures.logarithms import constituency_inside, constituency_outside

STRUCTURE = ConstituencyTree()


def test_there_are_catalan_many() -> None:
    catalan = [1, 1, 1, 2, 5, 14, 42, 132, 429, 1430]
    for n, count in enumerate(catalan):
        found = STRUCTURE.log_count(torch.zeros(1, n, n).double(), torch.tensor([n]))
        assert round(found.exp().item()) == count


@pytest.mark.parametrize("scale", [1.0, 40.0, 400.0])
def test_gradients(scale: float) -> None:
    torch.manual_seed(1)
    lengths = torch.tensor([5, 3, 1, 0])
    # Scores are multiples of ``scale`` plus small numbers. Several trees therefore tie nearly, and
    # derivatives are large enough for finite differences.
    base = scale * torch.randn(4, 5, 5, dtype=torch.float64).round()
    small = torch.randn(4, 5, 5, dtype=torch.float64, requires_grad=True)
    for operation in (STRUCTURE.log_partition, STRUCTURE.marginals):
        assert torch.autograd.gradcheck(lambda s, f=operation: f(base + s, lengths), (small,))
    assert torch.autograd.gradcheck(lambda s: STRUCTURE.sparsemap(s, lengths).mean, (small,))


@pytest.mark.parametrize("n", [60, 200, 300])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0, 100.0, 1e3])
def test_long_sentences_agree_with_logarithms(n: int, scale: float) -> None:
    torch.manual_seed(n)
    scores = scale * torch.randn(1, n, n, dtype=torch.float64)
    lengths = torch.tensor([n])
    upstream = torch.randn_like(scores)
    given = scores.clone().requires_grad_()
    marginals = STRUCTURE.marginals(given, lengths)
    (product,) = torch.autograd.grad(marginals, given, upstream)
    # Every binary tree over n words has 2n − 1 spans.
    torch.testing.assert_close(marginals.sum().item(), 2.0 * n - 1.0, rtol=1e-10, atol=0.0)
    inside, changes, expected = _by_logarithms(scores[0], upstream[0])
    found = STRUCTURE.log_partition(scores, lengths)[0]
    torch.testing.assert_close(found, inside, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(marginals.detach()[0], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(product[0], changes, rtol=1e-6, atol=1e-8)


def _by_logarithms(scores: Tensor, along: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = len(scores)
    s, ds = scores.numpy(), np.triu(along.numpy(), 1)
    logs = np.full((6, n, n), -np.inf)
    logs[3:] = 0.0
    inside, turned, marginals, dinside, dturned, changes = logs
    constituency_inside(s, ds, n, inside, dinside, turned, dturned)
    constituency_outside(s, ds, n, inside, dinside, turned, dturned, marginals, changes)
    total = torch.tensor(inside[0, n - 1] + np.diagonal(s).sum())
    changes[np.tril_indices(n)] = 0.0
    marginals[np.tril_indices(n, -1)] = 0.0
    return total, torch.from_numpy(changes), torch.from_numpy(marginals)


@pytest.mark.parametrize("batch", [1, 8])
def test_a_sum_that_float64_holds_with_few_digits_only(batch: int) -> None:
    """The span (1, 2) has the best score, but no tree with it is allowed."""
    scores = torch.full((1, 4, 4), -torch.inf, dtype=torch.float64)
    scores[0].diagonal().fill_(0.0)
    scores[0, 1, 2] = 0.0
    scores[0, 0, 1] = scores[0, 2, 3] = scores[0, 0, 3] = -245.0
    lengths = torch.full((batch,), 4)
    found = ConstituencyTree().log_partition(scores.repeat(batch, 1, 1), lengths)
    assert found.tolist() == pytest.approx([-735.0] * batch, rel=1e-13)
