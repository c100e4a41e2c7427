"""Arc scores by a bilinear form (Luong et al. 2015, their "general" score)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.arc_scorer import ArcScorer
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import EncoderBuilder


class BilinearScorer(ArcScorer):
    """Scores s[h, m] = hᵀ W m, with the token vectors themselves, or the encoder's."""

    def __init__(
        self,
        width: int,
        encoder: EncoderBuilder | None = None,
        distance: bool = False,
        direction: bool = False,
    ) -> None:
        super().__init__(width, encoder, distance, direction)
        self.weight = nn.Parameter(torch.empty(self.width, self.width))
        nn.init.xavier_uniform_(self.weight)

    def score_arcs(self, nodes: Tensor) -> Tensor:
        return nodes @ self.weight.to(nodes.dtype) @ nodes.transpose(1, 2)


def build_bilinear_scorer_v1(
    encoder: EncoderBuilder | None = None, distance: bool = False, direction: bool = False
) -> ScorerBuilder:
    """Return a builder of :class:`BilinearScorer`; arguments as for :class:`ArcScorer`."""
    return partial(BilinearScorer, encoder=encoder, distance=distance, direction=direction)
