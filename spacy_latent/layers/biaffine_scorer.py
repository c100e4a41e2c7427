"""Deep biaffine arc scores (Dozat and Manning 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spacy_latent.layers.arc_scorer import ArcScorer, arc_scorer_builder
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import EncoderBuilder


class BiaffineScorer(ArcScorer):
    """Scores s[h, m] = U(h)ᵀ W V(m) + U(h)ᵀ b.

    Each role has one hidden layer (their equation 6).
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
        self.modifier = nn.Linear(self.width, hidden_width)
        self.weight = nn.Parameter(torch.empty(hidden_width + 1, hidden_width))
        nn.init.xavier_uniform_(self.weight)

    def score_arcs(self, nodes: Tensor) -> Tensor:
        heads = torch.relu(self.head(nodes))
        modifiers = torch.relu(self.modifier(nodes))
        return self.score_pairs(heads, modifiers)

    def score_pairs(self, heads: Tensor, modifiers: Tensor) -> Tensor:
        """Return the score of each arc from the hidden vectors of both roles.

        Args:
            heads, modifiers: ``(B, n+1, hidden_width)``.

        Returns:
            ``(B, n+1, n+1)``, [head, modifier].
        """
        bias = modifiers.new_ones(*modifiers.shape[:2], 1)
        weighted = torch.cat([modifiers, bias], -1) @ self.weight.to(modifiers.dtype)
        return heads @ weighted.transpose(1, 2)


def build_biaffine_scorer_v1(
    hidden_width: int = 64,
    encoder: EncoderBuilder | None = None,
    distance: bool = False,
    direction: bool = False,
) -> ScorerBuilder:
    """Return a builder of :class:`BiaffineScorer`; arguments as for :class:`ArcScorer`.

    Args:
        hidden_width: width of each role's hidden layer.
    """
    return arc_scorer_builder(BiaffineScorer, hidden_width, encoder, distance, direction)
