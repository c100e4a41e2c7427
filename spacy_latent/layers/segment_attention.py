"""Average, for each token, over the segments that may contain it, and their labels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spacy_latent.errors import LatentError
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width
from spacy_latent.layers.encoded_scorer import check_num_tags
from spacy_latent.layers.span_attention import span_averages


class SegmentAttention(Composer):
    """Composition r_t = tanh(W [v_t; a_t; q_t]) of each token's vector, segment and label.

    a_t is the (expected) representation of t's segment, as in :class:`SpanAttention`. q_t[k] = Σ
    z[i, l, k] over segments i ≤ t ≤ i + l is its label.
    """

    parts = "segments"

    def __init__(self, width: int, num_tags: int, output_width: int | None) -> None:
        super().__init__()
        self.output_width = output_width or width
        self.num_tags = num_tags
        self.output = nn.Linear(4 * width + num_tags, self.output_width)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        if z.shape[-1] != self.num_tags:
            raise LatentError(
                f"SegmentAttention: num_tags is {self.num_tags}, but the scorer gives scores for "
                f"{z.shape[-1]} labels. Set num_tags of scorer and composer to the same number."
            )
        z = z.to(vectors.dtype)
        size, longest = z.shape[1], min(z.shape[2], z.shape[1])
        # [i, l, k]: segments that begin at i and contain token i + l: they have more than l tokens.
        holding = z.flip(2).cumsum(2).flip(2)
        labels, spans = torch.zeros_like(z[:, :, 0]), z.new_zeros(len(z), size, size)
        for extra in range(longest):
            # Shift the values to the token i + l, with zeros before it.
            labels = labels + pad(holding[:, : size - extra, extra], (0, 0, extra, 0))
            spans = spans + torch.diag_embed(z[:, : size - extra, extra].sum(-1), offset=extra)
        averages = span_averages(vectors, spans)
        return torch.tanh(self.output(torch.cat([vectors, averages, labels], -1)))


def build_segment_attention_v1(
    num_tags: int = 4, output_width: int | None = None
) -> ComposerBuilder:
    """Return a builder of :class:`SegmentAttention`.

    Args:
        num_tags: number of tags; the scorer's must be the same.
        output_width: width of the result; None for the input's width.
    """
    check_num_tags("SegmentAttention", num_tags)
    check_output_width("SegmentAttention", output_width)
    return partial(SegmentAttention, num_tags=num_tags, output_width=output_width)
