"""Token vectors with the embedding of their latent tag added."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.layers.base import Composer, ComposerBuilder
from spacy_latent.layers.encoded_scorer import check_num_tags


class TagEmbedding(Composer):
    """Composition r_i = v_i + Σ_t q_i[t] E_t, with the (expected) tag q_i[t] = Σ_p z[i, p, t]."""

    parts = "transitions"

    def __init__(self, width: int, num_tags: int) -> None:
        super().__init__()
        self.output_width = width
        self.embedding = nn.Parameter(torch.randn(num_tags, width) / width**0.5)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        if z.shape[-1] != len(self.embedding):
            raise LatentError(
                f"{type(self).__name__}: num_tags is {len(self.embedding)}, but the scorer gives "
                f"scores for {z.shape[-1]} tags. Set num_tags of scorer and composer to the same "
                "number."
            )
        return vectors + self.tags(z).to(vectors.dtype) @ self.embedding.to(vectors.dtype)

    def tags(self, z: Tensor) -> Tensor:
        """Return (expected) tags ``(B, n, K)``."""
        return z.sum(2)


def build_tag_embedding_v1(num_tags: int = 8) -> ComposerBuilder:
    """Return a builder of :class:`TagEmbedding`, whose result has the width of the input.

    Args:
        num_tags: number of tags; the scorer's must be the same.
    """
    check_num_tags("TagEmbedding", num_tags)
    return partial(TagEmbedding, num_tags=num_tags)
