"""Biaffine arc scores with the direction and distance of the head."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.biaffine_scorer import BiaffineScorer
from spacy_latent.layers.encoded_scorer import (
    DISTANCE_BUCKETS,
    EncoderBuilder,
    check_hidden_width,
    distance_buckets,
)


class RelativeBiaffineScorer(BiaffineScorer):
    """Scores s[h, m] + P(U(h))[m − h] + Q(V(m))[m − h], with s of :class:`BiaffineScorer`.

    P and Q are terms of the head and of the modifier, for the direction and the distance between
    them, in powers of two.

    For example, an article's head is the next noun to its right. A product of vectors alone cannot
    distinguish this noun from others, and a bias for distance is the same for articles and verbs.
    Relative positions are as in Shaw et al. (2018). Qi et al. (2018) show that order and distance
    improve a parser, but model them in another way. Arcs from the root have no such terms.
    """

    def __init__(
        self, width: int, hidden_width: int, encoder: EncoderBuilder | None = None
    ) -> None:
        super().__init__(width, hidden_width, encoder)
        self.position_of_head = nn.Linear(hidden_width, 2 * DISTANCE_BUCKETS)
        self.position_of_modifier = nn.Linear(hidden_width, 2 * DISTANCE_BUCKETS)

    def score_pairs(self, heads: Tensor, modifiers: Tensor) -> Tensor:
        batch, size, _ = heads.shape
        node = torch.arange(size, device=heads.device)
        offset = node[None, :] - node[:, None]
        place = distance_buckets(offset.abs()) + DISTANCE_BUCKETS * (offset < 0)
        place = place.expand(batch, -1, -1)
        of_head = self.position_of_head(heads).gather(2, place)
        of_modifier = self.position_of_modifier(modifiers).gather(2, place.transpose(1, 2))
        terms = of_head + of_modifier.transpose(1, 2)
        return super().score_pairs(heads, modifiers) + torch.where(node[:, None] == 0, 0.0, terms)


def build_relative_biaffine_scorer_v1(
    hidden_width: int = 64, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """Return a builder of :class:`RelativeBiaffineScorer`.

    Args:
        hidden_width: width of each role's hidden layer.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_hidden_width("RelativeBiaffineScorer", hidden_width)
    return partial(RelativeBiaffineScorer, hidden_width=hidden_width, encoder=encoder)
