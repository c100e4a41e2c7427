"""One score for each token, for its choice (compare Lei et al. 2016, section 4)."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import (
    EncodedScorer,
    EncoderBuilder,
    check_hidden_width,
    perceptron,
)


class ItemScorer(EncodedScorer):
    """Scores ``(B, n)``: s[i] = w·v_i + b, or with ``hidden_width`` w·tanh(U v_i + c) + b."""

    parts = "items"

    def __init__(
        self, width: int, hidden_width: int | None = None, encoder: EncoderBuilder | None = None
    ) -> None:
        super().__init__(width, encoder)
        self.output = perceptron(self.width, hidden_width, 1)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        return self.output(self.encode(vectors, lengths)).squeeze(-1)


def build_item_scorer_v1(
    hidden_width: int | None = None, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """Return a builder of :class:`ItemScorer`.

    Args:
        hidden_width: width of the hidden layer; None for a linear scorer.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_hidden_width("ItemScorer", hidden_width)
    return partial(ItemScorer, hidden_width=hidden_width, encoder=encoder)
