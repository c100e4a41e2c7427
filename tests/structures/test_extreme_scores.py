"""Sums in which every structure must use parts that a mask of large negative scores forbids."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.extreme_scores import has_extreme_scores
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.smoothed import smoothed_expectation
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence

# So low that structures with more masked parts than necessary have no probability, and no lower.
NEARER = -1e3
MASK = 7.0


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def cases() -> list[tuple[Structure, Tensor, Tensor]]:
    """Return cases of two items. Parts that are ``MASK`` in the first item have ordinary scores in
    the second."""
    root, first_row = numbers(2, 4, 4), numbers(2, 4, 4)
    root[0, 0] = MASK
    first_row[0, 0] = MASK
    spans = numbers(2, 4, 4)
    spans[0, 0, 1:] = spans[0, 1, 2] = MASK
    chain = numbers(2, 3, 2, 2)
    chain[0, 1] = chain[0, 2, 0] = MASK
    items = numbers(2, 5)
    items[0, [1, 3]] = MASK
    few = numbers(2, 5)
    few[0, 1:] = MASK
    segments = numbers(2, 4, 3, 2)
    segments[0, 0] = segments[0, 2] = MASK
    two, whole = torch.tensor([3, 2]), torch.tensor([4, 3])
    return [
        (SpanningTree(), root, two),
        (SpanningTree(single_root=True), root, two),
        (IndependentHeads(), first_row.transpose(1, 2).contiguous(), two),
        (ConstituencyTree(), spans, whole),
        (LinearChain(), chain, two),
        (Runs(2, 1), items, torch.tensor([5, 3])),
        (KOfN(2), few, torch.tensor([5, 3])),
        (SemiMarkov(), segments, whole),
        (MonotoneAlignment(), first_row, torch.tensor([[4, 4], [2, 3]])),
    ]


def at(scores: Tensor, mask: float) -> Tensor:
    return torch.where(scores == MASK, mask, scores)


@pytest.mark.parametrize("mask", [-1e7, -1e15, -1e30])
@pytest.mark.parametrize("structure, scores, lengths", cases(), ids=lambda v: str(v)[:20])
def test_a_mask_may_be_as_low_as_one_likes(
    structure: Structure, scores: Tensor, lengths: Tensor, mask: float
) -> None:
    nearer = at(scores, NEARER).requires_grad_()
    far = at(scores, mask).requires_grad_()
    up = numbers(*scores.shape)
    found, expected = structure.marginals(far, lengths), structure.marginals(nearer, lengths)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    slopes = [
        torch.autograd.grad((z * up).sum(), x)[0] for z, x in ((found, far), (expected, nearer))
    ]
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-8)
    (slope,) = torch.autograd.grad(structure.log_partition(far, lengths).sum(), far)
    torch.testing.assert_close(slope, found, rtol=1e-9, atol=1e-9)
    z = structure.sample(nearer, lengths, 5, torch.Generator().manual_seed(0))
    ours, listed = structure.log_prob(z, far, lengths), structure.log_prob(z, nearer, lengths)
    torch.testing.assert_close(ours, listed, rtol=1e-7, atol=1e-7)
    other = numbers(*scores.shape) + 1.0
    for operation in (structure.kl, structure.cross_entropy):
        torch.testing.assert_close(
            operation(far, other, lengths), operation(nearer, other, lengths), rtol=1e-7, atol=1e-6
        )
    torch.testing.assert_close(
        structure.cross_entropy(far, far, lengths), structure.entropy(nearer, lengths)
    )
    again = structure.sample(far, lengths, 5, torch.Generator().manual_seed(0))
    assert structure.log_prob(again.double(), nearer, lengths).min() > -100


@pytest.mark.parametrize("mask", [-1e15, -1e30])
def test_bound_transitions_that_are_all_masked_count_as_none(mask: float) -> None:
    emissions, lengths = numbers(2, 4, 3), torch.tensor([4, 1])
    ends = numbers(2, 3)
    masked = TagSequence().bind(torch.full((3, 3), mask, dtype=torch.float64), *ends)
    free = TagSequence().bind(torch.zeros(3, 3, dtype=torch.float64), *ends)
    torch.testing.assert_close(
        masked.marginals(emissions, lengths), free.marginals(emissions, lengths)
    )
    z = free.sample(emissions, lengths, 4)
    torch.testing.assert_close(
        masked.log_prob(z, emissions, lengths), free.log_prob(z, emissions, lengths)
    )
    tags = z[0].argmax(2)
    for found, expected in zip(
        masked.follow(tags, emissions, lengths), free.follow(tags, emissions, lengths)
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "dtype, large", [(torch.float32, 1e6), (torch.float64, 1e16), (torch.float64, -1e30)]
)
@pytest.mark.parametrize(
    "structure, room, length",
    [
        (OneOfN(), (4,), 3),
        (IndependentHeads(), (4, 4), 3),
        (ManyToOneAlignment(), (2, 3), (2, 3)),
        (Bits(), (3,), 3),
    ],
    ids=lambda v: str(v)[:20],
)
def test_the_log_partition_of_large_scores_has_the_marginals_as_gradient(
    structure: Structure, room: tuple[int, ...], length: object, dtype: torch.dtype, large: float
) -> None:
    scores = torch.full((1, *room), large, dtype=dtype, requires_grad=True)
    lengths = torch.tensor([length])
    (slope,) = torch.autograd.grad(structure.log_partition(scores, lengths).sum(), scores)
    torch.testing.assert_close(slope, structure.marginals(scores.detach(), lengths))


def test_one_more_masked_part_than_need_be_is_as_unlikely_as_it_says() -> None:
    scores = torch.tensor([[0.0, 1.0, -1e30, -1e30]], dtype=torch.float64)
    z = torch.tensor([[[1.0, 1, 0, 0]], [[1, 0, 1, 0]], [[0, 0, 1, 1]]], dtype=torch.float64)
    found = Runs(2, 2).log_prob(z, scores, torch.tensor([4]))[:, 0]
    torch.testing.assert_close(found, torch.tensor([0.0, -1e30, -2e30], dtype=torch.float64))


def test_what_large_scores_of_several_sizes_leave_open_is_refused_with_its_item() -> None:
    large = torch.tensor([[0.0, 0, 0, 0], [-2.3e15, 0, -1e15, -2.3e15 + 1]], dtype=torch.float64)
    runs, lengths = Runs(3, 1), torch.tensor([4, 4])
    for operation in (runs.marginals, runs.log_partition, runs.entropy, runs.sample):
        with pytest.raises(InvalidScores, match=r"\[1\]"):
            operation(large, lengths)


def test_large_scores_of_all_sizes_that_leave_nothing_open_are_not_refused() -> None:
    scores, lengths = 1e12 * numbers(3, 6, 6), torch.tensor([5, 3, 0])
    tree = SpanningTree()
    assert torch.equal(tree.marginals(scores, lengths), tree.map(scores, lengths))


@pytest.mark.parametrize("scale", [1e12, 1e15])
@pytest.mark.parametrize(
    "structure, room",
    [(ConstituencyTree(), (5, 5)), (MonotoneAlignment(), (5, 5)), (Runs(4, 2, False), (5,))],
    ids=lambda v: str(v)[:20],
)
def test_what_rounding_leaves_is_no_probability(
    structure: Structure, room: tuple[int, ...], scale: float
) -> None:
    scores, lengths = scale * numbers(20, *room), torch.full((20,), 5)
    best = structure.top_k(scores, lengths, 2).z
    first, second = structure.log_prob(best, scores, lengths)
    assert not first.any() and (second < -scale / 1e3).all()
    assert not structure.entropy(scores, lengths).any()
    assert not structure.kl(scores, scores / 2, lengths).any()


def test_only_finite_scores_are_far() -> None:
    near = torch.tensor([[1e3, -torch.inf, torch.nan, torch.inf]])
    assert (
        not has_extreme_scores(near)
        and not has_extreme_scores(near.double())
        and not has_extreme_scores(near[:, :0])
    )
    assert has_extreme_scores(torch.cat([near, torch.full((1, 4), -1e30)]))


@pytest.mark.parametrize("low", [-1e8, -1e14, -1e30])
def test_smoothed_shares_of_a_position_sum_to_one_beside_large_scores(low: float) -> None:
    for tags in (1, 2, 3):
        scores = numbers(20, 6, tags, tags)
        scores[torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.4] = low
        lengths = torch.full((20,), 6)
        found = smoothed_expectation(LinearChain(), scores, lengths, "quadratic", 1.0)
        torch.testing.assert_close(found.sum((2, 3)), torch.ones(20, 6, dtype=torch.float64))
