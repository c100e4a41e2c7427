"""Prior over alignments by the positions of the words, as in IBM model 2."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair
from spacy_latent.layers.generative import Prior, PriorBuilder
from spacy_latent.structures.base import Structure

# Number of distance classes between 0 and the length of the texts.
STEPS = 10


class PositionPrior(Prior):
    """Trained score for each distance from the diagonal, in tenths of the texts' lengths.

    The distance is j/(m − 1) − i/(n − 1) for word i of n and word j of m, with its sign. All scores
    are initially 0, as in UniformPrior. In IBM model 2 each combination of i, j, n and m has a
    parameter (Brown et al. 1993), but most combinations never occur in a small corpus.
    """

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        if structure.parts != "cells":
            raise IncompatiblePair(
                "PositionPrior",
                structure.name,
                f"it scores pairs of words, and this structure is made of {structure.parts}",
                "UniformPrior, or a structure of pairs such as ManyToOneAlignment",
            )
        self.scores = nn.Parameter(torch.zeros(2 * STEPS + 1))

    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        sizes = lengths.to(scores.device)
        row, column = (
            torch.arange(scores.shape[1 + k], device=scores.device)
            / (sizes[:, k : k + 1] - 1).clamp_min(1)
            for k in (0, 1)
        )
        distance = (column[:, None] - row[:, :, None]).clamp(-1, 1)
        bucket = (STEPS * distance).round().long() + STEPS
        return self.scores[bucket].to(scores.dtype)


def build_position_prior_v1() -> PriorBuilder:
    """Build a prior for structures of pairs of words. It has no settings."""
    return partial(PositionPrior)
