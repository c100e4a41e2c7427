"""Latent structures drawn by displaCy itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import repeat
from typing import Any

from spacy import displacy
from spacy.tokens import Doc

from spacy_latent.annotations import Dependency, LatentAnnotation, SpanStructure
from spacy_latent.annotations.displacy import draw_arcs
from spacy_latent.annotations.heads import known_heads
from spacy_latent.characters import of_same_length
from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind
from spacy_latent.visualize.drawing_options import settings_of
from spacy_latent.visualize.picture import weight_caption
from spacy_latent.visualize.structure_view import PARTS_PER_WORD, has_heads
from spacy_latent.visualize.text_size import widest

# Font size, which displaCy leaves to the browser.
WORD = 16
INSIDE = (
    "Structures inside of another component, such as a LatentTok2Vec, are written by "
    "inspect_docs(nlp, docs) of spacy_latent.pipeline.latent_encoder."
)
NO_STRUCTURE = (
    "There is no latent structure to draw on the docs. Were they made by the pipeline, with "
    f"annotate other than 'none'? {INSIDE}"
)
OWN_OPTIONS = ("threshold", "alternatives", "probabilities", "counters", "fold")


def render_with_displacy(
    docs: Sequence[Doc],
    component: str | None,
    style: str,
    page: bool,
    minify: bool,
    jupyter: bool | None,
    options: Mapping[str, object],
    gold: Sequence[Doc] | None,
) -> str:
    """Draw structures with ``displacy.render``, without line widths and opacities.

    See :func:`spacy_latent.visualize.render` for the other arguments.

    Args:
        style: "dep" for trees, "ent" for items, "span" for tags, spans and segments. A style that
            does not match the structure is refused.
    """
    theirs = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    threshold: Any = options.get("threshold")
    alternatives: Any = options.get("alternatives") or 0
    drawings: list[dict[str, Any]] = []
    for doc, its_gold in zip(docs, gold or repeat(None)):
        drawings += make_drawings(
            doc, component, threshold=threshold, alternatives=alternatives, gold=its_gold
        )
    found = {_style(drawing) for drawing in drawings}
    if found - {style}:
        raise LatentError(
            f"style is {style!r}; these structures are drawn with {', '.join(sorted(found))}. "
            "Leave style out, or name a component."
        )
    if page and docs and not drawings and not any(len(doc._.latent) for doc in docs):
        raise LatentError(NO_STRUCTURE)
    return displacy.render(
        drawings,
        style=style,
        page=page,
        minify=minify,
        jupyter=jupyter,
        options={**_distances(drawings, theirs), **theirs},
        manual=True,
    )


def _distances(drawings: list[dict[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults of displaCy's distances, for the widest word."""
    words = [word for drawing in drawings for word in drawing.get("words", ())]
    shown = (word.get(part) or "" for word in words for part in ("text", "tag"))
    distance = given.get("distance", max(90, math.ceil(widest(shown, WORD) + 20)))
    # displaCy shifts an arrow by the spacing for each level of arcs above it, and latent trees are
    # deep.
    return {"distance": distance, "arrow_spacing": 4, "offset_x": distance // 2}


def drawn_components(doc: Doc, component: str | None) -> list[str]:
    """Return the components whose structures are drawn: the given one, or all with structures.

    Raises:
        LatentError: If the given component wrote no structure.
    """
    if component is None:
        return list(doc._.latent)
    if component not in doc._.latent:
        there = ", ".join(doc._.latent) or "nothing"
        raise LatentError(
            f"There is no latent structure of {component!r} on the doc; it has {there}. Process "
            f"the doc with the pipeline, with annotate other than 'none'. {INSIDE}"
        )
    return [component]


def _style(drawing: dict[str, Any]) -> str:
    """Return the displaCy style that a drawing is for."""
    return "dep" if "arcs" in drawing else "ent" if "ents" in drawing else "span"


def make_drawings(
    doc: Doc,
    component: str | None = None,
    *,
    threshold: float | None = None,
    alternatives: int = 0,
    gold: Doc | None = None,
) -> list[dict[str, object]]:
    """Return the data that ``displacy.render(..., manual=True)`` draws.

    See :func:`spacy_latent.visualize.render` for the arguments.
    """
    drawings = []
    for name in drawn_components(doc, component):
        annotation = doc._.latent[name]
        for span in annotation.spans:
            drawings += _span_drawings(annotation, span, threshold, alternatives)
            if gold is not None and has_heads(gold) and "heads" in find_kind(span.kind).accessors:
                drawings.append(_gold_drawing(gold, span))
    settings = settings_of(doc)
    return [{**_harmless(drawing), "settings": settings} for drawing in drawings]


def _harmless(value: Any) -> Any:
    """Replace control characters and direction overrides, which displaCy draws as they are."""
    if isinstance(value, str):
        return of_same_length(value)
    if isinstance(value, list):
        return [_harmless(each) for each in value]
    if isinstance(value, dict):
        return {key: _harmless(each) for key, each in value.items()}
    return value


def _span_drawings(
    annotation: LatentAnnotation, span: SpanStructure, threshold: float | None, alternatives: int
) -> list[dict[str, Any]]:
    alone = LatentAnnotation(annotation.doc, annotation.component, [span])
    if alternatives and span.alternatives:
        drawn = []
        for i, (_, weight) in enumerate(span.alternatives[:alternatives]):
            (drawing,) = alone.to_displacy(alternative=i)
            drawn.append({**drawing, "title": weight_caption(weight)})
        return drawn
    (drawing,) = alone.to_displacy(threshold=threshold)
    for name in ("arcs", "spans"):
        # Labels are probabilities, except for tags and segments, which are few. displaCy stacks
        # overlapping labels, so a drawing of 30 words with all arcs would be 50,000 pixels wide.
        if name in drawing and not _has_labels(span):
            parts: Any = drawing[name]
            strongest = sorted(parts, key=lambda part: part["label"], reverse=True)
            drawing[name] = strongest[: PARTS_PER_WORD * len(span)]
    drawing["title"] = escape(annotation.component)
    return [drawing]


def _has_labels(span: SpanStructure) -> bool:
    """Return whether the structure has labels: tags, or brackets with a third number."""
    kind = find_kind(span.kind)
    return "tags" in kind.accessors or any(len(part) > 2 for part in kind.parts(span.decoded))


def _gold_drawing(doc: Doc, span: SpanStructure) -> dict[str, Any]:
    heads = known_heads(doc)[0].tolist()
    arcs = [
        Dependency(None if token.head == token else token.head.i, token.i, token.dep_, None)
        for token in doc[span.start : span.end]
        # A head that is unknown or outside of the span cannot be drawn.
        if span.start <= heads[token.i] < span.end
    ]
    return {**draw_arcs(doc, span, arcs), "title": "gold"}
