"""Monotone alignments: tests beyond the contract, which test_contract.py checks."""

from __future__ import annotations

import pytest
import torch

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.monotone_alignment import MonotoneAlignment


@pytest.mark.parametrize("moves", ["dtw", "needleman_wunsch"])
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


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InvalidScores, match="moves"):
        MonotoneAlignment("diagonal")  # type: ignore[arg-type]
    with pytest.raises(InvalidScores, match="window"):
        MonotoneAlignment(window=0)
