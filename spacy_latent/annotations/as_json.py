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
    doc: Doc, components: Iterable[str], kinds: Mapping[str, str] | None = None
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
    and phrases their label at the end of these. Probabilities that are not stored are null. All
    have the decoded structure and alternatives of
    each span, as in :class:`spacy_latent.annotations.SpanStructure`. A text without tokens has the
    same keys, with nothing in their lists.

    kinds: of what components write, by the names that it is stored under; for texts without
        tokens.
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
            arcs = annotation.arcs()
            entry["arcs"] = [[arc.head, arc.modifier, _rounded(arc.probability)] for arc in arcs]
            if annotation.spans and all(s.arc_labels is not None for s in annotation.spans):
                entry["dependencies"] = [
                    [arc.head, arc.modifier, arc.label, _rounded(arc.probability)]
                    for arc in annotation.dependencies()
                ]
        if "tags" in given:
            entry["tags"] = annotation.tags.tolist()
            named = [names_entities(span.labels) for span in annotation.spans]
            if all(named or [stored == ENTITIES]):
                entry["entities"] = [_entity(e) for e in annotation.entities()]
                if annotation.spans and all(s.possible is not None for s in annotation.spans):
                    entry["possible"] = [_entity(e) for e in annotation.possible_entities()]
        if "cells" in given:
            cells = annotation.cells()
            entry["cells"] = [[c.source, c.target, _rounded(c.probability)] for c in cells]
        if "items" in given:
            items = annotation.items()
            entry["items"] = [[item.token, _rounded(item.probability)] for item in items]
        if "brackets" in given:
            entry["brackets"] = [
                [b.start, b.end, _rounded(b.probability)]
                + ([] if b.label is None else [b.name or b.label])
                for b in annotation.brackets()
            ]
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


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)


def _entity(entity: Entity) -> list[Any]:
    return [entity.start, entity.end, entity.label, _rounded(entity.probability)]


def _differences(doc: Doc, name: str, span: SpanStructure, number: int) -> dict[str, Any]:
    if span.kind != "tags" or not names_entities(span.labels):
        return {}
    gone, new = LatentAnnotation(doc, name, [span]).differences(number)
    return {"without": [_entity(e) for e in gone], "with": [_entity(e) for e in new]}
