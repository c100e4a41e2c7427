"""Biaffine scores of spans from their first and last token (Stern et al. 2017; Yu et al. 2020)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import (
    DISTANCE_BUCKETS,
    EncodedScorer,
    EncoderBuilder,
    check_hidden_width,
    distance_buckets,
)


class SpanScorer(EncodedScorer):
    """Scores ``(B, n, n)``, [first, last], of spans.

    s[i, j] = [F(v_i); 1]ᵀ W [L(v_j); 1] + b[j − i + 1], with one hidden layer for each role.
    Entries with first after last are no spans.

    Args:
        span_width: whether there is the learned bias b for the number of tokens, in powers of two.
    """

    parts = "spans"

    def __init__(
        self,
        width: int,
        hidden_width: int,
        encoder: EncoderBuilder | None = None,
        span_width: bool = False,
    ) -> None:
        super().__init__(width, encoder)
        self.first = nn.Linear(self.width, hidden_width)
        self.last = nn.Linear(self.width, hidden_width)
        self.weight = nn.Parameter(torch.empty(hidden_width + 1, hidden_width + 1))
        nn.init.xavier_uniform_(self.weight)
        self.width_bias = nn.Parameter(torch.zeros(DISTANCE_BUCKETS)) if span_width else None

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        vectors = self.encode(vectors, lengths)
        one = vectors.new_ones(*vectors.shape[:2], 1)
        first = torch.cat([torch.relu(self.first(vectors)), one], -1)
        last = torch.cat([torch.relu(self.last(vectors)), one], -1)
        scores = first @ self.weight.to(first.dtype) @ last.transpose(1, 2)
        if self.width_bias is None:
            return scores
        token = torch.arange(scores.shape[-1], device=scores.device)
        return scores + self.width_bias[distance_buckets(token[None, :] - token[:, None] + 1)]


def build_span_scorer_v1(
    hidden_width: int = 64, encoder: EncoderBuilder | None = None, span_width: bool = False
) -> ScorerBuilder:
    """Return a builder of :class:`SpanScorer`, which describes ``span_width``.

    Args:
        hidden_width: width of each role's hidden layer.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_hidden_width("SpanScorer", hidden_width)
    return partial(SpanScorer, hidden_width=hidden_width, encoder=encoder, span_width=span_width)
