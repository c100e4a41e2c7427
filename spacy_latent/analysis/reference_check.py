"""Checks of references: missing annotation, and labels that the pipeline does not know.

Without these checks, scores of 0 could be read as results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

# Largest number of unknown labels that a remark names.
NAMED = 10


@dataclass(frozen=True)
class _Kept:
    """Functions that read the annotation of one attribute from a reference.

    Both functions receive a doc and the key of a group of spans, or None.

    Attributes:
        there: function from a doc to whether it has the annotation.
        labels: function that returns the labels of a doc.
    """

    name: str
    there: Callable[[Doc, str | None], bool]
    labels: Callable[[Doc, str | None], Iterable[str]] | None = None


def _annotated(*attributes: str) -> Callable[[Doc, str | None], bool]:
    return lambda doc, key: any(map(doc.has_annotation, attributes))


def _spans(doc: Doc, key: str | None) -> set[str]:
    return set() if key is None or key not in doc.spans else {s.label_ for s in doc.spans[key]}


# By the name of the attribute in ``assigns`` of a component.
KEPT = {
    "doc.cats": _Kept(
        "categories",
        lambda doc, key: bool(doc.cats),
        lambda doc, key: (label for label, value in doc.cats.items() if value),
    ),
    "doc.ents": _Kept(
        "entities", _annotated("ENT_IOB"), lambda doc, key: (span.label_ for span in doc.ents)
    ),
    "doc.spans": _Kept("spans", lambda doc, key: key is not None and key in doc.spans, _spans),
    "token.tag": _Kept(
        "tags", _annotated("TAG"), lambda doc, key: (token.tag_ for token in doc if token.tag)
    ),
    "token.dep": _Kept(
        "dependencies",
        _annotated("HEAD", "DEP"),
        lambda doc, key: (token.dep_ for token in doc if token.dep),
    ),
    "token.pos": _Kept("parts of speech", _annotated("POS")),
    "token.morph": _Kept("morphological features", _annotated("MORPH")),
    "token.lemma": _Kept("lemmas", _annotated("LEMMA")),
    "token.is_sent_start": _Kept("starts of sentences", _annotated("SENT_START")),
}
# Attributes that a parser sets in addition to its main one, which is the value.
MAIN_ATTRIBUTE = {"token.is_sent_start": "token.dep"}


def is_annotated(nlp: Language, name: str, reference: Doc) -> bool:
    """Return whether a reference has annotation of what a component predicts."""
    key = getattr(nlp.get_pipe(name), "key", None)
    return any(one.there(reference, key) for one in _kept(nlp, name))


def without_references(nlp: Language, examples: Sequence[Example]) -> tuple[dict[str, str], bool]:
    """Return the trainable components that are scored although no reference has their annotation.

    A component whose attributes are not in :data:`KEPT`, such as one with a custom scorer, counts
    as having references. So does a pipeline without scored components.

    Returns:
        A description of the missing annotation by name of the component, and whether no scored
        component at all has references.
    """
    scored = [(name, pipe) for name, pipe in nlp.pipeline if getattr(pipe, "scorer", None)]
    lacking, there = {}, not scored
    for name, pipe in scored:
        found = list(_kept(nlp, name))
        if not found or any(is_annotated(nlp, name, example.reference) for example in examples):
            there = True
        elif getattr(pipe, "is_trainable", False):
            lacking[name] = " or ".join(one.name for one in found)
    return lacking, not there


def unknown_labels(
    nlp: Language, examples: Sequence[Example], learned: Iterable[Example] = ()
) -> dict[str, list[str]]:
    """Return labels of the references that no component with such labels knows.

    If the labels of a component are not known, no label counts as unknown for its annotation.

    Args:
        learned: examples whose labels also count as known. They are read only until all labels are
            found.

    Returns:
        Sorted labels, by name of the annotation that they belong to.
    """
    known: dict[tuple[str, str | None], set[str] | None] = {}
    for name, pipe in nlp.pipeline:
        for attribute in nlp.get_pipe_meta(name).assigns:
            if attribute in KEPT and KEPT[attribute].labels is not None:
                key = getattr(pipe, "key", None) if attribute == "doc.spans" else None
                labels = getattr(pipe, "labels", None)
                before = known.setdefault((attribute, key), set())
                if before is None or labels is None:
                    known[attribute, key] = None
                else:
                    before.update(labels)
    unknown: dict[tuple[str, str | None], set[str]] = {}
    for (attribute, key), own in known.items():
        if own is not None:
            there = {label for one in examples for label in _labels(one, attribute, key)}
            unknown[attribute, key] = there - own
    for example in learned if any(unknown.values()) else ():
        for (attribute, key), labels in unknown.items():
            labels.difference_update(_labels(example, attribute, key))
        if not any(unknown.values()):
            break
    found: dict[str, set[str]] = {}
    for (attribute, _), labels in unknown.items():
        found.setdefault(KEPT[attribute].name, set()).update(labels)
    return {name: sorted(labels) for name, labels in found.items() if labels}


def _labels(example: Example, attribute: str, key: str | None) -> Iterable[str]:
    read = KEPT[attribute].labels
    return () if read is None else read(example.reference, key)


def in_words(unknown: dict[str, list[str]]) -> list[str]:
    """Write a sentence for each entry of :func:`unknown_labels`."""
    return [
        f"The {name} of the references have {a_label(labels)} that the pipeline does not know: "
        f"{listed(labels)}. Annotations with such a label count as missed or wrong. Train the "
        "pipeline with them, or rename the labels as in training."
        for name, labels in unknown.items()
    ]


def a_label(labels: Sequence[str]) -> str:
    """Return "a label" for one label, otherwise "labels"."""
    return "a label" if len(labels) == 1 else "labels"


def listed(labels: Sequence[str]) -> str:
    """Join the first labels for a message, and give the number of the others."""
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return f"{', '.join(labels[:NAMED])}{more}"


def _kept(nlp: Language, name: str) -> Iterator[_Kept]:
    assigned = nlp.get_pipe_meta(name).assigns
    for attribute in assigned:
        main = MAIN_ATTRIBUTE.get(attribute)
        if attribute in KEPT and (main is None or main not in assigned):
            yield KEPT[attribute]
