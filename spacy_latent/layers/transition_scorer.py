"""Scores of tags and adjacent pairs of tags, as in a CRF (Lafferty et al. 2001)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import (
    EncodedScorer,
    EncoderBuilder,
    check_hidden_width,
    check_num_tags,
    perceptron,
)


class TransitionScorer(EncodedScorer):
    """Scores ``(B, n, K, K)``, [position, previous tag, tag]: s[i, p, t] = e(v_i)[t] + A[p, t].

    Emissions e are linear, or with ``hidden_width`` a perceptron. The first tag has no previous
    tag, so position 0 has a learned score for each tag in place of A. This score is the same in all
    rows, of which structures only read the first.
    """

    parts = "transitions"

    def __init__(
        self,
        width: int,
        num_tags: int,
        hidden_width: int | None = None,
        encoder: EncoderBuilder | None = None,
    ) -> None:
        super().__init__(width, encoder)
        self.emission = perceptron(self.width, hidden_width, num_tags)
        self.transition = nn.Parameter(torch.randn(num_tags, num_tags) * 0.1)
        self.start = nn.Parameter(torch.zeros(num_tags))

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        emissions = self.emission(self.encode(vectors, lengths)).unsqueeze(2)
        first = (emissions[:, :1] + self.start).expand(-1, -1, len(self.start), -1)
        return torch.cat([first, emissions[:, 1:] + self.transition], 1)


def build_transition_scorer_v1(
    num_tags: int = 8, hidden_width: int | None = None, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """Return a builder of :class:`TransitionScorer`.

    Args:
        num_tags: number K of tags; the composer's must be the same.
        hidden_width: width of the hidden layer of emissions; None for linear emissions.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_num_tags("TransitionScorer", num_tags)
    check_hidden_width("TransitionScorer", hidden_width)
    return partial(TransitionScorer, num_tags=num_tags, hidden_width=hidden_width, encoder=encoder)
