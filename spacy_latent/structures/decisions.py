"""Structures that are built by decisions, each with a probability given those before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, NotTractable, check_whole
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.structures.base import SparseSolution, Structure, TopK


class DecisionStructure(Structure):
    """Structures with scores of decisions. Only samples and log-probabilities are exact."""

    tractable = frozenset({"sample", "log_prob"})
    linear: ClassVar[bool] = False
    masks_itself: ClassVar[bool] = False
    # Unlike compiled structures, it has no kernels for sums over decisions.
    _log_partition, _marginals = Structure._log_partition, Structure._marginals

    @abstractmethod
    def _beam(self, scores: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return the structures of a beam search and their log-probabilities, best first.

        Returns:
            Structures ``(size, B, *parts)`` and log-probabilities ``(size, B)``, −inf for missing
            structures.
        """

    @not_traced
    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        """Return the best of a beam of k, with their log-probabilities as scores."""
        check_whole(f"{self.name}.top_k", error=InvalidScores, k=k)
        prepared, lengths = self._read(scores, lengths)
        with torch.no_grad():
            z, total = self._beam(prepared.detach(), lengths, k)
        return TopK(z, total).to(scores.dtype)

    def log_potential(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        return self.log_prob(z, scores, lengths)

    def sparsemap(self, *arguments: object, **options: object) -> SparseSolution:
        raise NotTractable(self.name, "sparsemap", self.advice)


class ParserRows(ABC):
    """State of R parsers, one row for each."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Replace the present rows by these, which may repeat."""


class KnownScores(ParserRows):
    """Scores that are known beforehand, for ``copies`` batches of parsers, one after another.

    Args:
        scores: ``(B, ...)``.
    """

    def __init__(self, scores: Tensor, copies: int = 1) -> None:
        self.scores = scores
        self.item = torch.arange(len(scores), device=scores.device).repeat(copies)

    def select(self, rows: Tensor) -> None:
        self.item = self.item[rows]


# Function from the log-odds or log-probabilities of a decision to the choice of each parser.
Choice = Callable[[Tensor], Tensor]


def widened(policy: ParserRows, lengths: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Give each item a beam of ``size`` adjacent rows, of which only the first has begun.

    Returns:
        The lengths of the rows ``(B·size,)``, their log-probabilities ``(B, size)`` float64, and
        the number of each item's first row ``(B, 1)``.
    """
    batch = len(lengths)
    rows = torch.arange(batch, device=lengths.device)
    policy.select(rows.repeat_interleave(size))
    total = torch.full((batch, size), -torch.inf, dtype=torch.float64, device=lengths.device)
    total[:, 0] = 0.0
    return lengths.repeat_interleave(size), total, size * rows[:, None]
