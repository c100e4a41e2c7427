"""Drawings of structures in the formats of displaCy."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from spacy.tokens import Doc

from spacy_latent.annotations.span_structure import Arc, Bracket, Dependency, Item, SpanStructure
from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind, known_kinds, without_record

# displaCy only escapes the text of words. So other strings must be numbers or escaped names of
# labels.
DisplacyInput = dict[str, object]
# The displaCy style for the parts of each accessor. displaCy cannot draw other parts.
DISPLACY_STYLES = {"arcs": "dep", "items": "ent", "tags": "span", "brackets": "span"}


def draw_arcs(doc: Doc, span: SpanStructure, arcs: Sequence[Arc | Dependency]) -> DisplacyInput:
    """Return the drawing of a tree for the style "dep"."""
    roots = {arc.modifier for arc in arcs if arc.head is None}
    words = [
        {"text": _visible(token.text), "tag": "root" if token.i in roots else ""}
        for token in doc[span.start : span.end]
    ]
    drawn = [
        {
            "start": min(arc.head, arc.modifier) - span.start,
            "end": max(arc.head, arc.modifier) - span.start,
            "label": _label(getattr(arc, "label", None), arc.probability),
            "dir": "left" if arc.modifier < arc.head else "right",
        }
        for arc in arcs
        if arc.head is not None and arc.head != arc.modifier
    ]
    return {"words": words, "arcs": drawn}


def draw_items(doc: Doc, span: SpanStructure, items: Sequence[Item]) -> DisplacyInput:
    """Return the drawing of chosen tokens for the style "ent"."""
    tokens = doc[span.start : span.end]
    entities = []
    for item in items:
        token = doc[item.token]
        start = token.idx - tokens.start_char
        label = _label(None, item.probability)
        entities.append({"start": start, "end": start + len(token), "label": label})
    return {"text": tokens.text, "ents": entities}


def draw_brackets(doc: Doc, span: SpanStructure, brackets: Sequence[Bracket]) -> DisplacyInput:
    """Return the drawing of spans or segments for the style "span"."""
    drawn = [
        (b.start - span.start, b.end - span.start, _label(_name(span, b.label), b.probability))
        for b in brackets
        if b.label is not None or b.end > b.start + 1
    ]
    return _draw_spans(doc, span, drawn)


def draw_tags(
    doc: Doc, span: SpanStructure, tags: Sequence[tuple[tuple[int, ...], float | None]]
) -> DisplacyInput:
    """Return the drawing of tags, (token, tag) with their probabilities, for the style "span"."""
    drawn = [(i, i + 1, _label(_name(span, tag), p)) for (i, tag), p in tags]
    return _draw_spans(doc, span, drawn)


def _draw_spans(
    doc: Doc, span: SpanStructure, drawn: Sequence[tuple[int, int, str]]
) -> DisplacyInput:
    return {
        "tokens": [_visible(token.text) for token in doc[span.start : span.end]],
        "spans": [
            {"start_token": start, "end_token": end, "label": label} for start, end, label in drawn
        ],
    }


def style_of(span: SpanStructure) -> str:
    """Return the style in which displaCy draws a structure."""
    style = _style_of_accessors(find_kind(span.kind).accessors)
    if not style:
        drawn = [kind.name for kind in known_kinds() if _style_of_accessors(kind.accessors)]
        raise LatentError(
            f"displaCy cannot draw {span.structure}: its kind is {span.kind!r}; expected one of "
            f"{', '.join(drawn)}. Use spacy_latent.visualize.render, or read "
            f"doc._.latent[...].spans[i].decoded.{without_record(span.kind)}"
        )
    return style


def _style_of_accessors(accessors: Sequence[str]) -> str:
    """Return the displaCy style for these accessors, or "" if displaCy can draw none of them."""
    return next((DISPLACY_STYLES[name] for name in accessors if name in DISPLACY_STYLES), "")


def _name(span: SpanStructure, label: int | None) -> str | None:
    if label is None:
        return None
    return str(label) if span.labels is None else span.labels[label]


def _label(name: str | None, probability: float | None) -> str:
    # displaCy does not escape labels.
    shown = [] if name is None else [escape(name)]
    if probability is not None:
        shown.append(f"{probability:.2f}")
    return " ".join(shown)


def _visible(text: str) -> str:
    """Return the text, or a visible sign for white space, which displaCy would not draw."""
    return text if text.strip() else "␣"
