"""Monotone alignments, against listing them."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, library

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.kernels import operators
from spacy_latent.structures.monotone_alignment import FAMILY, MonotoneAlignment
from tests.enumeration import monotone_matchings, warping_paths

LIST = {"dtw": warping_paths, "needleman_wunsch": monotone_matchings}
CASES = list(product(LIST, (None, 1, 2)))
EACH = pytest.mark.parametrize("moves, window", CASES)


@cache
def members(moves: str, window: int | None, rows: int, columns: int) -> Tensor:
    structure = MonotoneAlignment(moves, window)  # type: ignore[arg-type]
    mask = structure.part_mask(torch.zeros(1, rows, columns), torch.tensor([[rows, columns]]))[0]
    listed = torch.from_numpy(np.stack(list(LIST[moves](rows, columns))))
    return listed[~(listed.bool() & ~mask).flatten(1).any(1)]


@EACH
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_everything_against_enumeration(moves: str, window: int | None, scale: float) -> None:
    structure = MonotoneAlignment(moves, window)  # type: ignore[arg-type]
    torch.manual_seed(0)
    for rows, columns in [(0, 0), (0, 3), (1, 1), (1, 4), (3, 1), (3, 3), (4, 3), (2, 5)]:
        scores = scale * torch.randn(1, rows + 1, columns + 1, dtype=torch.float64)
        scores[0, rows:], scores[0, :, columns:] = torch.nan, torch.nan
        lengths = torch.tensor([[rows, columns]])
        listed = members(moves, window, rows, columns)
        totals = (listed * scores[0, :rows, :columns]).sum((1, 2))
        log_partition = totals.logsumexp(0)
        p = (totals - log_partition).exp()
        best = structure.map(scores, lengths)[0, :rows, :columns]
        assert (listed == best).flatten(1).all(1).any()
        torch.testing.assert_close(
            (best * scores[0, :rows, :columns]).sum(), totals.max(), rtol=1e-10, atol=1e-12
        )
        found = structure.log_partition(scores, lengths)[0]
        torch.testing.assert_close(found, log_partition, rtol=1e-10, atol=1e-12)
        marginals = structure.marginals(scores, lengths)[0]
        expected = (p[:, None, None] * listed).sum(0)
        torch.testing.assert_close(marginals[:rows, :columns], expected, rtol=1e-9, atol=1e-12)
        assert not marginals[rows:].any() and not marginals[:, columns:].any()
        entropy = structure.entropy(scores, lengths)[0]
        torch.testing.assert_close(entropy, -torch.special.xlogy(p, p).sum(), rtol=1e-6, atol=1e-8)
        assert structure.log_count(scores, lengths)[0].exp().round() == len(listed)
        ranked = structure.top_k(scores, lengths, 3).scores[:, 0]
        expected = totals.topk(min(3, len(totals))).values
        torch.testing.assert_close(ranked[: len(expected)], expected, rtol=1e-10, atol=1e-10)


@EACH
def test_gradients(moves: str, window: int | None) -> None:
    structure = MonotoneAlignment(moves, window)  # type: ignore[arg-type]
    torch.manual_seed(1)
    scores = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([[4, 5], [3, 2], [0, 4]])
    for operation in (structure.log_partition, structure.marginals):
        assert torch.autograd.gradcheck(lambda s, f=operation: f(s, lengths), (scores,))
    assert torch.autograd.gradcheck(lambda s: structure.sparsemap(s, lengths).mean, (scores,))


@EACH
def test_samples_have_the_marginals(moves: str, window: int | None) -> None:
    structure = MonotoneAlignment(moves, window)  # type: ignore[arg-type]
    torch.manual_seed(2)
    scores, lengths = torch.randn(2, 4, 5, dtype=torch.float64), torch.tensor([[4, 5], [3, 2]])
    drawn = structure.sample(scores, lengths, 6000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        drawn.mean(0), structure.marginals(scores, lengths), rtol=0, atol=4 * 0.5 / 6000**0.5
    )
    listed = members(moves, window, 3, 2)
    kinds = drawn[:, 1, :3, :2].unique(dim=0)
    assert all((listed == kind).flatten(1).all(1).any() for kind in kinds)


@pytest.mark.parametrize("moves", LIST)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_long_sentences_stay_exact(moves: str, scale: float) -> None:
    structure = MonotoneAlignment(moves)  # type: ignore[arg-type]
    torch.manual_seed(3)
    scores = scale * torch.randn(1, 200, 150, dtype=torch.float64)
    lengths = torch.tensor([[200, 150]])
    marginals = structure.marginals(scores, lengths)[0]
    assert (marginals >= 0).all() and (marginals <= 1 + 1e-9).all()
    if moves == "dtw":
        torch.testing.assert_close(marginals[0, 0].item(), 1.0, rtol=0, atol=1e-9)
        torch.testing.assert_close(marginals[-1, -1].item(), 1.0, rtol=0, atol=1e-9)
        assert (marginals.sum(1) >= 1 - 1e-9).all()
    else:
        assert (marginals.sum(1) <= 1 + 1e-9).all() and (marginals.sum(0) <= 1 + 1e-9).all()


def test_one_length_stands_for_both() -> None:
    torch.manual_seed(4)
    structure, scores = MonotoneAlignment(), torch.randn(2, 4, 4)
    first = structure.marginals(scores, torch.tensor([4, 2]))
    second = structure.marginals(scores, torch.tensor([[4, 4], [2, 2]]))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_bad_input_is_named() -> None:
    structure, lengths = MonotoneAlignment(), torch.tensor([[3, 3]] * 3)
    scores = torch.zeros(3, 3, 3)
    scores[1, 2, 1] = torch.nan
    for operation in (structure.map, structure.marginals, structure.sample):
        with pytest.raises(InvalidScores, match=r"\[1\]"):
            operation(scores, lengths)
    scores = torch.zeros(3, 3, 3)
    scores[2, 2, 2] = -torch.inf
    for operation in (structure.map, structure.marginals, structure.sample, structure.sparsemap):
        with pytest.raises(InfeasibleError) as caught:
            operation(scores, lengths)
        assert caught.value.items == [2]
    with pytest.raises(InvalidScores, match="moves"):
        MonotoneAlignment("diagonal")  # type: ignore[arg-type]
    with pytest.raises(InvalidScores, match="window"):
        MonotoneAlignment(window=0)
    with pytest.raises(InvalidScores, match="lengths"):
        structure.map(torch.zeros(1, 2, 2), torch.tensor([[3, 2]]))


def test_operators_follow_the_rules_of_torch() -> None:
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    arguments = (scores, torch.tensor([[3, 4], [2, 1]]), FAMILY, [0, -1])
    library.opcheck(operators.log_partition, arguments)
    library.opcheck(operators._marginals, (*arguments, False))
