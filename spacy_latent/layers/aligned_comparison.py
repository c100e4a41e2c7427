"""Comparison of each word with the words aligned with it (Parikh et al. 2016, section 3.2)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width
from spacy_latent.layers.two_texts import join_texts, split_texts


class AlignedComparison(Composer):
    """Comparison r = G([v; β; v − β; v ∘ β]) of each word, from token vectors of two texts.

    The texts follow each other, and lengths are ``(B, 2)``. β is Σ_j z[i, j] b_j for word i of the
    first text, and Σ_i z[i, j] a_i for word j of the second. It is divided by the sum of z if this
    is above 1. G is linear, relu, linear, relu, the same for both texts. A word without any
    alignment has β = 0.
    """

    parts = "cells"

    def __init__(self, width: int, output_width: int | None) -> None:
        super().__init__()
        self.output_width = output_width or width
        self.compare = nn.Sequential(
            nn.Linear(4 * width, self.output_width),
            nn.ReLU(),
            nn.Linear(self.output_width, self.output_width),
            nn.ReLU(),
        )

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        first, second = split_texts(vectors, lengths, type(self).__name__)
        # The batch may be a part of the batch for which z was computed.
        cells = z.to(vectors.dtype)[:, : first.shape[1], : second.shape[1]]
        of_first = cells @ second / cells.sum(2, keepdim=True).clamp_min(1.0)
        turned = cells.transpose(1, 2)
        of_second = turned @ first / turned.sum(2, keepdim=True).clamp_min(1.0)
        other = join_texts(of_first, of_second, lengths, vectors.shape[1])
        return self.compare(torch.cat([vectors, other, vectors - other, vectors * other], -1))


def build_aligned_comparison_v1(output_width: int | None = None) -> ComposerBuilder:
    """Return a builder of :class:`AlignedComparison`.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("AlignedComparison", output_width)
    return partial(AlignedComparison, output_width=output_width)
