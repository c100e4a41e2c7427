"""Arcs and trees that a parser predicts at several temperatures, judged by annotation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from spacy.training import Example
from spacy.util import minibatch

from spacy_latent.analysis.arc_calibration import TreeJudge, gold_arcs, gold_sentences, is_sentence
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.progress import Progress
from spacy_latent.evaluation.calibration_fit import TEMPERATURES, UNCHANGED

if TYPE_CHECKING:
    from spacy_latent.models.parse_temperatures import ArcProbabilities

BATCH = 64


class JudgedArcs(NamedTuple):
    """The A arcs of known heads, of one text or of all, at T temperatures.

    Attributes:
        said: probabilities ``(A, T)``.
        of_labels: probabilities of labels given the arcs, ``(A, T)``.
        right, labelled_right: ``(A,)`` bool.
        roots: arcs without a label to be wrong, ``(A,)`` bool.
        texts: doc of each, ``(A,)`` int64.
        lengths: distance of each between head and modifier, 0 for roots, ``(A,)`` int64.
        labels: ``(A,)``, the labels that the parser gives.
        words: position of each modifier in its doc ``(A,)`` int64.
    """

    said: np.ndarray
    of_labels: np.ndarray
    right: np.ndarray
    labelled_right: np.ndarray
    roots: np.ndarray
    texts: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    words: np.ndarray

    @classmethod
    def of(cls, example: Example, parse: ArcProbabilities, names: Any, text: int) -> JudgedArcs:
        """Return the arcs of one text that the reference has heads for.

        Args:
            names: labels by their numbers in the parse.
            text: number of the text.
        """
        heads, gold = gold_arcs(example)
        known = np.flatnonzero(heads >= 0)
        right, roots = parse.heads[known] == heads[known], parse.heads[known] == known
        labels = np.array([names[place] for place in parse.labels[known]], dtype=object)
        same = np.array([a == gold[i] for a, i in zip(labels, known)], dtype=bool)
        return cls(
            parse.arcs[known],
            parse.of_labels[known],
            right,
            right & (roots | same),
            roots,
            np.full(len(known), text),
            np.abs(parse.heads[known] - known),
            labels,
            known,
        )


@dataclass
class JudgedParses:
    """Arcs and trees of all texts.

    Attributes:
        unannotated: number of further words, without a known head.
        judge: whole trees, with the probabilities as trained.
        trees: probabilities of these trees, ``(S, T)``.
        labels_of_trees: for each tree, the product of the probabilities of its labels, ``(S, T)``.
    """

    arcs: JudgedArcs
    unannotated: int
    judge: TreeJudge
    trees: np.ndarray
    labels_of_trees: np.ndarray

    def judged(self, noun: str, said: np.ndarray, right: np.ndarray) -> JudgedEntities:
        """Return the arcs with given probabilities and judgements, ``(A,)`` each."""
        return JudgedEntities(
            said.tolist(),
            right.tolist(),
            self.arcs.labels.tolist(),
            len(right),
            unannotated=self.unannotated,
            texts=self.arcs.texts.tolist(),
            lengths=self.arcs.lengths.tolist(),
            noun=noun,
        )


def judge_parses(pipe: Any, examples: Sequence[Example], progress: Progress) -> JudgedParses:
    """Predict the docs at all temperatures, and judge their arcs and trees."""
    from spacy_latent.models.added_labels import UNTRAINED
    from spacy_latent.models.labelled_parser import run_on_rows
    from spacy_latent.models.parse_temperatures import arc_probabilities
    from spacy_latent.models.parses import Request

    request = Request(
        pipe.all_labels,
        max_length=pipe.model.attrs["max_length"],
        untrained=pipe.model.attrs[UNTRAINED],
    )
    each: list[JudgedArcs] = []
    judge, trees = TreeJudge(), list[tuple[np.ndarray, np.ndarray]]()
    for batch in minibatch(progress(examples, "Arcs", len(examples)), BATCH):
        docs = [example.predicted for example in batch]
        compute = partial(arc_probabilities, docs=docs, request=request, temperatures=TEMPERATURES)
        parses, _ = run_on_rows(pipe.model, docs, compute, is_train=False)
        for example, parse in zip(batch, parses):
            own = JudgedArcs.of(example, parse, pipe.all_labels, len(each))
            trees += _judged_trees(judge, example, parse, own, len(each))
            each.append(own)
    arcs = JudgedArcs(*map(np.concatenate, zip(*each)))
    words = sum(not token.is_space for example in examples for token in example.predicted)
    of_trees = np.array(trees, dtype="float64").reshape(-1, 2, len(TEMPERATURES))
    return JudgedParses(arcs, words - len(arcs.right), judge, of_trees[:, 0], of_trees[:, 1])


def _judged_trees(
    judge: TreeJudge, example: Example, parse: ArcProbabilities, arcs: JudgedArcs, text: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Judge the trees of a doc, and yield the probabilities of those that annotation judges.

    For each tree, yield its probabilities, and the products of the probabilities of its labels,
    ``(T,)`` each.
    """
    numbers, count = gold_sentences(example), 0
    right = zip(arcs.right.tolist(), arcs.labelled_right.tolist())
    right_at = dict(zip(arcs.words.tolist(), right))
    for (start, end), said in zip(parse.sentences, parse.trees):
        judged = [right_at[i] for i in range(start, end) if i in right_at]
        product = parse.of_labels[start:end].prod(0)
        if judge.add(
            text,
            sum(not token.is_space for token in example.predicted[start:end]),
            [one for one, _ in judged],
            [one for _, one in judged],
            float(said[UNCHANGED]),
            float(said[UNCHANGED] * product[UNCHANGED]),
            is_sentence(numbers, start, end),
        ):
            count += 1
            yield said, product
    known = np.isin(np.arange(len(example.predicted)), arcs.words)
    judge.count_annotated(numbers, known, count)
