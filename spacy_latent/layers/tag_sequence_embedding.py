"""Token vectors with the embedding of their latent tag added, for parts that are tags."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.layers.base import ComposerBuilder
from spacy_latent.layers.encoded_scorer import check_num_tags
from spacy_latent.layers.tag_embedding import TagEmbedding


class TagSequenceEmbedding(TagEmbedding):
    """Composition r_i = v_i + Σ_t z[i, t] E_t: :class:`TagEmbedding` for parts that are tags."""

    parts = "tags"

    def tags(self, z: Tensor) -> Tensor:
        return z


def build_tag_sequence_embedding_v1(num_tags: int = 8) -> ComposerBuilder:
    """Return a builder of :class:`TagSequenceEmbedding`, whose result has the width of the input.

    Args:
        num_tags: number of tags; the scorer's must be the same.
    """
    check_num_tags("TagSequenceEmbedding", num_tags)
    return partial(TagSequenceEmbedding, num_tags=num_tags)
