"""Alignments of each word to one word: tests beyond the contract, which test_contract.py checks."""

from __future__ import annotations

import pytest
import torch

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment


def test_a_word_that_may_go_nowhere_is_an_error_or_stays_alone() -> None:
    scores, lengths = torch.zeros(2, 2, 2), torch.tensor([[2, 2], [2, 2]])
    scores[1, 1] = -torch.inf
    for operation in ("map", "marginals", "log_partition", "sample", "sparsemap"):
        with pytest.raises(InfeasibleError, match=r"ManyToOneAlignment.*1"):
            getattr(ManyToOneAlignment(), operation)(scores, lengths)
    marginals = ManyToOneAlignment(unaligned=True).marginals(scores, lengths)
    assert not marginals[1, 1].any() and marginals[1, 0].sum() == pytest.approx(2 / 3)


def test_three_lengths_of_an_item_are_refused() -> None:
    with pytest.raises(InvalidScores, match=r"\(B, 2\)"):
        ManyToOneAlignment().map(torch.zeros(2, 2, 2), torch.tensor([[2, 2, 1], [2, 2, 1]]))
