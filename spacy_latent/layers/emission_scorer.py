"""Scores of the tags of each token, independent of its neighbours' tags."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import (
    EncodedScorer,
    EncoderBuilder,
    check_hidden_width,
    check_num_tags,
    perceptron,
)


class EmissionScorer(EncodedScorer):
    """Scores ``(B, n, K)``, [token, tag], linear or, with ``hidden_width``, by a perceptron."""

    parts = "tags"

    def __init__(
        self,
        width: int,
        num_tags: int,
        hidden_width: int | None = None,
        encoder: EncoderBuilder | None = None,
    ) -> None:
        super().__init__(width, encoder)
        self.emission = perceptron(self.width, hidden_width, num_tags)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        return self.emission(self.encode(vectors, lengths))


def build_emission_scorer_v1(
    num_tags: int = 8, hidden_width: int | None = None, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """Return a builder of :class:`EmissionScorer`.

    Args:
        num_tags: number K of tags; the composer's must be the same.
        hidden_width: width of the hidden layer; None for a linear scorer.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_num_tags("EmissionScorer", num_tags)
    check_hidden_width("EmissionScorer", hidden_width)
    return partial(EmissionScorer, num_tags=num_tags, hidden_width=hidden_width, encoder=encoder)
