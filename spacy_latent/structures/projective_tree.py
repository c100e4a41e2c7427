"""Projective dependency trees: arcs drawn above the sentence do not cross."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.structures.base import SparseSolution
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.tree_sparsemap import solve_dependency_trees


class ProjectiveTree(DependencyTree):
    """Dependency trees in which every token between a head and its modifier descends from the head.

    MAP is Eisner's algorithm (1996), sums are inside-outside on its charts, samples are drawn from
    the inside charts. All take O(n³) time and O(n²) memory. For arguments and shapes see
    :class:`DependencyTree`.
    """

    crosses = False
    family: ClassVar[str] = "spacy_latent.kernels.spans.inside_outside:FAMILY"

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        prepared, lengths = self._read(scores, lengths)
        solution = solve_dependency_trees(self, prepared, lengths, max_iter, tolerance)
        return solution.cast(scores.dtype)
