"""Arcs of parses with their probabilities, judged by annotation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from spacy_latent.analysis.calibration import JudgedEntities
from spacy_latent.annotations.span_structure import probability_of_parts

if TYPE_CHECKING:
    from spacy.training import Example

ARC, LABELLED_ARC = "arc", "labelled arc"


def gold_arcs(example: Example) -> tuple[np.ndarray, list[str]]:
    """Return the heads and labels of the reference at the predicted tokens.

    Returns:
        Positions of heads in the doc, ``(n,)`` int64, and labels. A root is its own head. The head
        is −1 if it is not known, and for white space, which a parser attaches without a choice.
    """
    words = range(len(example.predicted))
    if not example.reference.has_annotation("HEAD"):
        return np.full(len(words), -1), [""] * len(words)
    heads, labels = example.get_aligned_parse(projectivize=False)
    found = [
        -1 if heads[i] is None or example.predicted[i].is_space else int(heads[i]) for i in words
    ]
    return np.array(found, dtype="int64"), [label or "" for label in labels]


def judged_arcs(examples: Iterable[Example], component: str) -> dict[str, JudgedEntities]:
    """Return the arcs of a ``latent_parser`` that annotation judges right or wrong, by noun.

    Every word has one arc. An arc is right if the head is; a labelled arc also needs the label. The
    arc of a root has no label to be wrong. Arcs of words without a known head are counted in
    ``unannotated``.

    Returns:
        Arcs and labelled arcs; empty if the component stored no probabilities.
    """
    arcs, labelled = JudgedEntities(noun=ARC), JudgedEntities(noun=LABELLED_ARC)
    for number, example in enumerate(examples):
        annotation = example.predicted._.latent.get(component)
        if annotation is None:
            continue
        heads, labels = gold_arcs(example)
        for span in annotation.spans:
            sure = probability_of_parts(span.parts, span.probabilities)
            both = probability_of_parts(span.labelled_parts, span.labelled_probabilities)
            if sure is None or both is None or span.labels is None or span.arc_labels is None:
                return {}
            for m, (head, place) in enumerate(zip(span.decoded.tolist(), span.arc_labels.tolist())):
                i, label = span.start + m, span.labels[place]
                if heads[i] < 0:
                    arcs.unannotated += not example.predicted[i].is_space
                    continue
                right = heads[i] == (span.start + head - 1 if head else i)
                rows = (
                    (arcs, sure.get((head, m + 1), 0.0), right),
                    (
                        labelled,
                        both.get((head, m + 1, place), 0.0),
                        right and (not head or label == labels[i]),
                    ),
                )
                for found, probability, is_right in rows:
                    found.probabilities.append(probability)
                    found.correct.append(bool(is_right))
                    found.labels.append(label)
                    found.texts.append(number)
    for found in (arcs, labelled):
        found.gold = len(found.probabilities)
    labelled.unannotated = arcs.unannotated
    return {ARC: arcs, LABELLED_ARC: labelled}


__all__ = ["ARC", "LABELLED_ARC", "gold_arcs", "judged_arcs"]
