"""Non-projective dependency trees: spanning arborescences that grow from node 0."""

from __future__ import annotations

from spacy_latent.structures.dependency import DependencyTree


class SpanningTree(DependencyTree):
    """Dependency trees whose arcs may cross.

    MAP is Chu-Liu-Edmonds (O(n²)), sums are by the Matrix-Tree theorem (O(n³); Koo et al. 2007),
    samples by Wilson's algorithm (1996). For arguments and shapes see :class:`DependencyTree`.
    """
