"""Scores of labelled segments from their first and last token (compare Kong et al. 2016)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import check_whole
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import (
    EncodedScorer,
    EncoderBuilder,
    check_hidden_width,
    check_num_tags,
)


class SegmentScorer(EncodedScorer):
    """Scores ``(B, n, L, K)``, [first token, length − 1, label].

    s[i, l, k] = w_k·tanh(F v_i + G v_{i+l} + b_l). Memory is O(n·L·hidden_width). An entry that
    would end beyond the sentence is no segment, whatever its score.
    """

    parts = "segments"

    def __init__(
        self,
        width: int,
        num_tags: int,
        max_length: int,
        hidden_width: int,
        encoder: EncoderBuilder | None = None,
    ) -> None:
        super().__init__(width, encoder)
        self.first = nn.Linear(self.width, hidden_width, bias=False)
        self.last = nn.Linear(self.width, hidden_width, bias=False)
        self.length_bias = nn.Parameter(torch.zeros(max_length, hidden_width))
        self.output = nn.Linear(hidden_width, num_tags)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        vectors = self.encode(vectors, lengths)
        token = torch.arange(vectors.shape[1], device=vectors.device)
        extra = torch.arange(len(self.length_bias), device=vectors.device)
        ends = (token[:, None] + extra).clamp_max(max(vectors.shape[1] - 1, 0))
        pairs = self.first(vectors).unsqueeze(2) + self.last(vectors)[:, ends]
        return self.output(torch.tanh(pairs + self.length_bias))


def build_segment_scorer_v1(
    num_tags: int = 4,
    max_length: int = 6,
    hidden_width: int = 64,
    encoder: EncoderBuilder | None = None,
) -> ScorerBuilder:
    """Return a builder of :class:`SegmentScorer`.

    Args:
        num_tags: number K of labels; the composer's must be the same.
        max_length: largest number L of tokens of a segment.
        hidden_width: width of the hidden layer.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_num_tags("SegmentScorer", num_tags)
    check_hidden_width("SegmentScorer", hidden_width)
    check_whole("SegmentScorer", max_length=max_length)
    return partial(
        SegmentScorer,
        num_tags=num_tags,
        max_length=max_length,
        hidden_width=hidden_width,
        encoder=encoder,
    )
