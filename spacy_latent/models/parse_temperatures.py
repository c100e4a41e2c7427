"""Probabilities of the arcs of parses at several temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from spacy.tokens import Doc
from torch import Tensor

from spacy_latent.layers.labelled_trees import LabelledTrees
from spacy_latent.models.parses import Request, parse_groups, start_scores
from spacy_latent.models.sentences import find_all_sentences, log_of_all_bounds


@dataclass
class ArcProbabilities:
    """Probabilities of the arcs in the parse of a doc with n tokens, at T temperatures.

    Attributes:
        heads: ``(n,)`` int64, position in the doc. A root is its own head.
        labels: ``(n,)`` int64, places in ``Request.names``.
        arcs: ``(n, T)``, probability of each token's arc.
        of_labels: ``(n, T)``, probability of its label given the arc; 1 for roots and white space.
        sentences: first token and token after the last of each sentence.
        trees: ``(S, T)``, probability of each sentence and its whole tree, without labels. The
            temperature does not change the probability of the sentence.
    """

    heads: np.ndarray
    labels: np.ndarray
    arcs: np.ndarray
    of_labels: np.ndarray
    sentences: list[tuple[int, int]]
    trees: np.ndarray


def arc_probabilities(
    module: LabelledTrees,
    rows: Tensor,
    docs: Sequence[Doc],
    request: Request,
    temperatures: Sequence[float],
) -> list[ArcProbabilities]:
    """Return the probabilities of docs, at least one of which has tokens.

    The trees and labels are the same at every temperature. For the first arguments see
    :func:`spacy_latent.models.parses.parse`.
    """
    starts = start_scores(module, rows, docs)
    sentences = find_all_sentences(starts, docs, request.max_length)
    sure = log_of_all_bounds(starts, docs, sentences)
    count = len(temperatures)
    found = [
        ArcProbabilities(
            np.arange(size),
            np.zeros(size, dtype="int64"),
            np.ones((size, count)),
            np.ones((size, count)),
            [(start, end) for start, end, *_ in bounds],
            np.ones((len(bounds), count)),
        )
        for size, bounds in zip(map(len, docs), sentences)
    ]
    for read in parse_groups(module, rows, docs, request, sentences):
        arcs, labels, of_labels, trees = read.at_temperatures(temperatures)
        lengths = read.group.lengths.tolist()
        for b, ((d, s), length) in enumerate(zip(read.group.members, lengths)):
            start, end = sentences[d][s][:2]
            own, place, one = read.heads[b, :length], np.arange(start, end), found[d]
            one.heads[start:end] = np.where(own == 0, place, own - 1 + start)
            one.labels[start:end] = labels[b, :length]
            one.arcs[start:end] = arcs[b, :length]
            one.of_labels[start:end] = of_labels[b, :length]
            one.trees[s] = trees[b] * np.exp(sure[d][s])
    return found
