"""Sparsemax with upper bounds, against all sets of items that may be at a bound."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.constrained_sparsemax import ConstrainedSparsemax
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.spanning_tree import SpanningTree


def by_enumeration(scores: Tensor, upper: Tensor) -> Tensor:
    """Return the feasible point nearest to the scores.

    Each item is at 0, free, or at its bound.
    """
    best, nearest = scores.new_full((), torch.inf), torch.zeros_like(scores)
    for kinds in product((0, 1, 2), repeat=len(scores)):
        kind = torch.tensor(kinds)
        p = torch.where(kind == 2, upper, 0.0)
        free = kind == 1
        if bool(free.any()):
            threshold = (scores[free].sum() + p.sum() - 1) / free.sum()
            p = torch.where(free, scores - threshold, p)
        feasible = (p >= -1e-12).all() and (p <= upper + 1e-12).all() and abs(p.sum() - 1) < 1e-9
        distance = (p - scores).square().sum()
        if feasible and distance < best:
            best, nearest = distance, p
    return nearest


def drawn(count: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(count, size, generator=generator, dtype=torch.float64)
    upper = torch.rand(count, size, generator=generator, dtype=torch.float64)
    return scores, upper / upper.sum(1, keepdim=True).clamp_max(0.9)


def test_is_the_nearest_point() -> None:
    scores, upper = drawn(30, 5)
    scores[0] = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    upper[1] = 0.2
    found = OneOfN().constrained_sparsemax(scores, torch.full((30,), 5), upper)
    expected = torch.stack([by_enumeration(*row) for row in zip(scores, upper)])
    torch.testing.assert_close(found, expected)
    assert (found <= upper + 1e-12).all()


def test_gradients_of_scores_and_bounds() -> None:
    scores, upper = drawn(8, 5)

    def of(scores: Tensor, upper: Tensor) -> Tensor:
        return OneOfN().constrained_sparsemax(scores, torch.tensor([5] * 4 + [3] * 4), upper)

    # Twice the bounds leave a choice among three items, too.
    assert torch.autograd.gradcheck(of, (scores.requires_grad_(), (2 * upper).requires_grad_()))


def test_without_a_bound_it_is_sparsemax() -> None:
    scores, _ = drawn(20, 6)
    lengths = torch.tensor([6, 3] * 10)
    found = OneOfN().constrained_sparsemax(scores, lengths, 1.0)
    torch.testing.assert_close(found, OneOfN().sparsemap(scores, lengths).mean)


def test_a_common_bound_is_a_choice_of_several() -> None:
    """SparseMAP of k items has the sum k, and at most 1 for each item."""
    scores, _ = drawn(20, 6)
    lengths = torch.tensor([6, 4] * 10)
    found = OneOfN().constrained_sparsemax(scores, lengths, 1 / 3)
    torch.testing.assert_close(3 * found, KOfN(k=3).sparsemap(3 * scores, lengths).mean)


def test_forbidden_items_and_padding_have_nothing() -> None:
    scores = torch.tensor([[0.3, -torch.inf, 0.2, 9.0], [1.0, 2.0, 3.0, 4.0], [0.0] * 4])
    found = OneOfN().constrained_sparsemax(scores, torch.tensor([3, 4, 0]), 0.3)
    expected = [[0.5, 0.0, 0.5, 0.0], [0.1, 0.3, 0.3, 0.3], [0.0] * 4]
    torch.testing.assert_close(found, torch.tensor(expected))
    assert not OneOfN().constrained_sparsemax(scores[:, :0], torch.tensor([0, 0, 0]), 0.3).numel()


def test_the_estimator_takes_choices_of_one_only() -> None:
    estimator = ConstrainedSparsemax(0.4)
    draw = estimator(OneOfN(), torch.randn(2, 4), torch.tensor([4, 3]), True)
    torch.testing.assert_close(draw.mean().sum(1), torch.ones(2))
    with pytest.raises(IncompatiblePair):
        estimator.check(SpanningTree())
    for bound in (0.0, 1.1, float("nan")):
        with pytest.raises(LatentError):
            ConstrainedSparsemax(bound)
    with pytest.raises(LatentError):
        OneOfN().constrained_sparsemax(torch.randn(2, 4), torch.tensor([4, 3]), torch.ones(2))
    with pytest.raises(LatentError):
        OneOfN().constrained_sparsemax(torch.randn(2, 4), torch.tensor([4, 3]), -1.0)


@pytest.mark.parametrize("mask", [-1e16, -1e30])
def test_scores_far_below_are_masks(mask: float) -> None:
    scores = torch.tensor([[0.3, -0.1, 0.2, 0.25, -0.4, mask, mask]], dtype=torch.float64)
    lengths = torch.tensor([7])
    found = OneOfN().constrained_sparsemax(scores, lengths, 0.3)
    allowed = torch.where(scores < -1, -torch.inf, scores)
    torch.testing.assert_close(found, OneOfN().constrained_sparsemax(allowed, lengths, 0.3))
    torch.testing.assert_close(found.sum(), torch.ones((), dtype=torch.float64))


def test_masks_are_chosen_if_the_bounds_ask_for_it() -> None:
    scores = torch.tensor([[0.3, -0.1, -1e30, -1e30, -1e30, -1e30]], dtype=torch.float64)
    found = OneOfN().constrained_sparsemax(scores, torch.tensor([6]), 0.25)
    torch.testing.assert_close(found, scores.new_tensor([[0.25, 0.25] + [0.125] * 4]))


def test_the_digits_of_scores_beside_a_far_one() -> None:
    scores = torch.tensor([[1e16, 0.0, -0.1, -0.2, -0.3, -0.6]], dtype=torch.float64)
    found = OneOfN().constrained_sparsemax(scores, torch.tensor([6]), 0.5)
    others = OneOfN().constrained_sparsemax(2 * scores[:, 1:], torch.tensor([5]), 1.0)
    torch.testing.assert_close(found, torch.cat([scores.new_tensor([[0.5]]), others / 2], 1))
