"""Checks that all scorers of arcs have in common."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LENGTHS = torch.tensor([5, 3, 1])


def real(scores: Tensor, lengths: Tensor = LENGTHS) -> list[Tensor]:
    """Return the scores between tokens of each item. They are 0 for arcs from a token to itself."""
    found = []
    for item, n in zip(scores, lengths.tolist()):
        arcs = item[: n + 1, 1 : n + 1].clone()
        arcs[torch.arange(1, n + 1), torch.arange(n)] = 0.0
        found.append(arcs)
    return found


def check_padding(scorer: nn.Module) -> None:
    """Check that padding, even NaN, changes neither scores nor gradients.

    An item alone must have the same scores.

    Args:
        scorer: A scorer of vectors of width 6, in float64.
    """
    vectors = torch.randn(3, 5, 6, dtype=torch.float64)
    with_nan = vectors.clone()
    for item, n in zip(with_nan, LENGTHS.tolist()):
        item[n:] = torch.nan
    results = []
    for given in (vectors, with_nan):
        given.requires_grad_()
        scorer.zero_grad()
        scores = real(scorer(given, LENGTHS))
        torch.stack([item.tanh().sum() for item in scores]).sum().backward()
        results.append((scores, [weight.grad.clone() for weight in scorer.parameters()]))
    for one, other in zip(*results, strict=True):
        for left, right in zip(one, other, strict=True):
            assert torch.equal(left, right)
    alone = real(scorer(vectors[1:2, :3], LENGTHS[1:2]), LENGTHS[1:2])[0]
    torch.testing.assert_close(results[0][0][1], alone)


def check_gradients(scorer: nn.Module) -> None:
    vectors = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda v, *_: torch.cat([item.flatten() for item in real(scorer(v, LENGTHS))]),
        (vectors, *scorer.parameters()),
    )
