"""A prior that knows nothing."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spacy_latent.layers.generative import Prior, PriorBuilder
from spacy_latent.structures.base import Structure


class UniformPrior(Prior):
    """Every structure of a text is as likely as any other."""

    def __init__(self, structure: Structure) -> None:
        super().__init__()

    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return torch.zeros_like(scores, requires_grad=False)


def build_uniform_prior_v1() -> PriorBuilder:
    return partial(UniformPrior)
