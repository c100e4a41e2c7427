from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, NotTractable
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.tag_sequence import TagSequence
from tests.enumeration import segmentations

LONGEST = 3
Segments = tuple[tuple[int, int, int], ...]


@cache
def all_of(n: int, num_labels: int) -> list[Segments]:
    return list(segmentations(n, LONGEST, num_labels))


@cache
def arrays_of(n: int, num_labels: int) -> Tensor:
    z = torch.zeros(len(all_of(n, num_labels)), n, LONGEST, num_labels, dtype=torch.float64)
    for row, segments in zip(z, all_of(n, num_labels)):
        for first, after, label in segments:
            row[first, after - first - 1, label] = 1.0
    return z


def random_bound(num_labels: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(num_labels, num_labels, dtype=torch.float64) * scale,
        torch.randn(num_labels, dtype=torch.float64) * scale,
        torch.randn(num_labels, dtype=torch.float64) * scale,
    )


def totals_of(sequences: list[Segments], own: Tensor, bound: tuple[Tensor, ...]) -> Tensor:
    """Scores of the segmentations of one item, plainly."""
    transitions, start, end = bound
    totals = []
    for segments in sequences:
        total = own.new_zeros(())
        for first, after, label in segments:
            total = total + own[first, after - first - 1, label]
        for (_, _, before), (_, _, label) in zip(segments, segments[1:]):
            total = total + transitions[before, label]
        if segments:
            total = total + start[segments[0][2]] + end[segments[-1][2]]
        totals.append(total)
    return torch.stack(totals)


def padded(own: Tensor, room: int) -> Tensor:
    """A batch of one item, with NaN wherever nothing may be read."""
    n, longest, num_labels = own.shape
    result = torch.full((1, room, longest, num_labels), torch.nan, dtype=own.dtype)
    for i in range(n):
        result[0, i, : n - i] = own[i, : n - i]
    return result


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("num_labels", [1, 2])
def test_everything_against_enumeration(num_labels: int, scale: float) -> None:
    torch.manual_seed(0)
    for n in range(6):
        sequences, z = all_of(n, num_labels), arrays_of(n, num_labels)
        lengths = torch.tensor([n])
        own = (torch.randn(n, LONGEST, num_labels, dtype=torch.float64) * scale).requires_grad_()
        bound = tuple(given.requires_grad_() for given in random_bound(num_labels, scale))
        structure = SemiMarkov().bind(*bound)
        scores = padded(own, n + 1)

        def gradients(
            value: Tensor, inputs: tuple[Tensor, ...] = (own, *bound)
        ) -> tuple[Tensor, ...]:
            # Nothing depends on the scores of an empty item.
            value = value + sum(0.0 * given.sum() for given in inputs)
            return torch.autograd.grad(value, inputs, retain_graph=True)

        totals = totals_of(sequences, own, bound)
        p = totals.softmax(0)
        mean = torch.einsum("z,znlk->nlk", p, z)
        vector = torch.randn_like(own)
        marginals = structure.marginals(scores, lengths)[0]
        assert not marginals[n:].any()
        for found, expected in (
            (structure.log_partition(scores, lengths)[0], totals.logsumexp(0)),
            ((marginals[:n] * vector).sum(), (mean * vector).sum()),
            (structure.entropy(scores, lengths)[0], -(p * totals.log_softmax(0)).sum()),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-9)
            for one, other in zip(gradients(found), gradients(expected)):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-8)
        torch.testing.assert_close(marginals[:n], mean, rtol=1e-10, atol=1e-12)
        log_probs = structure.log_prob(z[:, None], padded(own, n), lengths)[:, 0]
        torch.testing.assert_close(log_probs, totals.log_softmax(0), rtol=1e-10, atol=1e-9)
        assert torch.equal(structure.map(scores, lengths)[0, :n], z[totals.argmax()])
        count = structure.log_count(scores, lengths).exp().item()
        assert count == pytest.approx(len(sequences))
        order = totals.argsort(descending=True)[:4]
        several = structure.top_k(scores, lengths, 4)
        assert torch.equal(several.z[: len(order), 0, :n], z[order])
        torch.testing.assert_close(several.scores[: len(order), 0], totals[order].detach())
        assert torch.isneginf(several.scores[len(order) :]).all()


