"""Smoothed dynamic programs: their definition, and what they are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, InfeasibleError, InvalidScores, NotTractable
from spacy_latent.estimators.smoothed_dp import SmoothedDP
from spacy_latent.structures.base import Structure
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.smoothed import (
    fenchel_young_loss,
    maximum,
    smoothed_expectation,
    smoothed_value,
)
from spacy_latent.structures.spanning_tree import SpanningTree


def cases() -> list[tuple[Structure, Tensor, Tensor]]:
    torch.manual_seed(0)
    chain = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    cells = torch.randn(3, 4, 5, dtype=torch.float64)
    return [
        (LinearChain(), chain, torch.tensor([4, 2, 0])),
        (MonotoneAlignment(), cells, torch.tensor([[4, 5], [2, 3], [0, 2]])),
        (MonotoneAlignment(window=1), cells, torch.tensor([[4, 5], [1, 3], [3, 3]])),
    ]


EACH = pytest.mark.parametrize("structure, scores, lengths", cases(), ids=lambda v: str(v)[:20])
BOTH = pytest.mark.parametrize("regularizer", ["entropic", "quadratic"])


def by_hand(scores: Tensor, rows: int, columns: int, operator: object) -> Tensor:
    """The recursion over cells, one at a time."""
    value: dict[tuple[int, int], Tensor] = {}
    for i in range(rows):
        for j in range(columns):
            before = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
            reached = [value[place] for place in before if place in value]
            start = operator(torch.stack(reached)) if reached else scores.new_zeros(())  # type: ignore[operator]
            value[i, j] = start + scores[i, j]
    return value[rows - 1, columns - 1]


@EACH
def test_entropic_values_are_log_partitions(
    structure: Structure, scores: Tensor, lengths: Tensor
) -> None:
    for gamma in (0.3, 1.0, 4.0):
        value = smoothed_value(structure, scores, lengths, "entropic", gamma)
        expected = gamma * structure.log_partition(scores / gamma, lengths)
        torch.testing.assert_close(value, expected)
        mean = smoothed_expectation(structure, scores, lengths, "entropic", gamma)
        torch.testing.assert_close(mean, structure.marginals(scores / gamma, lengths))


@EACH
@BOTH
def test_gradients(structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str) -> None:
    given = scores.clone().requires_grad_()
    for function in (smoothed_value, smoothed_expectation):
        assert torch.autograd.gradcheck(
            lambda s, f=function: f(structure, s, lengths, regularizer, 0.9),  # type: ignore[arg-type]
            (given,),
        )


@EACH
@BOTH
def test_little_smoothing_gives_the_best(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    mean = smoothed_expectation(structure, scores, lengths, regularizer, 1e-4)  # type: ignore[arg-type]
    torch.testing.assert_close(mean, structure.map(scores, lengths), rtol=0, atol=1e-6)


def test_the_quadratic_recursion_over_cells() -> None:
    torch.manual_seed(1)
    scores = torch.randn(1, 4, 3, dtype=torch.float64)
    for gamma in (0.5, 2.0):
        found = smoothed_value(
            MonotoneAlignment(), scores, torch.tensor([[4, 3]]), "quadratic", gamma
        )
        expected = by_hand(scores[0], 4, 3, maximum("quadratic", gamma))
        torch.testing.assert_close(found[0], expected)


def test_quadratic_smoothing_is_not_sparsemap() -> None:
    torch.manual_seed(2)
    structure, lengths = MonotoneAlignment(), torch.tensor([[4, 4]])
    scores = 0.3 * torch.randn(1, 4, 4, dtype=torch.float64)
    smooth = smoothed_expectation(structure, scores, lengths, "quadratic")
    sparse = structure.sparsemap(scores, lengths).mean
    assert (smooth - sparse).abs().max() > 0.05
    # But sparse it is, where the entropic one is not.
    sharp = smoothed_expectation(structure, 10 * scores, lengths, "quadratic")
    assert (sharp == 0).any() and (structure.marginals(10 * scores, lengths) > 0).all()


@EACH
@BOTH
def test_fenchel_young_losses(
    structure: Structure, scores: Tensor, lengths: Tensor, regularizer: str
) -> None:
    given = scores.clone().requires_grad_()
    gold = structure.map(torch.randn_like(scores), lengths)
    loss = fenchel_young_loss(structure, given, gold, lengths, regularizer)  # type: ignore[arg-type]
    assert (loss >= -1e-12).all()
    (gradient,) = torch.autograd.grad(loss.sum(), given)
    mean = smoothed_expectation(structure, scores, lengths, regularizer)  # type: ignore[arg-type]
    torch.testing.assert_close(gradient, mean - gold)
    if regularizer == "entropic":
        torch.testing.assert_close(loss, -structure.log_prob(gold, scores, lengths))


def test_padding_is_not_read_and_bad_input_is_named() -> None:
    structure, lengths = MonotoneAlignment(), torch.tensor([[2, 2], [3, 3]])
    scores = torch.randn(2, 3, 3, dtype=torch.float64)
    scores[0, 2], scores[0, :, 2] = torch.nan, torch.nan
    given = scores.clone().requires_grad_()
    smoothed_value(structure, given, lengths, "quadratic").sum().backward()
    assert torch.isfinite(given.grad).all() and not given.grad[0, 2].any()
    scores[1, 0, 0] = torch.inf
    with pytest.raises(InvalidScores, match=r"\[1\]"):
        smoothed_value(structure, scores, lengths)
    scores[1, 0, 0] = -torch.inf
    with pytest.raises(InfeasibleError) as caught:
        smoothed_value(structure, scores, lengths)
    assert caught.value.items == [1]
    with pytest.raises(InvalidScores, match="gamma"):
        smoothed_value(structure, scores, lengths, gamma=0.0)


def test_structures_without_a_recursion_are_refused() -> None:
    with pytest.raises(IncompatiblePair, match=r"SmoothedDP.*SpanningTree"):
        SmoothedDP().check(SpanningTree())
    with pytest.raises(IncompatiblePair, match=r"SmoothedDP.*MonotoneAlignment"):
        SmoothedDP().check(MonotoneAlignment("needleman_wunsch"))
    with pytest.raises(NotTractable):
        smoothed_value(SpanningTree(), torch.zeros(1, 2, 2), torch.tensor([1]))
