"""Conversion of structures to JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from spacy.tokens import Doc

from spacy_latent.annotations.entities import ENTITIES, names_entities
from spacy_latent.annotations.latent_annotation import LatentAnnotation
from spacy_latent.annotations.records import WHOLE
from spacy_latent.annotations.span_parts import chosen_parts
from spacy_latent.annotations.span_structure import (
    Arc,
    Bracket,
    Cell,
    Dependency,
    Entity,
    Item,
    SpanStructure,
)
from spacy_latent.kinds import find_kind

# Accessors that a kind may have in addition to arcs and tags. Their names are keys of the JSON.
LISTS = ("cells", "items", "brackets")


def to_json(
    doc: Doc,
    components: Iterable[str],
    kinds: Mapping[str, str] | None = None,
    threshold: float | None = None,
) -> dict[str, dict[str, object]]:
    """Return the structures of a doc as JSON-serializable dicts, by component.

    Token indices are indices in the doc. The keys of an entry depend on the kind of the structure:

    - Trees: ``heads``, the index of each token's head, with a root as its own head; and ``arcs``,
      [head, modifier, probability], with null as the head of a root. Labelled trees also have
      ``dependencies``, [head, modifier, label, probability]. A span of a parser that stores
      probabilities has ``whole_probability`` and ``labelled_whole_probability``.
    - Tags: ``tags``. Tags whose names form entities also have ``entities``, [start, end, label,
      probability]. Each alternative lists the entities that only the first alternative has
      ("without") and the entities that only this alternative has ("with"). A span has
      ``min_confidence`` if the component leaves less probable entities out of ``doc.ents``. It has
      ``entities_calibrated``, true, if the probabilities of entities were calibrated and the
      weights of alternatives were not.
    - Items: ``items``, [token, probability].
    - Pairs of words: ``cells``, [token of the first text, token of the second, probability].
    - Spans: ``brackets``, [start, end, probability]. Brackets of segments and phrases end with the
      label.

    ``possible`` lists the calibrated sets of entities, arcs or brackets, in the same form, if the
    component was calibrated for a coverage.

    ``labels`` has the names behind the numbers of tags and of decoded labels, if they have names.
    Every entry has the decoded structure and the alternatives of each span, in the form of
    :class:`spacy_latent.annotations.SpanStructure`. Probabilities that are not stored are null. A
    text without tokens has the same keys, with empty lists.

    Args:
        components: Names of the components to include. Components without an annotation are
            skipped.
        kinds: The kind that each component writes, by the name that the structures are stored
            under; used for texts without tokens.
        threshold: If given, ``probable`` lists all parts with at least this probability, whether or
            not they belong to the best structure. Their form is the form in ``dependencies``,
            ``arcs``, ``cells``, ``items`` or ``brackets``; [token, tag, probability] for tags; and
            the numbers of the part followed by its probability for other kinds.

    Raises:
        LatentError: If a threshold is given and no probabilities are stored.
    """
    stored = kinds or {}
    return {
        name: _entry(doc, name, stored.get(name, "parts"), threshold)
        for name in components
        if name in doc._.latent
    }


def _entry(doc: Doc, name: str, stored: str, threshold: float | None) -> dict[str, object]:
    """Return the structures of a component, which writes the kind ``stored``."""
    annotation = doc._.latent[name]
    here = {span.kind for span in annotation.spans} or {"tags" if stored == ENTITIES else stored}
    given = set.intersection(*(set(find_kind(kind).accessors) for kind in here))
    entry: dict[str, object] = {}
    if "heads" in given:
        entry["heads"] = annotation.heads.tolist()
    if "arcs" in given:
        entry["arcs"] = _rows(annotation.arcs())
        if _is_labelled(annotation):
            entry["dependencies"] = _rows(annotation.dependencies())
        if _has_sets(annotation):
            entry["possible"] = _rows(annotation.possible_arcs())
    if "tags" in given:
        entry["tags"] = annotation.tags.tolist()
        named = [names_entities(span.labels) for span in annotation.spans]
        if all(named or [stored == ENTITIES]):
            entry["entities"] = _rows(annotation.entities())
            if _has_sets(annotation):
                entry["possible"] = _rows(annotation.possible_entities())
    for accessor in LISTS:
        if accessor in given:
            entry[accessor] = _rows(getattr(annotation, accessor)())
    if "brackets" in given and _has_sets(annotation):
        entry["possible"] = _rows(annotation.possible_brackets())
    labels = {span.labels for span in annotation.spans if span.labels is not None}
    if len(labels) == 1 or stored == ENTITIES:
        entry["labels"] = [label for known in labels for label in known]
    if threshold is not None:
        entry["probable"] = _probable(annotation, given, threshold)
    entry["spans"] = [_span(doc, name, span) for span in annotation.spans]
    return entry


def _has_sets(annotation: LatentAnnotation) -> bool:
    return bool(annotation.spans) and all(s.possible is not None for s in annotation.spans)


def _span(doc: Doc, name: str, span: SpanStructure) -> dict[str, object]:
    """Return the decoded structure and the alternatives of a span."""
    entry: dict[str, object] = {
        "start": span.start,
        "end": span.end,
        "structure": span.structure,
        "kind": span.kind,
        "decoded": span.decoded.tolist(),
    }
    if span.min_confidence is not None:
        entry["min_confidence"] = span.min_confidence
    if span.entities_calibrated:
        entry["entities_calibrated"] = True
    for whole in WHOLE:
        if (value := getattr(span, whole)) is not None:
            entry[whole] = float(f"{value:.4g}")
    entry["alternatives"] = [
        {
            span.kind: decoded.tolist(),
            "weight": round(weight, 4),
            **_differences(doc, name, span, number),
        }
        for number, (decoded, weight) in enumerate(span.alternatives)
    ]
    return entry


def _is_labelled(annotation: LatentAnnotation) -> bool:
    return bool(annotation.spans) and all(s.arc_labels is not None for s in annotation.spans)


def _rows(parts: Iterable[Arc | Bracket | Cell | Dependency | Entity | Item]) -> list[list[Any]]:
    """Return the fields of each part, in order, up to its probability; then a bracket's label."""
    rows = []
    for part in parts:
        given = takewhile(lambda field: field[0] != "probability", vars(part).items())
        row = [*(value for _, value in given), _rounded(part.probability)]
        if isinstance(part, Bracket) and part.label is not None:
            row.append(part.name or part.label)
        rows.append(row)
    return rows


def _probable(annotation: LatentAnnotation, given: set[str], threshold: float) -> list[list[Any]]:
    """Return all parts with at least this probability, in the form of the list of their kind."""
    if "arcs" in given:
        read = annotation.dependencies if _is_labelled(annotation) else annotation.arcs
        return _rows(read(threshold))
    for accessor in LISTS:
        if accessor in given:
            return _rows(getattr(annotation, accessor)(threshold))
    annotation._check(threshold, None)
    shift = int("tags" in given)
    return [
        [part[0] + shift * span.start, *part[1:], _rounded(p)]
        for span in annotation.spans
        for part, p in chosen_parts(span, threshold, None, annotation.component)
    ]


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)


def _differences(doc: Doc, name: str, span: SpanStructure, number: int) -> dict[str, Any]:
    if span.kind != "tags" or not names_entities(span.labels):
        return {}
    gone, new = LatentAnnotation(doc, name, [span]).differences(number)
    return {"without": _rows(gone), "with": _rows(new)}
