"""Prior without any preference."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spacy_latent.layers.generative import Prior, PriorBuilder
from spacy_latent.structures.base import Structure


class UniformPrior(Prior):
    """Prior under which all structures of a text have the same probability."""

    def __init__(self, structure: Structure) -> None:
        super().__init__()

    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return torch.zeros_like(scores, requires_grad=False)


def build_uniform_prior_v1() -> PriorBuilder:
    """Build a prior for any structure. It has no settings."""
    return partial(UniformPrior)
