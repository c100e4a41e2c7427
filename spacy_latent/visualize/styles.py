"""The styles: what is drawn of a structure of which kind. A new one is a function and a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spacy.tokens import Doc

from spacy_latent.annotations import SpanStructure, names_entities
from spacy_latent.errors import LatentError
from spacy_latent.visualize.alignment_svg import DrawnCell, draw_alignment
from spacy_latent.visualize.brackets_svg import DrawnBracket, draw_brackets
from spacy_latent.visualize.heat_map_svg import draw_heat_map
from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.picture import Figure, Picture
from spacy_latent.visualize.subject import PARTS_PER_WORD, Subject
from spacy_latent.visualize.tag_rows import DrawnTag, TagRow, draw_tags
from spacy_latent.visualize.tree_svg import DrawnArc, draw_tree

# How each kind is drawn if no style is asked for; tags that make entities as such.
DEFAULT_STYLES = {
    "heads": "tree",
    "arcs": "tree",
    "cells": "alignment",
    "tags": "tags",
    "items": "rationale",
    "spans": "brackets",
    "segments": "brackets",
}

# Pictures side by side, and what the caption says of them.
Drawn = tuple[list[Picture], str]


def _tree(subject: Subject) -> Drawn:
    gold = [] if subject.gold is None else _gold_arcs(subject.gold, subject.span)
    in_gold = {(arc.head, arc.modifier) for arc in gold}
    pictures = []
    for alternative, weight in subject.choices:
        parts = subject.parts(alternative, PARTS_PER_WORD * len(subject.words))
        arcs = []
        for (h, m), p, chosen in parts:
            head = None if h == 0 else h - 1
            apart = bool(gold) and (head, m - 1) not in in_gold
            arcs.append(DrawnArc(head, m - 1, p, subject.label(p), apart, not chosen))
        here = {(None if h == 0 else h - 1, m - 1) for (h, m), _ in subject.structure(alternative)}
        below = [
            DrawnArc(arc.head, arc.modifier, 1.0, arc.label, (arc.head, arc.modifier) not in here)
            for arc in gold
        ]
        same = f"{len(here & in_gold)} of {len(gold)} arcs as in gold" if gold else ""
        drawn = draw_tree(
            subject.words, arcs, subject.look, subject.title, below, same, weight, subject.counters
        )
        pictures.append(drawn)
    return pictures, "gold below" if gold else ""


def _gold_arcs(doc: Doc, span: SpanStructure) -> list[DrawnArc]:
    arcs = []
    for token in doc[span.start : span.end]:
        head = None if token.head.i == token.i else token.head.i - span.start
        # A head outside of the span has no place in this picture.
        if head is None or 0 <= head < len(span):
            label = "" if head is None else token.dep_
            arcs.append(DrawnArc(head, token.i - span.start, 1.0, label))
    return arcs


def _brackets(subject: Subject) -> Drawn:
    pictures = []
    most = PARTS_PER_WORD * len(subject.words)
    for alternative, weight in subject.choices:
        brackets = []
        for (first, last, *label), p, chosen in subject.parts(alternative, most):
            if label:
                name = f"{subject.tag_name(label[0])} {subject.label(p)}".strip()
                brackets.append(DrawnBracket(first, last, p, name, label[0], not chosen))
            elif last > first:
                # Trees have a span over every word: these would say nothing.
                brackets.append(
                    DrawnBracket(first, last + 1, p, subject.label(p), faint=not chosen)
                )
        drawn = draw_brackets(
            subject.words, brackets, subject.look, subject.title, "", weight, subject.counters
        )
        pictures.append(drawn)
    return pictures, ""


def _alignment(subject: Subject) -> Drawn:
    return _pairs(subject, draw_alignment, PARTS_PER_WORD)


def _heat_map(subject: Subject) -> Drawn:
    return _pairs(subject, draw_heat_map, None)


def _pairs(subject: Subject, draw: Callable[..., Picture], per_word: int | None) -> Drawn:
    rows, columns, shift, note = _axes(subject)
    most = None if per_word is None else per_word * (len(rows) + len(columns))
    pictures = []
    for alternative, weight in subject.choices:
        cells = [
            DrawnCell(part[0] - shift[0], part[1] - shift[1], p, chosen)
            for part, p, chosen in _all_parts(subject, alternative, most)
        ]
        pictures.append(
            draw(rows, columns, cells, subject.look, subject.title, subject.known, weight=weight)
        )
    return pictures, note


def _all_parts(
    subject: Subject, alternative: int | None, most: int | None = None
) -> list[tuple[tuple[int, ...], float, bool]]:
    """As of the subject, with tags before words."""
    parts = subject.parts(alternative, most)
    if subject.span.kind == "tags":
        return [((tag, i), p, chosen) for (i, tag), p, chosen in parts]
    return parts


def _axes(subject: Subject) -> tuple[list[str], list[str], tuple[int, int], str]:
    """Names of rows and columns, the indices that come first in them, and what they are."""
    span = subject.span
    if span.kind == "cells":
        # Asks for the other text, and says so where it is not known.
        subject.annotation.cells()
        other = subject.doc[span.other_start : span.other_end]
        return subject.words, [token.text for token in other], (0, 0), ""
    if span.kind == "tags":
        numbers = [part[0] for part, _, _ in _all_parts(subject, None)]
        numbers += [int(tag) for decoded, _ in span.alternatives for tag in decoded]
        names = [subject.tag_name(i) for i in range(max(numbers, default=-1) + 1)]
        return names, subject.words, (0, 0), "tags by word"
    return ["(root)", *subject.words], subject.words, (0, 1), "rows are heads of the columns"


def _tags(subject: Subject) -> Drawn:
    shown = subject.known and subject.look.probabilities

    def tag(number: int, p: float, other: bool = False, first: bool = True) -> DrawnTag:
        return DrawnTag(number, subject.tag_name(number), p, other, shown and first)

    best: list[int] = []
    rows: list[TagRow] = []
    for alternative, weight in subject.choices:
        sequence = subject.structure(alternative)
        first = not rows
        best = best or [number for (_, number), _ in sequence]
        tags = [[tag(number, p, number != best[i], first)] for (i, number), p in sequence]
        rows.append(TagRow(tags, "" if weight is None else f"{weight:.2f}"))
    further: list[list[DrawnTag]] = [[] for _ in subject.words]
    if subject.look.threshold is not None:
        probable = subject.annotation._chosen(subject.span, subject.look.threshold, None)
        for (i, number), p in sorted(probable, key=lambda one: -one[1]):
            if number != best[i] and len(further[i]) < PARTS_PER_WORD:
                further[i].append(tag(number, p, True))
    if any(further):
        rows.append(TagRow(further, "else"))
    return [draw_tags(subject.words, rows, subject.look, subject.title)], ""


def _entities(subject: Subject) -> Drawn:
    pictures = []
    for alternative, weight in subject.choices:
        # Of an alternative it is the whole sequence that has a probability.
        shown = alternative is None and subject.span.entity_probabilities is not None
        least = subject.look.threshold if alternative is None else None
        if least is not None:
            # Says so where no probabilities are stored.
            subject.parts(None)
        marks = [
            Highlight(
                entity.start - subject.span.start,
                entity.end - subject.span.start,
                entity.probability if shown else 1.0,
                entity.label,
                f"{entity.probability:.2f}" if shown and subject.look.probabilities else "",
            )
            for entity in subject.annotation.entities(alternative)
            if least is None or entity.probability >= least
        ]
        drawn = draw_highlights(
            subject.spaced_words, marks, subject.look, subject.title, weight=weight
        )
        pictures.append(drawn)
    return pictures, ""


def _rationale(subject: Subject) -> Drawn:
    pictures = []
    for alternative, weight in subject.choices:
        marks = [
            Highlight(i, i + 1, p, "", subject.label(p), not chosen)
            for (i,), p, chosen in sorted(subject.parts(alternative))
        ]
        drawn = draw_highlights(
            subject.spaced_words, marks, subject.look, subject.title, weight=weight
        )
        pictures.append(drawn)
    return pictures, ""


# By its name: the kinds that a style can draw, and how.
STYLES: Mapping[str, tuple[tuple[str, ...], Callable[[Subject], Drawn]]] = {
    "tree": (("heads", "arcs"), _tree),
    "alignment": (("cells",), _alignment),
    "heatmap": (("cells", "heads", "arcs", "tags"), _heat_map),
    "tags": (("tags",), _tags),
    "entities": (("tags",), _entities),
    "rationale": (("items",), _rationale),
    "brackets": (("spans", "segments"), _brackets),
}


def default_style(span: SpanStructure) -> str | None:
    """The style that fits best; None where there is none."""
    if span.kind == "tags" and names_entities(span.labels):
        return "entities"
    return DEFAULT_STYLES.get(span.kind)


def draw_figure(subject: Subject, style: str | None) -> Figure:
    """Draw a structure in a style of :data:`STYLES`, or in that which fits best.

    Raises LatentError where the style does not fit, with those that do.
    """
    kind = subject.span.kind
    style = style or default_style(subject.span)
    kinds, draw = STYLES.get(style or "", ((), _tree))
    if kind not in kinds:
        fitting = [name for name, (kinds, _) in STYLES.items() if kind in kinds]
        told = f"style is {style!r}, and " if style else "There is no drawing of this: "
        instead = f"drawn with {', '.join(fitting)}" if fitting else "not drawn"
        raise LatentError(
            f"{told}{subject.span.structure} of {subject.component!r} has the kind {kind!r}, which "
            f"is {instead}. Leave style out, or name a component."
        )
    pictures, note = draw(subject)
    parts = [subject.component, subject.span.structure, subject.category, note]
    return Figure(tuple(pictures), " · ".join(filter(None, parts)), subject.look)
