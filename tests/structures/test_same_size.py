"""Offsets that all items of a text have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.structures.items import ItemSet


class FirstOrOthers(ItemSet):
    """The first of three items, or the two others: incomparable sets of different sizes."""

    incomparable = True

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        first = scores[:, :1] > scores[:, 1:].sum(1, keepdim=True)
        return torch.cat([first, ~first, ~first], 1).to(scores.dtype)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return torch.logaddexp(scores[:, 0], scores[:, 1] + scores[:, 2])

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        first = torch.sigmoid(scores[:, 0] - scores[:, 1] - scores[:, 2])
        return torch.stack([first, 1 - first, 1 - first], 1)


def test_entropy_of_subsets_of_different_sizes() -> None:
    scores, lengths = torch.tensor([[5.0, 2.0, 1.0]], dtype=torch.float64), torch.tensor([3])
    p = torch.sigmoid(torch.tensor(2.0, dtype=torch.float64))
    expected = -(p * p.log() + (1 - p) * (1 - p).log())
    found = FirstOrOthers().entropy(scores, lengths)
    torch.testing.assert_close(found, expected[None])
