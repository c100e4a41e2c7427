"""Average, for each token, over the spans that contain it, hard or soft."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width


class SpanAttention(Composer):
    """Composition r_t = tanh(W [v_t; a_t]) of each token's vector and its spans.

    a_t = Σ z[i, j] s_ij / Σ z[i, j] over spans i ≤ t ≤ j, with s_ij = [v_i; v_j; mean of v_i …
    v_j]. The divisor is at least 1, for tokens that may be in no span.

    These representations are linear in the vectors. So cumulative sums of z give each token's
    weight in each average. This takes O(n²) memory; all n² representations would take O(n²·width).
    """

    parts = "spans"

    def __init__(self, width: int, output_width: int | None) -> None:
        super().__init__()
        self.output_width = output_width or width
        self.output = nn.Linear(4 * width, self.output_width)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        averages = span_averages(vectors, z.to(vectors.dtype))
        return torch.tanh(self.output(torch.cat([vectors, averages], -1)))


def span_averages(vectors: Tensor, z: Tensor) -> Tensor:
    """Return the averages a of :class:`SpanAttention`, ``(B, n, 3·width)``."""
    spans = z.triu()
    token = torch.arange(z.shape[-1], device=z.device)
    size = (token[None, :] - token[:, None] + 1).clamp_min(1)
    # [i, t]: spans that begin at i and contain t. [t, j]: spans that contain t and end at j.
    beginning, ending = _from(spans).triu(), spans.cumsum(1).triu()
    # [s, t], s ≤ t: spans that contain both, each divided by its size.
    both = _from(spans / size).cumsum(1).triu()
    sharing = both + both.triu(1).transpose(1, 2)
    total = beginning.sum(1).unsqueeze(-1)
    sums = [beginning.transpose(1, 2) @ vectors, ending @ vectors, sharing @ vectors]
    return torch.cat(sums, -1) / total.clamp_min(1)


def _from(spans: Tensor) -> Tensor:
    """Return the sums of z[i, j] over j ≥ t, [i, t]."""
    return spans.flip(2).cumsum(2).flip(2)


def build_span_attention_v1(output_width: int | None = None) -> ComposerBuilder:
    """Return a builder of :class:`SpanAttention`.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("SpanAttention", output_width)
    return partial(SpanAttention, output_width=output_width)
