"""Base of arc scorers: the root's vector, an encoder of the context, and position terms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
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


class ArcScorer(EncodedScorer):
    """Scores ``(B, n+1, n+1)``, [head, modifier], with a learned vector for the root, node 0.

    Args:
        encoder: builder of a module that gives the context of each token to the scorer alone. The
            module maps ``(B, n, d)`` and lengths ``(B,)`` to ``(B, n, output_width)``.
        distance: whether to add a learned bias for the distance of head and modifier, in powers of
            two.
        direction: whether to add a learned bias for heads before their modifier.
    """

    parts = "arcs"

    def __init__(
        self, width: int, encoder: EncoderBuilder | None, distance: bool, direction: bool
    ) -> None:
        super().__init__(width, encoder)
        self.root = nn.Parameter(torch.randn(self.width) * 0.1)
        self.distance_bias = nn.Parameter(torch.zeros(DISTANCE_BUCKETS)) if distance else None
        self.direction_bias = nn.Parameter(torch.zeros(())) if direction else None

    @abstractmethod
    def score_arcs(self, nodes: Tensor) -> Tensor:
        """Return the score of each arc [head, modifier].

        Args:
            nodes: ``(B, n+1, width)``, the root first.

        Returns:
            ``(B, n+1, n+1)`` in the dtype of ``nodes``.
        """

    def nodes(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return node vectors ``(B, n+1, width)``: the root, then the encoded tokens."""
        vectors = self.encode(vectors, lengths)
        root = self.root.to(vectors.dtype).expand(vectors.shape[0], 1, -1)
        return torch.cat([root, vectors], 1)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        return self.score_nodes(self.nodes(vectors, lengths))

    def score_nodes(self, nodes: Tensor) -> Tensor:
        """Return the scores of :meth:`score_arcs`, with the biases for positions."""
        scores = self.score_arcs(nodes)
        if self.distance_bias is None and self.direction_bias is None:
            return scores
        return scores + self._position(scores)

    def _position(self, scores: Tensor) -> Tensor:
        node = torch.arange(scores.shape[-1], device=scores.device)
        offset = node[None, :] - node[:, None]
        bias = scores.new_zeros(offset.shape)
        if self.distance_bias is not None:
            bias = bias + self.distance_bias[distance_buckets(offset.abs())]
        if self.direction_bias is not None:
            bias = bias + torch.where(offset > 0, self.direction_bias, 0.0)
        # The root has no position in the text.
        return torch.where(node[:, None] == 0, torch.zeros_like(bias), bias)


def arc_scorer_builder(
    kind: type[ArcScorer],
    hidden_width: int,
    encoder: EncoderBuilder | None,
    distance: bool,
    direction: bool,
) -> ScorerBuilder:
    """Return a builder of a scorer with hidden layers; arguments as for :class:`ArcScorer`."""
    check_hidden_width(kind.__name__, hidden_width)
    make: Callable[..., ArcScorer] = kind
    return partial(
        make, hidden_width=hidden_width, encoder=encoder, distance=distance, direction=direction
    )
