"""Scores of a pipeline's task, text by text, so that two ways to run it can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_latent.analysis.judged_entities import MISSING
from spacy_latent.analysis.resampling import Value, accuracy, f_score
from spacy_latent.annotations import annotated_labels
from spacy_latent.annotations.aligned_heads import aligned_heads
from spacy_latent.annotations.settings import cfg_of


@dataclass(frozen=True)
class Measure:
    """A score whose counts add up over texts; higher is better.

    Attributes:
        count: function that returns the counts of one text, as many as ``value`` takes.
        majority: for accuracy, the most frequent label and the score of always answering it.
    """

    name: str
    count: Callable[[Example], Sequence[float]]
    value: Value
    majority: tuple[str, float] | None = None

    def counts(self, examples: Iterable[Example]) -> np.ndarray:
        """Return the counts of each example, ``(D, c)`` float64."""
        rows = np.array([self.count(example) for example in examples], dtype="float64")
        return rows if rows.ndim == 2 else np.zeros((0, 2))


def find_measures(nlp: Language, examples: Sequence[Example]) -> list[Measure]:
    """Return the measures that the pipeline predicts and the references annotate, in its order.

    If a second classifier has labels of its own, the name of its measure includes its name.
    """
    found: dict[str, Measure] = {}
    for name, pipe in nlp.pipeline:
        for assigned in nlp.get_pipe_meta(name).assigns:
            if assigned == "doc.cats":
                others = labels_of_others(nlp, name)
                measure = _cats(pipe, examples, others)
                if measure is not None and measure.name in found and others:
                    measure = replace(measure, name=f"{measure.name} of {name}")
            else:
                measure = _MEASURES[assigned](pipe, examples) if assigned in _MEASURES else None
            if measure is not None:
                found.setdefault(measure.name, measure)
    return list(found.values())


def measure_of_categories(nlp: Language, examples: Sequence[Example]) -> Measure | None:
    """Return the measure of the first component that predicts categories.

    A custom component may predict categories without declaring it. Return None if no reference has
    categories.
    """
    name = first_classifier(nlp)
    if name is None:
        return _cats(None, examples)
    return _cats(nlp.get_pipe(name), examples, labels_of_others(nlp, name))


def first_classifier(nlp: Language) -> str | None:
    """Return the name of the first component that declares that it predicts categories."""
    names = (name for name in nlp.pipe_names if "doc.cats" in nlp.get_pipe_meta(name).assigns)
    return next(names, None)


def labels_of_others(nlp: Language, name: str) -> frozenset[str]:
    """Return the categories that other components predict and this one does not.

    The result is empty if the labels of this component are unknown.
    """
    labels = {
        other: set(getattr(pipe, "labels", None) or ())
        for other, pipe in nlp.pipeline
        if "doc.cats" in nlp.get_pipe_meta(other).assigns
    }
    return frozenset(set().union(*labels.values()) - labels[name] if labels[name] else ())


def _cats(
    pipe: Any, examples: Sequence[Example], others: frozenset[str] = frozenset()
) -> Measure | None:
    """Return the measure of a component's categories, without those of other components."""

    def own(doc: Doc) -> dict[str, float]:
        return {label: value for label, value in doc.cats.items() if label not in others}

    gold = [cats for example in examples if (cats := own(example.reference))]
    if not gold:
        return None
    score_range = cfg_of(pipe).get("score_range")
    low, high = score_range or (0.0, 1.0)
    values = {value for cats in gold for value in cats.values()}
    if score_range is not None or not values <= {0.0, 1.0}:

        def closeness(example: Example) -> Sequence[float]:
            pairs = [
                (example.predicted.cats[label], value)
                for label, value in own(example.reference).items()
                if label in example.predicted.cats
            ]
            error = sum(abs(ours - theirs) for ours, theirs in pairs) / (high - low)
            return len(pairs) - error, len(pairs)

        return Measure("1 − mean absolute error", closeness, accuracy)

    def right_category(example: Example) -> Sequence[float]:
        predicted, reference = own(example.predicted), only_label(own(example.reference))
        if reference is None or not predicted:
            return 0.0, float(reference is not None)
        return float(best_category(predicted) == reference), 1.0

    of_one = Measure("accuracy", right_category, accuracy, _most_frequent(gold))
    attrs = getattr(getattr(pipe, "model", None), "attrs", {})
    if attrs.get("multi_label") is False:
        # A text whose annotation only names wrong labels does not count.
        return of_one if any(only_label(cats) is not None for cats in gold) else None
    # The annotation of a text may have one category and leave the others unknown.
    several = "multi_label" in attrs
    if all(sum(cats.values()) == 1.0 and not (several and len(cats) == 1) for cats in gold):
        return of_one
    threshold = cfg_of(pipe).get("threshold", 0.5)

    def labels(example: Example) -> Sequence[float]:
        reference = own(example.reference)
        predicted = {label for label, value in example.predicted.cats.items() if value >= threshold}
        theirs = {label for label, value in reference.items() if value == 1.0}
        # Labels that are missing in the reference do not count.
        predicted &= set(reference)
        return len(predicted & theirs), len(predicted), len(theirs)

    return Measure("F1 of the labels", labels, f_score)


