"""Deep biaffine arc scores (Dozat and Manning 2017)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import PartScorer, ScorerBuilder


class BiaffineScorer(PartScorer):
    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(width) * 0.1)
        self.head = nn.Linear(width, hidden_width)
        self.modifier = nn.Linear(width, hidden_width)
        self.weight = nn.Parameter(torch.empty(hidden_width + 1, hidden_width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        root = self.root.expand(vectors.shape[0], 1, -1)
        nodes = torch.cat([root, vectors], 1)
        heads = torch.relu(self.head(nodes))
        modifiers = torch.relu(self.modifier(nodes))
        bias = modifiers.new_ones(*modifiers.shape[:2], 1)
        return heads @ self.weight.t() @ torch.cat([modifiers, bias], -1).transpose(1, 2)


def build_biaffine_scorer_v1(hidden_width: int = 64) -> ScorerBuilder:
    return partial(BiaffineScorer, hidden_width=hidden_width)
