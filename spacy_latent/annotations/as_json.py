"""Structures as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spacy.tokens import Doc

from spacy_latent.annotations.entities import ENTITIES, names_entities
from spacy_latent.annotations.latent_annotation import LatentAnnotation
from spacy_latent.annotations.span_structure import Entity, SpanStructure
from spacy_latent.kinds import find_kind


def to_json(
    doc: Doc,
    components: Iterable[str],
    kinds: Mapping[str, str] | None = None,
    threshold: float | None = None,
) -> dict[str, dict[str, object]]:
    """The structures of a doc by component; indices of tokens are those of the doc.

    Trees have heads, the index of each token's head, its own for a root, and arcs, [head, modifier,
    probability], where the head of a root is null, and dependencies, [head, modifier, label,
    probability], where arcs are labelled; tags have tags, and entities, [start, end,
    label, probability], where their names make some, with possible ones where the component was
    calibrated for a coverage, and in each alternative those that it has not of the first one
    ("without") and those that only it has ("with"), and each span has the
    min_confidence of the component, where that leaves less probable ones out of ``doc.ents``, and
    entities_calibrated, true, where probabilities of entities were calibrated and weights of
    alternatives were not;
    items have items, [token, probability]; pairs of words have cells, [token of the first text,
    token of the second, probability]; spans have brackets, [start, end, probability], and segments
    and phrases their label at the end of these. The labels that tags, and decoded labels, are
    numbers of are in labels, where they have names. Probabilities that are not stored are null. All
    have the decoded structure and alternatives of
    each span, as in :class:`spacy_latent.annotations.SpanStructure`. A text without tokens has the
    same keys, with nothing in their lists.

    kinds: of what components write, by the names that it is stored under; for texts without
        tokens.
    threshold: with it, all parts that are at least so probable are in probable, whether they are
        of the best structure or not: as in dependencies, arcs, cells, items or brackets, [token,
        tag, probability] of tags, and of others the numbers of the part and its probability.

    Raises LatentError for a threshold where no probabilities are stored.
    """
    found: dict[str, dict[str, object]] = {}
    for name in components:
        if name not in doc._.latent:
            continue
        annotation = doc._.latent[name]
        stored = (kinds or {}).get(name, "parts")
        here = {span.kind for span in annotation.spans} or {
            "tags" if stored == ENTITIES else stored
        }
        given = set.intersection(*(set(find_kind(kind).accessors) for kind in here))
        entry: dict[str, object] = {}
        if "heads" in given:
            entry["heads"] = annotation.heads.tolist()
        if "arcs" in given:
            entry["arcs"] = _arcs(annotation)
            if _is_labelled(annotation):
                entry["dependencies"] = _dependencies(annotation)
        if "tags" in given:
            entry["tags"] = annotation.tags.tolist()
            named = [names_entities(span.labels) for span in annotation.spans]
            if all(named or [stored == ENTITIES]):
                entry["entities"] = [_entity(e) for e in annotation.entities()]
                if annotation.spans and all(s.possible is not None for s in annotation.spans):
                    entry["possible"] = [_entity(e) for e in annotation.possible_entities()]
        for accessor, read in READ.items():
            if accessor in given:
                entry[accessor] = read(annotation)
        labels = {span.labels for span in annotation.spans if span.labels is not None}
        if len(labels) == 1 or stored == ENTITIES:
            entry["labels"] = [label for known in labels for label in known]
        if threshold is not None:
            entry["probable"] = _probable(annotation, given, threshold)
        entry["spans"] = [
            {
                "start": span.start,
                "end": span.end,
                "structure": span.structure,
                "kind": span.kind,
                "decoded": span.decoded.tolist(),
                **({} if span.min_confidence is None else {"min_confidence": span.min_confidence}),
                **({"entities_calibrated": True} if span.entities_calibrated else {}),
                "alternatives": [
                    {
                        span.kind: decoded.tolist(),
                        "weight": round(weight, 4),
                        **_differences(doc, name, span, number),
                    }
                    for number, (decoded, weight) in enumerate(span.alternatives)
                ],
            }
            for span in annotation.spans
        ]
        found[name] = entry
    return found


def _is_labelled(annotation: LatentAnnotation) -> bool:
    return bool(annotation.spans) and all(s.arc_labels is not None for s in annotation.spans)


def _arcs(annotation: LatentAnnotation, threshold: float | None = None) -> list[list[Any]]:
    return [[a.head, a.modifier, _rounded(a.probability)] for a in annotation.arcs(threshold)]


def _dependencies(annotation: LatentAnnotation, threshold: float | None = None) -> list[list[Any]]:
    return [
        [arc.head, arc.modifier, arc.label, _rounded(arc.probability)]
        for arc in annotation.dependencies(threshold)
    ]


def _cells(annotation: LatentAnnotation, threshold: float | None = None) -> list[list[Any]]:
    return [[c.source, c.target, _rounded(c.probability)] for c in annotation.cells(threshold)]


def _items(annotation: LatentAnnotation, threshold: float | None = None) -> list[list[Any]]:
    return [[item.token, _rounded(item.probability)] for item in annotation.items(threshold)]


def _brackets(annotation: LatentAnnotation, threshold: float | None = None) -> list[list[Any]]:
    return [
        [b.start, b.end, _rounded(b.probability)] + ([] if b.label is None else [b.name or b.label])
        for b in annotation.brackets(threshold)
    ]


READ = {"cells": _cells, "items": _items, "brackets": _brackets}


def _probable(annotation: LatentAnnotation, given: set[str], threshold: float) -> list[list[Any]]:
    """All parts that are at least so probable, in the form that the kind's list has."""
    if "arcs" in given:
        read = _dependencies if _is_labelled(annotation) else _arcs
        return read(annotation, threshold)
    for accessor, read in READ.items():
        if accessor in given:
            return read(annotation, threshold)
    annotation._check(threshold, None)
    shift = int("tags" in given)
    return [
        [part[0] + shift * span.start, *part[1:], _rounded(p)]
        for span in annotation.spans
        for part, p in annotation._chosen(span, threshold, None)
    ]


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)


def _entity(entity: Entity) -> list[Any]:
    return [entity.start, entity.end, entity.label, _rounded(entity.probability)]


def _differences(doc: Doc, name: str, span: SpanStructure, number: int) -> dict[str, Any]:
    if span.kind != "tags" or not names_entities(span.labels):
        return {}
    gone, new = LatentAnnotation(doc, name, [span]).differences(number)
    return {"without": [_entity(e) for e in gone], "with": [_entity(e) for e in new]}