def test_gradients() -> None:
    torch.manual_seed(1)
    lengths = torch.tensor([4, 2, 0])
    scores = torch.randn(3, 4, LONGEST, 2, dtype=torch.float64)
    scores[0, 1, 1] = -torch.inf
    allowed = ~scores.isneginf()
    inputs = [given.requires_grad_() for given in (scores[allowed], *random_bound(2))]

    def full(values: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).masked_scatter(allowed, values)

    def marginals(values: Tensor, *bound: Tensor) -> Tensor:
        return SemiMarkov().bind(*bound).marginals(full(values), lengths)

    def log_partition(values: Tensor, *bound: Tensor) -> Tensor:
        return SemiMarkov().bind(*bound).log_partition(full(values), lengths)

    assert torch.autograd.gradcheck(marginals, inputs)
    assert torch.autograd.gradgradcheck(log_partition, inputs)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_segments_of_one_position_are_tags(scale: float) -> None:
    torch.manual_seed(2)
    lengths, bound = torch.tensor([200, 3]), random_bound(4, scale)
    emissions = (torch.randn(2, 200, 4, dtype=torch.float64) * scale).requires_grad_()
    scores = torch.full((2, 200, 2, 4), -torch.inf, dtype=torch.float64)
    scores = torch.cat([emissions[:, :, None], scores[:, :, 1:]], 2)
    segments, tags = SemiMarkov().bind(*bound), TagSequence().bind(*bound)
    torch.testing.assert_close(
        segments.log_partition(scores, lengths),
        tags.log_partition(emissions, lengths),
        rtol=1e-12,
        atol=0,
    )
    found = segments.marginals(scores, lengths)[:, :, 0]
    expected = tags.marginals(emissions, lengths)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-300)
    vector = torch.randn_like(expected)
    (one,) = torch.autograd.grad((found * vector).sum(), emissions)
    (other,) = torch.autograd.grad((expected * vector).sum(), emissions)
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
    assert torch.equal(segments.map(scores, lengths)[:, :, 0], tags.map(emissions, lengths))


def test_sparsemap_meets_its_optimality_conditions() -> None:
    torch.manual_seed(4)
    scores, lengths = torch.randn(1, 4, LONGEST, 2, dtype=torch.float64), torch.tensor([4])
    solution = SemiMarkov().sparsemap(scores, lengths)
    rest = scores[0] - solution.mean[0]
    best = torch.einsum("znlk,nlk->z", arrays_of(4, 2), rest).max()
    assert best - (solution.mean[0] * rest).sum() <= 1e-6
    with pytest.raises(NotTractable, match="transitions"):
        SemiMarkov().bind(*random_bound(2)).sparsemap(scores, lengths)


def test_infeasible_and_wrong_items_are_named() -> None:
    structure, lengths = SemiMarkov(), torch.tensor([2, 3, 4])
    scores = torch.zeros(3, 4, 1, 2)
    scores[1, 1] = -torch.inf
    for operation in ("map", "marginals", "log_partition", "sample"):
        with pytest.raises(InfeasibleError) as error:
            getattr(structure, operation)(scores, lengths)
        assert error.value.items == [1]
    with pytest.raises(InfeasibleError):
        structure.top_k(scores, lengths, 2)
    scores[2, 3, 0, 1] = torch.nan
    for operation in ("map", "marginals", "log_partition", "sample"):
        with pytest.raises(InvalidScores, match=r"\[2\]"):
            getattr(structure, operation)(scores, lengths)
    for bad, match in (
        ((scores[:, :, :0], lengths), "1"),
        ((scores[:, :, 0], lengths), "shape"),
        ((scores, lengths + 1), "0 to 4"),
    ):
        with pytest.raises(InvalidScores, match=match):
            structure.map(*bad)


def test_codes_go_both_ways() -> None:
    structure = SemiMarkov()
    segments = np.array([[0, 2, 1], [2, 3, 0], [3, 6, 1]])
    z = structure.encode(segments, 6, num_tags=2)
    assert z.shape == (6, 3, 2) and z.sum() == 3
    assert structure.decode(z, 6).tolist() == segments.tolist()
    assert structure.encode(segments, 6, num_tags=2, max_length=4).shape == (6, 4, 2)
    for wrong in (
        segments[1:],
        segments[:2],
        segments + np.array([0, 0, 1]),
        segments[:, [1, 0, 2]],
    ):
        with pytest.raises(InvalidScores, match="from 0 to 6"):
            structure.encode(wrong, 6, num_tags=2)
    with pytest.raises(InvalidScores, match="num_tags"):
        structure.encode(segments, 6)
