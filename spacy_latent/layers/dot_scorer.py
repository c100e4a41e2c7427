"""Arc scores by scaled dot products (Vaswani et al. 2017, equation 1)."""

from __future__ import annotations

from torch import Tensor, nn

from spacy_latent.layers.arc_scorer import ArcScorer, arc_scorer_builder
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import EncoderBuilder


class DotScorer(ArcScorer):
    """Scores s[h, m] = (U h)·(V m) / √hidden_width."""

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

    def score_arcs(self, nodes: Tensor) -> Tensor:
        heads, modifiers = self.head(nodes), self.modifier(nodes)
        return heads @ modifiers.transpose(1, 2) / heads.shape[-1] ** 0.5


def build_dot_scorer_v1(
    hidden_width: int = 64,
    encoder: EncoderBuilder | None = None,
    distance: bool = False,
    direction: bool = False,
) -> ScorerBuilder:
    """Return a builder of :class:`DotScorer`; arguments as for :class:`ArcScorer`.

    Args:
        hidden_width: width of each role's projection.
    """
    return arc_scorer_builder(DotScorer, hidden_width, encoder, distance, direction)
