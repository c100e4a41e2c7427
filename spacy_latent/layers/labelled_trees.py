"""Sentence starts, arcs and their labels, from the same token vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from spacy_latent.layers.arc_labeller import ArcLabeller
from spacy_latent.layers.arc_scorer import ArcScorer
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import perceptron
from spacy_latent.structures.dependency import DependencyTree

START_WIDTH = 32


class LabelledTrees(nn.Module):
    """Distribution p(tree, labels) = p(tree) Π p(label | arc).

    p(tree) is determined by scores of arcs, and each arc has a distribution over labels. Its
    probabilities sum to one for every arc, so sums over labelled trees equal sums over trees.

    Args:
        scorer: scorer of arcs. If it is an :class:`ArcScorer`, its encoded vectors are the input of
            labels.
        labels: number of labels, without the label of roots, which is never predicted by scores.
        evidence: builder of the module that learns from sentences without heads, for the set of
            trees and the width.
    """

    def __init__(
        self,
        width: int,
        labels: int,
        structure: DependencyTree,
        scorer: ScorerBuilder,
        label_width: int,
        evidence: Callable[[DependencyTree, int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.structure = structure
        self.scorer = scorer(width)
        encoded = self.scorer.width if isinstance(self.scorer, ArcScorer) else width
        self.labeller = ArcLabeller(encoded, label_width, labels)
        self.starts = perceptron(width, START_WIDTH, 1)
        self.dropout = nn.Dropout(0.0)
        # Initialize this last, so that other weights do not depend on it.
        self.evidence = None if evidence is None else evidence(structure, width)

    def forward(self, rows: Tensor, work: Callable[[LabelledTrees, Tensor], Any]) -> Any:
        """Return ``work`` of the module and rows ``(N, width)``."""
        return work(self, rows)

    def start_scores(self, rows: Tensor) -> Tensor:
        """Return log-odds ``(N,)`` that a sentence starts with the token."""
        return self.starts(rows)[:, 0]

    def read(self, vectors: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of arcs for token vectors ``(B, n, width)``, and the vectors for labels.

        Returns:
            Scores ``(B, n+1, n+1)``, [head, modifier] with the root as node 0, and vectors
            ``(B, n, encoded width)``.
        """
        if isinstance(self.scorer, ArcScorer):
            nodes = self.dropout(self.scorer.nodes(vectors, lengths))
            return self.scorer.score_nodes(nodes).float(), nodes[:, 1:]
        return self.scorer(vectors, lengths).float(), self.dropout(vectors)

    def label_scores(
        self, words: Tensor, items: Tensor, heads: Tensor, modifiers: Tensor
    ) -> Tensor:
        """Return scores ``(T, labels)`` of the labels of T arcs.

        Args:
            words: vectors for labels, the second result of :meth:`read`.
            items, heads, modifiers: ``(T,)`` int64; tokens count from 0, so no arc is from the
                root.
        """
        own = words.flatten(0, 1)
        first = items * words.shape[1]
        offsets = modifiers - heads
        return self.labeller(own[first + heads], own[first + modifiers], offsets)
