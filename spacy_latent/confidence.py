"""Confidences of entities: in ``ent._.confidence``, in the JSON of docs and in displaCy.

All three read ``doc._.latent``. It holds probabilities if ``crf_ner`` has ``annotate =
"probabilities"`` or a ``min_confidence``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from weakref import WeakKeyDictionary

from spacy.displacy import get_doc_settings
from spacy.tokens import Doc, Span

from spacy_latent.annotations import (
    DocAnnotations,
    Entity,
    LatentAnnotation,
    SpanStructure,
    record_key,
    stored_records,
)
from spacy_latent.characters import of_same_length

EXTENSION = "confidence"
Place = tuple[int, int, str]


def confidences(doc: Doc, component: str | None = None) -> dict[Place, float]:
    """Return the probabilities of the entities that components found on a doc.

    Entities that a ``min_confidence`` left out of ``doc.ents`` are included. Entities that were on
    the doc before a component are not. A component that stored no probabilities adds no entities.
    If several components found the same entity, the first one's probability counts.

    Args:
        component: name of the only component to read; None for all.

    Returns:
        Probabilities by (start, end, label), in tokens of the doc.
    """
    found: dict[Place, float] = {}
    for _, entity, probability in _entities(doc, component):
        found.setdefault((entity.start, entity.end, entity.label), probability)
    return found


def _entities(doc: Doc, component: str | None) -> Iterator[tuple[SpanStructure, Entity, float]]:
    """Yield the entities that a component found, with their structures and probabilities."""
    for annotation in DocAnnotations(doc).values():
        if component not in (None, annotation.component):
            continue
        for span in annotation.spans:
            if span.entity_probabilities is None or span.labels is None:
                continue
            for entity in LatentAnnotation(doc, annotation.component, [span]).entities():
                if not entity.given and entity.probability is not None:
                    yield span, entity, entity.probability


@dataclass(frozen=True)
class _Known:
    """Confidences read from a doc, valid while its number of tokens and its records stay.

    Attributes:
        found: by characters and label the confidence, the key in ``doc.user_data`` of the record
            that it was read from, and that record.
    """

    tokens: int
    records: list[object]
    found: dict[Place, tuple[float, Hashable, object]]

    def holds(self, doc: Doc, place: Place) -> bool:
        """Return whether the confidences are still valid for a place in a doc.

        Records are replaced, not changed. If the place has a confidence, only the record that it
        was read from has to be the same object. Otherwise all records have to be the same.
        """
        if self.tokens != len(doc):
            return False
        if place in self.found:
            _, key, record = self.found[place]
            user_data: dict[Any, Any] = doc.user_data
            return user_data.get(key) is record
        now = stored_records(doc)
        same = len(now) == len(self.records)
        return same and all(a is b for a, b in zip(now, self.records))


# For a loop over the entities of a doc.
_known: WeakKeyDictionary[Doc, _Known] = WeakKeyDictionary()


def confidence(span: Span) -> float | None:
    """Return the probability, in [0, 1], that a span is an entity with its label.

    It is None if no component that stored probabilities found the span.
    """
    doc, place = span.doc, (span.start_char, span.end_char, span.label_)
    known = _known.get(doc)
    if known is None or not known.holds(doc, place):
        known = _known[doc] = _read(doc)
    return known.found[place][0] if place in known.found else None


def _read(doc: Doc) -> _Known:
    user_data: dict[Any, Any] = doc.user_data
    found: dict[Place, tuple[float, Hashable, object]] = {}
    for structure, entity, probability in _entities(doc, None):
        own, key = doc[entity.start : entity.end], record_key(doc, structure.start, structure.end)
        place = own.start_char, own.end_char, entity.label
        found.setdefault(place, (probability, key, user_data[key]))
    return _Known(len(doc), stored_records(doc), found)


def register_extension(force: bool = False) -> bool:
    """Make ``ent._.confidence`` available.

    Each ``crf_ner`` does this when it is made or loaded. Call it if docs are read without a
    pipeline.

    Args:
        force: take the name from an extension of somebody else; without it, such an extension
            stays.

    Returns:
        True if the name belongs to this package.
    """
    # Not at import: spaCy imports all factories whenever a pipeline is made. A user's own
    # Span.set_extension("confidence") would fail then.
    if force or not Span.has_extension(EXTENSION):
        Span.set_extension(EXTENSION, getter=confidence, force=True)
    return Span.get_extension(EXTENSION)[2] is confidence


def to_json(doc: Doc, underscore: Sequence[str] | None = None) -> dict[str, object]:
    """Return ``doc.to_json`` with a "confidence" for each entity, which is None if unknown.

    Args:
        underscore: as for ``doc.to_json``, which has no values of getters for spans.
    """
    made = doc.to_json(underscore=list(underscore) if underscore else None)
    known = confidences(doc)
    for entry, ent in zip(made.get("ents", ()), doc.ents):
        entry["confidence"] = known.get((ent.start, ent.end, ent.label_))
    return made


def to_displacy(doc: Doc, digits: int = 2, kb_url_template: str | None = None) -> dict[str, object]:
    """Return the data of ``displacy.render(…, style="ent", manual=True)`` for a doc's entities.

    The confidence is drawn after the label, as in "GPE 0.98". displaCy's ``colors`` and ``ents``
    still go by the label alone. Text that displaCy does not escape is escaped here.

    Args:
        digits: number of digits of the confidence after its point.
        kb_url_template: as among displaCy's options.
    """
    known, title = confidences(doc), doc.user_data.get("title")
    drawn = []
    for ent in doc.ents:
        sure = known.get((ent.start, ent.end, ent.label_))
        shown = "" if sure is None else f" {sure:.{digits}f}"
        url = kb_url_template.format(ent.kb_id_) if kb_url_template and ent.kb_id_ else "#"
        drawn.append(
            {
                "start": ent.start_char,
                "end": ent.end_char,
                "label": ent.label_,
                "kb_id": escape(ent.kb_id_),
                "kb_url": escape(url),
                # In place of the label that displaCy would write.
                "params": {"label": f"{escape(of_same_length(ent.label_))}{shown}"},
            }
        )
    return {
        # displaCy escapes markup here, but no control characters.
        "text": of_same_length(doc.text),
        "ents": drawn,
        "title": None if title is None else escape(of_same_length(str(title))),
        "settings": get_doc_settings(doc),
    }
