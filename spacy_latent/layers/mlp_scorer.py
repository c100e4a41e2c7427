"""Arc scores by a multi-layer perceptron (Kiperwasser and Goldberg 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spacy_latent.layers.arc_scorer import ArcScorer, arc_scorer_builder
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import EncoderBuilder
from spacy_latent.layers.parts_of_batch import predict_in_parts


class MlpScorer(ArcScorer):
    """Scores s[h, m] = vᵀ tanh(U h + V m + b).

    Memory is O(n²·hidden_width). Outside of training it is bounded for all texts of a batch
    together.
    """

    def __init__(
        self,
        width: int,
        hidden_width: int,
        encoder: EncoderBuilder | None = None,
        distance: bool = False,
        direction: bool = False,
    ) -> None:
        super().__init__(width, encoder, distance, direction)
        self.head = nn.Linear(self.width, hidden_width)
        self.modifier = nn.Linear(self.width, hidden_width, bias=False)
        self.output = nn.Linear(hidden_width, 1, bias=False)

    def score_arcs(self, nodes: Tensor) -> Tensor:
        numbers = 3 * nodes.shape[1] ** 2 * self.head.out_features
        ends = self.head(nodes), self.modifier(nodes)
        return predict_in_parts(self._score_pairs, *ends, numbers=numbers)

    def _score_pairs(self, heads: Tensor, modifiers: Tensor) -> Tensor:
        return self.output(torch.tanh(heads[:, :, None] + modifiers[:, None])).squeeze(-1)


def build_mlp_scorer_v1(
    hidden_width: int = 64,
    encoder: EncoderBuilder | None = None,
    distance: bool = False,
    direction: bool = False,
) -> ScorerBuilder:
    """Return a builder of :class:`MlpScorer`; arguments as for :class:`ArcScorer`.

    Args:
        hidden_width: width of the hidden layer.
    """
    return arc_scorer_builder(MlpScorer, hidden_width, encoder, distance, direction)
