"""k of n items, or at most k: rationales, budgets."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.base import SparseSolution, Structure
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.items import ItemSet, decompose

FAMILY = "spacy_latent.kernels.subsets:FAMILY"


class KOfN(ItemSet, CompiledStructure):
    """Subsets of k items. Scores ``(B, N)``; lengths ``(B,)``. Where fewer than k items are there,
    k is their number.

    k: how many.
    exactly: just k; else any number up to k, of which MAP takes those with scores above 0.

    Sums are elementary symmetric polynomials, O(n·k) on logarithms; SparseMAP is the projection on
    the capped simplex, O(n log n), with subsets from systematic sampling as its support.
    """

    family: ClassVar[str] = FAMILY

    def __init__(self, k: int = 5, exactly: bool = True) -> None:
        if k < 1:
            raise InvalidScores(f"{self.name}: k is {k}; expected at least 1.")
        self.k = k
        self.exactly = exactly

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, KOfN):
            return super().covers(other)
        if self.exactly:
            # Of a text of fewer words than either k, both choose all.
            return other.exactly and self.k == other.k
        return self.k >= other.k

    def _options(self, scores: Tensor) -> list[int]:
        return [self.k, int(self.exactly)]

    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Exact; the last two arguments have no effect."""
        from spacy_latent.kernels.simplex import capped_simplex

        prepared, lengths = self._read(scores, lengths)
        mean = capped_simplex(prepared, lengths, self.k, self.exactly, self.name)
        return decompose(mean.to(scores.dtype))
