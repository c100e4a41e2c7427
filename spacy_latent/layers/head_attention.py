"""Attention to the head and the modifiers of each token (Liu and Lapata 2018)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width


class HeadAttention(Composer):
    """Composition r_i = tanh(W [v_i; p_i; c_i]) of each token's vector and those around it.

    p_i = Σ_h z[h, i] v_h is over heads, including the root, which has a vector of its own. c_i =
    Σ_m z[i, m] v_m is over modifiers.
    """

    parts = "arcs"

    def __init__(self, width: int, output_width: int | None) -> None:
        super().__init__()
        self.output_width = output_width or width
        self.root = nn.Parameter(torch.randn(width) * 0.1)
        self.output = nn.Linear(3 * width, self.output_width)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        arcs = z.to(vectors.dtype)
        root = self.root.to(vectors.dtype).expand(vectors.shape[0], 1, -1)
        heads = arcs[:, :, 1:].transpose(1, 2) @ torch.cat([root, vectors], 1)
        modifiers = arcs[:, 1:, 1:] @ vectors
        return torch.tanh(self.output(torch.cat([vectors, heads, modifiers], -1)))


def build_head_attention_v1(output_width: int | None = None) -> ComposerBuilder:
    """Return a builder of :class:`HeadAttention`.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("HeadAttention", output_width)
    return partial(HeadAttention, output_width=output_width)
