"""Prior that is trained together with the model."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, check_whole
from spacy_latent.layers.generative import Prior, PriorBuilder
from spacy_latent.structures.base import Structure


class LearnedPrior(Prior):
    """Trained score for each item by its place, from the first.

    Items beyond the last place share its score. All scores are initially 0, as in UniformPrior.
    """

    def __init__(self, structure: Structure, places: int = 64) -> None:
        super().__init__()
        if structure.parts != "items":
            raise IncompatiblePair(
                "LearnedPrior",
                structure.name,
                f"it scores items, and this structure is made of {structure.parts}",
                "UniformPrior, or a structure of items such as OneOfN, KOfN or Bits",
            )
        self.scores = nn.Parameter(torch.zeros(places))

    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        place = torch.arange(scores.shape[1], device=scores.device)
        own = self.scores[place.clamp_max(len(self.scores) - 1)]
        return own.to(scores.dtype).expand_as(scores)


def build_learned_prior_v1(places: int = 64) -> PriorBuilder:
    """Return a builder of :class:`LearnedPrior`.

    Args:
        places: number of items with a score of their own; 1 for a score that all items share, for
            example to learn the share of bits that are 1.
    """
    check_whole("LearnedPrior", places=places)
    return partial(LearnedPrior, places=places)
