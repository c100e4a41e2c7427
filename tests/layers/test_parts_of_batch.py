"""Layers with many numbers for each pair of words, in bounded memory."""

from __future__ import annotations

import pytest
import torch
from spacy.util import registry
from torch import Tensor

from spacy_latent.layers import parts_of_batch
from spacy_latent.layers.arc_labeller import ArcLabeller


@pytest.mark.parametrize("name", ["MlpScorer", "ContinuousStackScorer"])
def test_prediction_keeps_few_pairs_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    scorer = registry.get("misc", f"spacy-latent.{name}.v1")(hidden_width=8)(6).eval()
    vectors, lengths = torch.randn(5, 7, 6), torch.tensor([7, 3, 0, 7, 1])
    expected = scorer(vectors, lengths)
    gradient = torch.autograd.grad(expected.sum(), scorer.output.weight)[0]
    read: list[Tensor] = []
    scorer.output.register_forward_hook(lambda _, given, __: read.append(given[0]))
    monkeypatch.setattr(parts_of_batch, "MAX_NUMBERS", 2 * 3 * 8**2 * 8)
    with torch.no_grad():
        found = scorer(vectors, lengths)
    torch.testing.assert_close(found, expected)
    assert max(len(given) for given in read) < 5
    again = torch.autograd.grad(scorer(vectors, lengths).sum(), scorer.output.weight)[0]
    assert torch.equal(again, gradient)


def test_labels_are_predicted_for_few_arcs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    labeller = ArcLabeller(6, hidden_width=4, labels=3)
    heads, modifiers = torch.randn(2, 9, 6)
    offsets = torch.arange(-4, 5)
    expected = labeller(heads, modifiers, offsets)
    assert expected.shape == (9, 3)
    read: list[Tensor] = []
    labeller.head.register_forward_hook(lambda _, given, __: read.append(given[0]))
    monkeypatch.setattr(parts_of_batch, "MAX_NUMBERS", 2 * 5**2)
    with torch.no_grad():
        torch.testing.assert_close(labeller(heads, modifiers, offsets), expected)
    assert max(len(given) for given in read) == 2
