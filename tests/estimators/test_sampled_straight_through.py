"""Straight-through from samples, against its definition by enumeration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.sampled_straight_through import SampledStraightThrough
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.spanning_tree import SpanningTree

# Each case has one item, and the shape of its scores.
SMALL = [
    (KOfN(2), 4, (4,)),
    (Bits(), 3, (3,)),
    (SpanningTree(), 3, (4, 4)),
    (ConstituencyTree(), 4, (4, 4)),
    (LinearChain(), 3, (3, 2, 2)),
]
EACH = pytest.mark.parametrize("structure, length, shape", SMALL, ids=lambda value: str(value)[:9])


def listed(structure: Structure, scores: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return all structures ``(N, *parts)`` and their probabilities ``(N,)``."""
    best = structure.top_k(scores, torch.tensor([length]), 200)
    z = best.z[:, 0][~best.scores[:, 0].isneginf()]
    assert len(z) < 200
    return z, (z * scores[0]).flatten(1).sum(1).softmax(0)


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@EACH
def test_samples_go_forward_and_the_covariance_goes_backward(
    structure: Structure, length: int, shape: tuple[int, ...]
) -> None:
    scores, upstream = drawn((1, *shape)).requires_grad_(), drawn((3, 1, *shape), 1)
    lengths = torch.tensor([length])
    torch.manual_seed(5)
    draw = SampledStraightThrough(3)(structure, scores, lengths, True)
    torch.manual_seed(5)
    torch.testing.assert_close(draw.z, structure.sample(scores.detach(), lengths, 3))
    (found,) = torch.autograd.grad((draw.z * upstream).sum(), scores)
    z, p = listed(structure, scores.detach(), length)
    flat = z.flatten(1)
    covariance = (flat * p[:, None]).T @ flat - (p @ flat)[:, None] * (p @ flat)
    expected = covariance @ upstream.sum(0).flatten()
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-6, atol=1e-9)


@EACH
def test_a_linear_loss_has_its_true_gradient(
    structure: Structure, length: int, shape: tuple[int, ...]
) -> None:
    scores, costs = drawn((1, *shape)).requires_grad_(), drawn(shape, 2)
    draw = SampledStraightThrough()(structure, scores, torch.tensor([length]), True)
    (found,) = torch.autograd.grad((draw.z * costs).sum(), scores)
    z, _ = listed(structure, scores.detach(), length)
    expected_loss = structure.log_prob(z[:, None], scores, torch.tensor([length])).exp()[:, 0] @ (
        (z * costs).flatten(1).sum(1)
    )
    (expected,) = torch.autograd.grad(expected_loss, scores)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_the_average_is_composed_once_and_has_the_gradient_of_all() -> None:
    scores, lengths = drawn((2, 5)).requires_grad_(), torch.tensor([5, 4])
    estimator, upstream = SampledStraightThrough(4, average=True), drawn((2, 5), 1)
    torch.manual_seed(3)
    draw = estimator(KOfN(2), scores, lengths, True)
    torch.manual_seed(3)
    each = SampledStraightThrough(4)(KOfN(2), scores, lengths, True)
    assert draw.z.shape == (1, 2, 5) and each.z.shape == (4, 2, 5)
    torch.testing.assert_close(draw.z[0], each.mean())
    assert not estimator.hard and estimator.hard_at_prediction and SampledStraightThrough().hard
    gradients = [
        torch.autograd.grad((one.mean() * upstream).sum(), scores)[0] for one in (draw, each)
    ]
    torch.testing.assert_close(*gradients)
    predicted = estimator(KOfN(2), scores, lengths, False)
    torch.testing.assert_close(predicted.z[0], KOfN(2).map(scores, lengths))


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(LatentError, match="num_samples"):
        SampledStraightThrough(0)
    with pytest.raises(IncompatiblePair, match=r"SampledStraightThrough.*OneToOneAlignment"):
        SampledStraightThrough().check(OneToOneAlignment())
