"""Token vectors with the embedding of their latent tag added, for structures of tags alone."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.layers.base import ComposerBuilder
from spacy_latent.layers.encoded_scorer import check_num_tags
from spacy_latent.layers.tag_embedding import TagEmbedding


class TagSequenceEmbedding(TagEmbedding):
    """r_i = v_i + Σ_t z[i, t] E_t: :class:`TagEmbedding` where parts are tags, not transitions."""

    parts = "tags"

    def tags(self, z: Tensor) -> Tensor:
        return z


def build_tag_sequence_embedding_v1(num_tags: int = 8) -> ComposerBuilder:
    """num_tags: that of the scorer. The width of the result is the input's."""
    check_num_tags("TagSequenceEmbedding", num_tags)
    return partial(TagSequenceEmbedding, num_tags=num_tags)
