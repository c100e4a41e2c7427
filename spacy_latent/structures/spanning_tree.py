"""Non-projective dependency trees: spanning arborescences that grow from node 0."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from spacy_latent.structures.base import SparseSolution
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.tree_sparsemap import solve_dependency_trees


class SpanningTree(DependencyTree):
    """Dependency trees whose arcs may cross.

    MAP is Chu-Liu-Edmonds (O(n²)), sums are by the Matrix-Tree theorem (O(n³); Koo et al. 2007),
    samples by Wilson's algorithm (1996). For arguments and shapes see :class:`DependencyTree`.
    """

    family: ClassVar[str] = "spacy_latent.kernels.matrix_tree:FAMILY"

    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        prepared, lengths = self._read(scores, lengths)
        options = max_iter, tolerance, False
        return solve_dependency_trees(self, prepared, lengths, *options).cast(scores.dtype)
