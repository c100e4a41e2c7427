"""Prior over trees by the distance and direction of words from their heads."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair
from spacy_latent.layers.encoded_scorer import DISTANCE_BUCKETS, distance_buckets
from spacy_latent.layers.generative import Prior, PriorBuilder
from spacy_latent.structures.base import Structure


class LearnedArcPrior(Prior):
    """Trained score for each distance of a word from its head, in powers of two.

    Words to the left and to the right of their head have separate scores.

    Arcs from the root have 0. All scores are initially 0, as in UniformPrior.
    """

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        if structure.parts != "arcs":
            raise IncompatiblePair(
                "LearnedArcPrior",
                structure.name,
                f"it scores arcs, and this structure is made of {structure.parts}",
                "UniformPrior, LearnedPrior for items, or a structure of arcs such as SpanningTree",
            )
        self.scores = nn.Parameter(torch.zeros(2, DISTANCE_BUCKETS))

    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        node = torch.arange(scores.shape[-1], device=scores.device)
        offset = node - node[:, None]
        own = self.scores[(offset > 0).long(), distance_buckets(offset.abs())]
        own = torch.where(node[:, None] == 0, 0.0, own)
        return own.to(scores.dtype).expand_as(scores)


def build_learned_arc_prior_v1() -> PriorBuilder:
    """Build a prior for structures of arcs. It has no settings."""
    return partial(LearnedArcPrior)
