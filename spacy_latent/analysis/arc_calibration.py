"""Arcs and whole trees of parses with their probabilities, judged by annotation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from spacy.attrs import IS_SPACE, SENT_START
from spacy.training import Example

from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.annotations.aligned_heads import aligned_heads
from spacy_latent.annotations.heads import known_heads
from spacy_latent.annotations.span_structure import probability_of_parts

ARC, LABELLED_ARC = "arc", "labelled arc"
TREE, LABELLED_TREE = "tree", "labelled tree"
OF_PARSES = (ARC, LABELLED_ARC, TREE, LABELLED_TREE)


def gold_arcs(example: Example) -> tuple[np.ndarray, list[str]]:
    """Return the heads and labels of the reference at the predicted tokens.

    Returns:
        Positions of heads in the doc, ``(n,)`` int64, and labels. A root is its own head. The head
        is −1 if it is not known, and for white space, which a parser attaches without a choice.
    """
    heads, labels = aligned_heads(example)
    heads[example.predicted.to_array(IS_SPACE) != 0] = -1
    strings = example.reference.vocab.strings
    return heads, [strings[label] if label else "" for label in labels.tolist()]


def gold_sentences(example: Example) -> np.ndarray | None:
    """Return the number of the reference's sentence of each predicted token, ``(n,)`` int64.

    White space has −1.

    Returns:
        The numbers, or None if the sentences of the reference are unknown: it has no sentence
        starts, or it has words without a head, from which spaCy derives incomplete starts.
    """
    reference, predicted = example.reference, example.predicted
    known: Any = reference.to_array([SENT_START, IS_SPACE])
    heads = known_heads(reference)[0]
    if not reference.has_annotation("SENT_START") or (heads[known[:, 1] == 0] < 0).any():
        return None
    numbers = (known[:, 0] == 1).cumsum()
    counterparts = example.alignment.x2y
    found = np.full(len(predicted), -1)
    for token in predicted:
        own = [] if token.is_space else counterparts[token.i]
        found[token.i] = numbers[own[0]] if len(own) else -1
    return found


def is_sentence(numbers: np.ndarray | None, start: int, end: int) -> bool:
    """Return whether the words of a run of tokens are those of one sentence of the reference.

    Args:
        numbers: result of :func:`gold_sentences`. With None every run counts as a sentence.
    """
    if numbers is None:
        return True
    own = numbers[start:end]
    own = own[own >= 0]
    return bool(len(own)) and bool((own == own[0]).all()) and (numbers == own[0]).sum() == len(own)


@dataclass
class TreeJudge:
    """Collection of whole trees of sentences, each judged right or wrong.

    A tree is right if all of its heads are right, and its words are exactly one sentence of the
    reference. A labelled tree also needs the right labels. Trees that have a word without a known
    head are counted in ``unannotated``. If some words of a doc have no known head, the sentences of
    the doc are unknown. Other trees of the doc are then judged by their heads alone.

    Attributes:
        trees: trees, with numbers of words as lengths.
        labelled: the same trees, with their labels.
    """

    trees: JudgedEntities = field(default_factory=lambda: JudgedEntities(noun=TREE))
    labelled: JudgedEntities = field(default_factory=lambda: JudgedEntities(noun=LABELLED_TREE))

    def add(
        self,
        text: int,
        words: int,
        right: Sequence[bool],
        labelled: Sequence[bool],
        whole: float,
        labelled_whole: float,
        sentence: bool,
    ) -> bool:
        """Judge the tree of a sentence.

        Args:
            text: number of its doc.
            words: number of its tokens, without white space.
            right, labelled: whether each head that is known is right, and its label, too.
            whole, labelled_whole: probabilities of the tree, without and with labels.
            sentence: whether the sentence is one of the reference, see :func:`is_sentence`.

        Returns:
            Whether the tree could be judged.
        """
        known = 0 < words == len(right)
        rows = ((self.trees, whole, right), (self.labelled, labelled_whole, labelled))
        for found, probability, each in rows:
            if not known:
                found.unannotated += words > 0
                continue
            found.add(probability, sentence and all(each), text, length=words)
        return known

    def count_annotated(self, numbers: np.ndarray | None, known: np.ndarray, judged: int) -> None:
        """Count the trees in the annotation of a doc.

        These are its sentences whose words all have a known head. If sentences are not known, they
        are as many as the judged trees.

        Args:
            numbers: result of :func:`gold_sentences`.
            known: whether the head of each predicted token is known, ``(n,)`` bool.
            judged: number of trees of the doc for which :meth:`add` returned True.
        """
        count = judged
        if numbers is not None:
            count = len(np.setdiff1d(numbers[numbers >= 0], numbers[~known]))
        self.trees.gold += count
        self.labelled.gold += count


def judged_arcs(examples: Iterable[Example], component: str) -> dict[str, JudgedEntities]:
    """Return the arcs and trees of a ``latent_parser`` that annotation judges, by noun.

    Every word has one arc. An arc is right if its head is right. A labelled arc also needs the
    right label, except the arc of a root. Arcs of words without a known head are counted in
    ``unannotated``. Whole trees are judged by :class:`TreeJudge`.

    Returns:
        Arcs, labelled arcs, trees and labelled trees. It is empty if the component stored no
        probabilities. Docs of an earlier version have no probabilities of trees; then there are
        only arcs.
    """
    arcs, labelled = JudgedEntities(noun=ARC), JudgedEntities(noun=LABELLED_ARC)
    judge, lacking = TreeJudge(), False
    for number, example in enumerate(examples):
        annotation = example.predicted._.latent.get(component)
        if annotation is None:
            continue
        heads, labels = gold_arcs(example)
        numbers, judged = gold_sentences(example), 0
        for span in annotation.spans:
            sure = probability_of_parts(span.parts, span.probabilities)
            both = probability_of_parts(span.labelled_parts, span.labelled_probabilities)
            if sure is None or both is None or span.labels is None or span.arc_labels is None:
                return {}
            rights: list[bool] = []
            labelled_rights: list[bool] = []
            for m, (head, place) in enumerate(zip(span.decoded.tolist(), span.arc_labels.tolist())):
                i, label = span.start + m, span.labels[place]
                if heads[i] < 0:
                    arcs.unannotated += not example.predicted[i].is_space
                    continue
                right = bool(heads[i] == (span.start + head - 1 if head else i))
                with_label = right and (not head or label == labels[i])
                rights.append(right)
                labelled_rights.append(with_label)
                where = number, label, abs(head - m - 1) if head else 0
                arcs.add(sure.get((head, m + 1), 0.0), right, *where)
                labelled.add(both.get((head, m + 1, place), 0.0), with_label, *where)
            whole = span.whole_probability, span.labelled_whole_probability
            if whole[0] is None or whole[1] is None:
                lacking = True
                continue
            words = sum(not token.is_space for token in example.predicted[span.start : span.end])
            sentence = is_sentence(numbers, span.start, span.end)
            judged += judge.add(
                number, words, rights, labelled_rights, whole[0], whole[1], sentence
            )
        judge.count_annotated(numbers, heads >= 0, judged)
    for found in (arcs, labelled):
        found.gold = len(found.probabilities)
    labelled.unannotated = arcs.unannotated
    made = {ARC: arcs, LABELLED_ARC: labelled}
    return made if lacking else {**made, TREE: judge.trees, LABELLED_TREE: judge.labelled}
