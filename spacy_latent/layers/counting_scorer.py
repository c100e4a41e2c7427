"""What scorers by learned counters share: running sums, and pairs of places seen through them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.layers.encoded_scorer import EncodedScorer, EncoderBuilder


class CountingScorer(EncodedScorer):
    """Token i adds u_i = tanh(U v_i), between −1 and 1, to each of K counters: after it they are at
    c_i = u_1 + … + u_i, before the first token at 0."""

    counts = True

    def __init__(self, width: int, counters: int, encoder: EncoderBuilder | None) -> None:
        super().__init__(width, encoder)
        self.step = nn.Linear(self.width, counters)

    def counters(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Where they are after each token, ``(B, n, K)``; what stands at padding means nothing."""
        return torch.tanh(self.step(self.read(vectors, lengths))).cumsum(1)

    def read(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Encoded vectors, 0 at padding: what stands there would reach the weights' gradients."""
        vectors = self.encode(vectors, lengths)
        token = torch.arange(vectors.shape[1], device=vectors.device)
        return vectors.masked_fill((token >= lengths[:, None].to(token.device))[..., None], 0.0)


def check_counters(name: str, counters: int) -> None:
    if counters < 1:
        raise LatentError(f"{name}: counters is {counters}; it must be at least 1.")
