"""Labelled spans of ``tree_spancat`` with their confidences, judged by annotation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spacy.training import Example

from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.annotations import aligned_spans, annotated_labels

SPAN, SET_OF_SPANS = "span", "whole set"
# First token, token after the last, and label.
Place = tuple[int, int, str]


@dataclass(frozen=True)
class GoldSpans:
    """Annotated spans of a text.

    Attributes:
        aligned: those that the tokens of the predicted doc can form, in these tokens.
        count: number of all of them.
        asked: labels that the text was annotated for; None for all.
    """

    aligned: set[Place]
    count: int
    asked: tuple[str, ...] | None


def gold_spans(example: Example, key: str) -> GoldSpans | None:
    """Return the annotated spans of a text, None if it does not have the group ``key``."""
    reference = example.reference
    if key not in reference.spans:
        return None
    asked = annotated_labels(reference)
    gold = [span for span in reference.spans[key] if asked is None or span.label_ in asked]
    tokens = [span for span in gold if len(span)]
    aligned = aligned_spans(example, tokens, allow_overlap=True) if tokens else []
    return GoldSpans(
        {(span.start, span.end, span.label_) for span in aligned},
        len({(span.start, span.end, span.label_) for span in gold}),
        asked,
    )


def gold_labels(example: Example, key: str) -> set[str]:
    """Return the labels of the annotated spans, without those that a text was not annotated for."""
    found = {span.label_ for span in example.reference.spans.get(key, [])}
    asked = annotated_labels(example.reference)
    return found if asked is None else found & set(asked)


class SpanJudge:
    """Collection of spans, each judged right or wrong by the annotation.

    Args:
        key: name of the group in ``doc.spans``.

    Attributes:
        found: spans that the annotation judges. Spans of texts without the group, or with labels
            for which the text was not annotated, are only counted in ``unannotated``.
        sets: for each text whether its spans are exactly those of the annotation; None for a text
            without the group, or annotated for some of the labels only.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.found = JudgedEntities(noun=SPAN)
        self.texts = 0
        self.sets: list[bool | None] = []

    def add(self, example: Example, spans: Iterable[tuple[Place, float]]) -> list[bool]:
        """Judge the spans of a text, with their confidences.

        Returns:
            Spans that the annotation says to be right or wrong.
        """
        found, gold = self.found, gold_spans(example, self.key)
        text, self.texts = self.texts, self.texts + 1
        found.gold += 0 if gold is None else gold.count
        judged: list[bool] = []
        predicted = set()
        for place, confidence in spans:
            start, end, label = place
            judged.append(gold is not None and (gold.asked is None or label in gold.asked))
            if gold is None or not judged[-1]:
                found.unannotated += 1
                continue
            predicted.add(place)
            found.add(confidence, place in gold.aligned, text, label, end - start)
        if gold is None or gold.asked is not None:
            self.sets.append(None)
        else:
            # Spans that do not align with tokens of the predicted doc are missing in any set.
            same = predicted == gold.aligned and len(gold.aligned) == gold.count
            self.sets.append(same)
        return judged


def judged_spans(examples: Iterable[Example], key: str) -> JudgedEntities:
    """Return the spans of predicted docs that the annotation says to be right or wrong.

    Args:
        examples: docs with ``attrs["scores"]`` in the group, and their references.
    """
    judge = SpanJudge(key)
    for example in examples:
        group = example.predicted.spans.get(key, [])
        scores = group.attrs.get("scores", []) if len(group) else []
        places = [(span.start, span.end, span.label_) for span in group]
        judge.add(example, zip(places, map(float, scores)))
    return judge.found