def only_label(cats: dict[str, float]) -> str | None:
    """Return the only label with a value above 0, if this value is 1; None otherwise."""
    own = [label for label, value in cats.items() if value > 0.0]
    return own[0] if len(own) == 1 and cats[own[0]] == 1.0 else None


def best_category(cats: dict[str, float]) -> str:
    """Return the label with the highest score, "" without labels.

    If several labels have it, the first in the alphabet is returned.
    """
    return min(cats, key=lambda label: (-cats[label], label), default="")


def gold_label(cats: dict[str, float]) -> str:
    """Return the annotated labels as text.

    With several labels whose values are 0 or 1, these are the labels with 1, or "none". Otherwise
    it is the label with the highest value, and this value, which may be a regression's.
    """
    if len(cats) > 1 and set(cats.values()) <= {0.0, 1.0}:
        return ", ".join(label for label, value in cats.items() if value) or "none"
    best = best_category(cats)
    return f"{best} {cats[best]:.4g}"


def majority_share(examples: Sequence[Example]) -> tuple[str, float]:
    """Return the most frequent label of the references and its share.

    The share is the score of always answering this label.
    """
    return _most_frequent(example.reference.cats for example in examples)


def _most_frequent(gold: Iterable[dict[str, float]]) -> tuple[str, float]:
    found = Counter(label for cats in gold if (label := only_label(cats)) is not None)
    if not found:
        return "", float("nan")
    best = min(found, key=lambda label: (-found[label], label))
    return best, found[best] / found.total()


def _f1_of_spans(
    name: str,
    read: Callable[[Doc], Iterable[Span] | None],
    known: Callable[[Example, Sequence[Span]], list[Span]] = lambda example, spans: list(spans),
) -> Measure:
    """Return the F1 of spans, without predicted spans that the reference does not judge.

    Args:
        read: function that returns the spans of a doc, None if the doc has no annotation of them.
        known: function that returns the predicted spans that the reference judges right or wrong.
    """

    def count(example: Example) -> Sequence[float]:
        gold = read(example.reference)
        if gold is None:
            return 0.0, 0.0, 0.0
        asked = annotated_labels(example.reference)
        found = known(example, list(read(example.predicted) or ()))
        ours, theirs = (
            {
                (span.start_char, span.end_char, span.label_)
                for span in spans
                if asked is None or span.label_ in asked
            }
            for spans in (found, gold)
        )
        return len(ours & theirs), len(ours), len(theirs)

    return Measure(name, count, f_score)


def _ents(pipe: Any, examples: Sequence[Example]) -> Measure | None:
    if not any(example.reference.has_annotation("ENT_IOB") for example in examples):
        return None

    def read(doc: Doc) -> Iterable[Span] | None:
        return doc.ents if doc.has_annotation("ENT_IOB") else None

    def known(example: Example, spans: Sequence[Span]) -> list[Span]:
        missing = np.array([token.ent_iob == MISSING for token in example.reference], dtype=bool)
        if not missing.any():
            return list(spans)
        # Read the alignment once, since each access computes it from all words of both docs.
        place = example.alignment.x2y
        return [
            span
            for span in spans
            if not any(missing[place[i]].any() for i in range(span.start, span.end))
        ]

    return _f1_of_spans("F1 of the entities", read, known)


def _spans(pipe: Any, examples: Sequence[Example]) -> Measure | None:
    key = getattr(pipe, "key", None)
    if key is None or not any(key in example.reference.spans for example in examples):
        return None
    return _f1_of_spans("F1 of the spans", lambda doc: doc.spans.get(key))


def _tags(pipe: Any, examples: Sequence[Example]) -> Measure | None:
    if not any(example.reference.has_annotation("TAG") for example in examples):
        return None

    def count(example: Example) -> Sequence[float]:
        gold = example.get_aligned("TAG", as_string=True)
        pairs = [(token.tag_, tag) for token, tag in zip(example.predicted, gold) if tag]
        return sum(ours == tag for ours, tag in pairs), len(pairs)

    return Measure("accuracy of the tags", count, accuracy)


def _parse(pipe: Any, examples: Sequence[Example]) -> Measure | None:
    if not any(example.reference.has_annotation("HEAD") for example in examples):
        return None

    def count(example: Example) -> Sequence[float]:
        heads, labels = (each.tolist() for each in aligned_heads(example))
        known = [
            (token.head.i == head and token.dep == label)
            for token, head, label in zip(example.predicted, heads, labels)
            if head >= 0 and label
        ]
        return sum(known), len(known)

    return Measure("labelled attachment of the parser", count, accuracy)


_MEASURES: dict[str, Callable[[Any, Sequence[Example]], Measure | None]] = {
    "doc.ents": _ents,
    "doc.spans": _spans,
    "token.tag": _tags,
    "token.dep": _parse,
}
