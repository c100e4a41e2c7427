"""k of n items, or at most k: rationales, budgets."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.base import SparseSolution, Structure
from spacy_latent.structures.items import ItemSet, decompose

FAMILY = "spacy_latent.kernels.subsets:FAMILY"


class KOfN(ItemSet):
    """Subsets of k items. Scores ``(B, N)``; lengths ``(B,)``. Where fewer than k items are there,
    k is their number.

    k: how many.
    exactly: just k; else any number up to k, of which MAP takes those with scores above 0.

    Sums are elementary symmetric polynomials, O(n·k) on logarithms; SparseMAP is the projection on
    the capped simplex, O(n log n), with subsets from systematic sampling as its support.
    """

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

    @property
    def _options(self) -> list[int]:
        return [self.k, int(self.exactly)]

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        from spacy_latent.kernels import operators

        return operators.best(scores, lengths, FAMILY, self._options).to(scores.dtype)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        from spacy_latent.kernels import operators

        return operators.log_partition(scores, lengths, FAMILY, self._options)

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        from spacy_latent.kernels import operators

        return operators.marginals(scores, lengths, FAMILY, self._options)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: object
    ) -> Tensor:
        from spacy_latent.kernels import operators

        drawn = operators.sample(
            scores,
            lengths,
            FAMILY,
            self._options,
            num_samples,
            generator,  # type: ignore[arg-type]
        )
        return drawn.to(scores.dtype)

    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Exact; the last two arguments have no effect."""
        from spacy_latent.kernels.simplex import capped_simplex

        prepared, lengths = self.prepare(scores, lengths)
        mean = capped_simplex(prepared, lengths, self.k, self.exactly, self.name)
        return decompose(mean.to(scores.dtype))
