"""Vector of each chosen token (rationales: Lei et al. 2016; Bastings et al. 2019)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import Composer, ComposerBuilder


class Selection(Composer):
    """Composition r_i = z_i v_i, or with ``unchosen`` z_i v_i + (1 − z_i) u, u a learned vector.

    A later component pools the vectors. Set ``residual = false`` in a ``LatentTok2Vec``, or else it
    also reads tokens that are not chosen.
    """

    parts = "items"

    def __init__(self, width: int, unchosen: bool = False) -> None:
        super().__init__()
        self.output_width = width
        self.unchosen = nn.Parameter(torch.randn(width) * 0.1) if unchosen else None

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        chosen = z.to(vectors.dtype).unsqueeze(-1)
        if self.unchosen is None:
            return chosen * vectors
        return chosen * vectors + (1 - chosen) * self.unchosen.to(vectors.dtype)


def build_selection_v1(unchosen: bool = False) -> ComposerBuilder:
    """Return a builder of :class:`Selection`, whose result has the width of the input.

    Args:
        unchosen: whether tokens that are not chosen have a learned vector in place of zeros.
    """
    return partial(Selection, unchosen=unchosen)
