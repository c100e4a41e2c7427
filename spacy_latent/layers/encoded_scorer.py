"""Base of scorers: an encoder that gives them, and only them, the context of each token."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from spacy_latent.errors import check_whole
from spacy_latent.layers.base import PartScorer

EncoderBuilder = Callable[[int], nn.Module]

# Distances 1, 2, 3-4, 5-8, ..., over 512.
DISTANCE_BUCKETS = 11


class EncodedScorer(PartScorer):
    """Scorer that reads token vectors through an encoder.

    Args:
        encoder: builder of a module that maps ``(B, n, d)`` and lengths ``(B,)`` to ``(B, n,
            output_width)``; None for the token vectors themselves.
    """

    def __init__(self, width: int, encoder: EncoderBuilder | None) -> None:
        super().__init__()
        self.encoder = None if encoder is None else encoder(width)
        self.width = width if self.encoder is None else int(self.encoder.output_width)  # type: ignore[arg-type]

    def encode(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return what the scorer reads, ``(B, n, width)``."""
        return vectors if self.encoder is None else self.encoder(vectors, lengths)


def distance_buckets(distance: Tensor) -> Tensor:
    """Return the index of the bucket of each distance, int64; distances below 1 count as 1."""
    bucket = (distance.clamp_min(1) - 1).float().add(0.5).log2().add(1).floor()
    return bucket.clamp(0, DISTANCE_BUCKETS - 1).long()


def perceptron(width: int, hidden_width: int | None, outputs: int) -> nn.Module:
    """Return a linear layer, or with ``hidden_width`` one hidden layer of tanh before it."""
    if hidden_width is None:
        return nn.Linear(width, outputs)
    return nn.Sequential(
        nn.Linear(width, hidden_width), nn.Tanh(), nn.Linear(hidden_width, outputs)
    )


def check_hidden_width(name: str, hidden_width: int | None) -> None:
    """Raise an error unless the width is a whole number above 0, or None."""
    check_whole(name, or_null=True, hidden_width=hidden_width)


def check_num_tags(name: str, num_tags: int) -> None:
    """Raise an error unless the number of tags is a whole number above 0."""
    check_whole(name, num_tags=num_tags)
