"""Projective dependency trees: arcs drawn above the sentence do not cross."""

from __future__ import annotations

from typing import ClassVar

from spacy_latent.structures.tree_sparsemap import SolvedTree


class ProjectiveTree(SolvedTree):
    """Dependency trees in which every token between a head and its modifier descends from the head.

    MAP is Eisner's algorithm (1996), sums are inside-outside on its charts, samples are drawn from
    the inside charts. All take O(n³) time and O(n²) memory. For arguments and shapes see
    :class:`~spacy_latent.structures.dependency.DependencyTree`.
    """

    crosses = False
    family: ClassVar[str] = "spacy_latent.kernels.spans.inside_outside:FAMILY"
