"""Binary constituency trees."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.base import Structure

FAMILY = "spacy_latent.kernels.constituency:FAMILY"


class ConstituencyTree(Structure):
    """Binary bracketings of n words. Scores ``(B, N, N)`` of spans, ``[b, first word, last word]``,
    of which those with first ≤ last are parts; lengths ``(B,)``, each at most N.

    A tree has 2n − 1 spans: every word, the whole, and each span but a word is two spans of the
    tree side by side. Of no words there is one tree, the empty one.

    MAP is CKY, sums are inside-outside (Baker 1979), samples are drawn from the inside chart; all
    O(n³) time and O(n²) memory.
    """

    part_axes: ClassVar[int] = 2
    parts: ClassVar[str] = "spans"
    annotation: ClassVar[str] = "parts"
    tractable = frozenset({"log_partition", "marginals", "sample", "entropy", "log_prob"})

    def prepare(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        # The kernels read lengths and constraints themselves, and check what they read.
        scores, lengths = self.check_types(scores, lengths)
        if scores.shape[1] != scores.shape[2] or lengths.dim() != 1:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)} and lengths "
                f"{tuple(lengths.shape)}; expected (B, N, N) and (B,)."
            )
        if lengths.numel():
            low, high = lengths.min().item(), lengths.max().item()
            if low < 0 or high > scores.shape[1]:
                raise InvalidScores(
                    f"{self.name}: lengths lie between {low} and {high}, but scores of shape "
                    f"{tuple(scores.shape)} have room for 0 to {scores.shape[1]} words."
                )
        return scores, lengths

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        word = torch.arange(scores.shape[-1], device=scores.device)
        inside = word[None] < lengths.to(scores.device)[:, None]
        return (word[:, None] <= word)[None] & inside[:, None]

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        from spacy_latent.kernels import operators

        return _indicate(operators.best(scores, lengths, FAMILY, []), scores, lengths)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        from spacy_latent.kernels import operators

        return operators.log_partition(scores, lengths, FAMILY, [])

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        from spacy_latent.kernels import operators

        return operators.marginals(scores, lengths, FAMILY, [])

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        from spacy_latent.kernels import operators

        spans = operators.sample(scores, lengths, FAMILY, [], num_samples, generator)
        z = _indicate(spans.flatten(0, 1), scores, lengths.repeat(num_samples))
        return z.unflatten(0, (num_samples, scores.shape[0]))

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """The spans of the tree, ``(2n − 1, 2)`` int32, first and last word, ordered by these."""
        return np.argwhere(np.triu(z[:length, :length]) > 0.5).astype("int32")

    def encode(self, gold: np.ndarray, length: int) -> np.ndarray:
        z = np.zeros((length, length), dtype="float32")
        z[tuple(np.asarray(gold, dtype="int64").reshape(-1, 2).T)] = 1.0
        return z


def _indicate(spans: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """0/1 spans ``(B, N, N)`` in the dtype of ``scores`` from those of more than a word ``(B, N,
    2)``, −1 for none, and all words."""
    batch, size = spans.shape[0], scores.shape[1]
    z = scores.new_zeros((batch, size, size))
    if not size:
        return z
    word = torch.arange(size, device=scores.device)
    z[:, word, word] = (word < lengths.to(scores.device)[:, None]).to(z.dtype)
    item, place = (spans[:, :, 0] >= 0).nonzero(as_tuple=True)
    first, last = spans[item, place].long().unbind(-1)
    z[item, first, last] = 1.0
    return z
