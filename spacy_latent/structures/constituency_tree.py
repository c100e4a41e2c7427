"""Binary constituency trees."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.kernels.autograd import operators
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.structures.base import subtract_highest
from spacy_latent.structures.compiled import CompiledStructure


class ConstituencyTree(CompiledStructure):
    """Binary bracketings of n words.

    Scores are ``(B, N, N)`` of spans, ``[b, first word, last word]``. Entries with first ≤ last are
    parts. Lengths are ``(B,)``, each at most N.

    A tree has 2n − 1 spans: every word, the whole sentence, and others. Each span longer than a
    word consists of two adjacent spans of the tree. An item without words has one tree, the empty
    one.

    MAP is CKY, sums are inside-outside (Baker 1979), samples are drawn from the inside chart. All
    take O(n³) time and O(n²) memory.
    """

    part_axes: ClassVar[int] = 2
    parts: ClassVar[str] = "spans"
    annotation: ClassVar[str] = "parts"
    incomparable = True
    family: ClassVar[str] = "spacy_latent.kernels.spans.constituency:FAMILY"

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        if scores.shape[1] != scores.shape[2] or lengths.dim() != 1:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)} and lengths "
                f"{tuple(lengths.shape)}; expected (B, N, N) and (B,)."
            )
        lengths = self.check_lengths(lengths, scores.shape[1])
        return scores, lengths

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        word = torch.arange(scores.shape[-1], device=scores.device)
        inside = word[None] < lengths.to(scores.device)[:, None]
        return (word[:, None] <= word)[None] & inside[:, None]

    def _without_common_offset(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Subtract offsets of the scores of words, sentences and other spans.

        Every tree has all words, the whole sentence, and n − 2 other spans.
        """
        size = scores.shape[1]
        if not size:
            return scores
        parts = self.part_mask(scores, lengths)
        word = torch.arange(size, device=scores.device)
        last = lengths.to(scores.device)[:, None, None] - 1
        always = (word[:, None] == word) | ((word[:, None] == 0) & (word == last))
        own = torch.where(always & scores.isfinite(), scores.detach(), 0.0)
        between = subtract_highest(scores, parts & ~always, (0, 1))
        return torch.where(always, scores - own, between)

    @not_traced
    def log_partition_and_marginals(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, ``(B,)`` and ``(B, N, N)``, in the time of marginals; without gradients."""
        prepared, lengths = self._read(scores.detach(), lengths)
        reduced = self._reduced(prepared, lengths)
        given = prepared if reduced is None else reduced.scores
        total, mean = operators.log_partition_and_marginals(given, lengths, self.family, [])
        if reduced is not None:
            total = total + (mean * reduced.removed).flatten(1).sum(1)
        return total.to(scores.dtype), mean.to(scores.dtype)

    def _indicate(self, found: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return 0/1 spans ``(R, N, N)``: all words, and the given longer spans.

        The longer spans are ``(R, N, 2)``, padded with −1.
        """
        batch, size = found.shape[0], scores.shape[1]
        word = torch.arange(size, device=scores.device)
        first, last = found.long().unbind(-1)
        # Padding is written to an additional place. A mask by the number of spans would depend on
        # values, which tracing does not know.
        place = torch.where(first >= 0, first * size + last, size * size)
        z = found.new_zeros((batch, size * size + 1), dtype=scores.dtype).scatter_(1, place, 1.0)
        spans = z[:, :-1].view(batch, size, size)
        inside = word < lengths.to(scores.device)[:, None]
        return torch.where((word[:, None] == word) & inside[:, None], 1.0, spans)

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the spans of a tree by first and last word, sorted, ``(2n − 1, 2)`` int32."""
        return np.argwhere(np.triu(z[:length, :length]) > 0.5).astype("int32")
