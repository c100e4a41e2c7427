"""How sure a component is of the entities of a doc, where people look: ``ent._.confidence``, JSON
of docs, and displaCy's drawings of entities.

All three read ``doc._.latent``, which holds probabilities where ``crf_ner`` has
``annotate = "probabilities"`` or a ``min_confidence``.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from weakref import WeakKeyDictionary

from spacy.displacy import get_doc_settings
from spacy.tokens import Doc, Span

from spacy_latent.annotations import DocAnnotations, LatentAnnotation, stored_state

EXTENSION = "confidence"
Place = tuple[int, int, str]


def confidences(doc: Doc, component: str | None = None) -> dict[Place, float]:
    """How probable the entities are that components found on a doc, by (start, end, label), tokens
    of the doc, whether or not a ``min_confidence`` left them out of ``doc.ents``. Those that were
    there before a component are not among them, nor those of components that stored no
    probabilities. Where several components found the same, it is the first's.

    component: of this one alone.
    """
    found: dict[Place, float] = {}
    for annotation in DocAnnotations(doc).values():
        if component not in (None, annotation.component):
            continue
        for span in annotation.spans:
            if span.entity_probabilities is None or span.labels is None:
                continue
            for entity in LatentAnnotation(doc, annotation.component, [span]).entities():
                if not entity.given and entity.probability is not None:
                    place = entity.start, entity.end, entity.label
                    found.setdefault(place, entity.probability)
    return found


# For a loop over the entities of a doc: what its annotations were, and the confidences in them.
_State = tuple[bytes, list[object]]
_known: WeakKeyDictionary[Doc, tuple[_State, dict[Place, float]]] = WeakKeyDictionary()


def confidence(span: Span) -> float | None:
    """How probable it is that this span is an entity with its label, in [0, 1]; None where no
    component that stored probabilities found it."""
    doc = span.doc
    tokens, values = stored_state(doc)
    (of_tokens, of_values), found = _known.get(doc, ((b"", []), {}))
    same = len(values) == len(of_values) and all(a is b for a, b in zip(values, of_values))
    if tokens != of_tokens or not same:
        found = confidences(doc)
        _known[doc] = (tokens, values), found
    return found.get((span.start, span.end, span.label_))


def register_extension(force: bool = False) -> bool:
    """Make ``ent._.confidence`` available, as each ``crf_ner`` does when it is made or loaded. Call
    it where docs are read without a pipeline.

    force: take the name from an extension of somebody else's, which is left alone otherwise.
    RETURNS: whether the name is ours.
    """
    # Not at import: spaCy imports all factories whenever a pipeline is made, and a user's
    # Span.set_extension("confidence") would fail for no other reason than that.
    if force or not Span.has_extension(EXTENSION):
        Span.set_extension(EXTENSION, getter=confidence, force=True)
    return Span.get_extension(EXTENSION)[2] is confidence


def to_json(doc: Doc, underscore: Sequence[str] | None = None) -> dict[str, object]:
    """``doc.to_json``, whose entities have a "confidence", None where there is none.

    underscore: as of ``doc.to_json``, which has no values of getters for spans.
    """
    made = doc.to_json(underscore=list(underscore) if underscore else None)
    known = confidences(doc)
    for entry, ent in zip(made.get("ents", ()), doc.ents):
        entry["confidence"] = known.get((ent.start, ent.end, ent.label_))
    return made


def to_displacy(doc: Doc, digits: int = 2, kb_url_template: str | None = None) -> dict[str, object]:
    """The data of ``displacy.render(…, style="ent", manual=True)`` for the entities of a doc, with
    the confidence after the label that is drawn, as in "GPE 0.98"; displaCy's ``colors`` and
    ``ents`` go by the label alone. What displaCy does not escape is escaped.

    digits: of the confidence after its point.
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
                # In the place of what displaCy would write.
                "params": {"label": f"{escape(ent.label_)}{shown}"},
            }
        )
    return {
        "text": doc.text,
        "ents": drawn,
        "title": None if title is None else escape(str(title)),
        "settings": get_doc_settings(doc),
    }


__all__ = ["confidence", "confidences", "register_extension", "to_displacy", "to_json"]
