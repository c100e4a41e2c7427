"""Styles: the drawings of structures of this package's kinds.

A custom kind has its own drawings, see :mod:`spacy_latent.kinds`. It may also reuse the drawings
here by being like another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spacy.tokens import Doc

from spacy_latent.annotations import SpanStructure, names_entities
from spacy_latent.annotations.heads import known_heads
from spacy_latent.errors import LatentError, number_of
from spacy_latent.kinds import (
    BUILT_IN,
    PARTS,
    Drawing,
    Kind,
    Part,
    complete_kind,
    find_kind,
    known_kinds,
)
from spacy_latent.visualize.alignment_svg import DrawnCell, draw_alignment
from spacy_latent.visualize.arcs_svg import DrawnArc
from spacy_latent.visualize.brackets_svg import DrawnBracket, draw_brackets
from spacy_latent.visualize.entity_pictures import draw_entities
from spacy_latent.visualize.heat_map_svg import draw_heat_map
from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.picture import Drawn, Figure, Picture, weight_text
from spacy_latent.visualize.structure_view import PARTS_PER_WORD, StructureView, has_heads
from spacy_latent.visualize.tag_rows import DrawnTag, TagRow, draw_tags
from spacy_latent.visualize.tree_svg import draw_tree

# The styles of this package, in the order in which messages list them.
STYLES = ("tree", "alignment", "heatmap", "tags", "entities", "rationale", "brackets", "parts")

_Marked = DrawnArc | DrawnBracket | DrawnCell


def _tree(view: StructureView) -> Drawn:
    gold = _gold_arcs(view.gold, view.span) if view.gold and has_heads(view.gold) else []
    in_gold = {(arc.head, arc.modifier) for arc in gold}
    compared: list[bool] = []
    if view.gold is not None and gold:
        compared = (known_heads(view.gold)[0][view.span.start :] >= 0).tolist()
    counted = {arc for arc in in_gold if view.words[arc[1]] not in view.options.ignore}
    pictures = []
    for alternative, weight in view.choices:
        parts = view.arcs(alternative, PARTS_PER_WORD * len(view.words))
        # Each alternative is compared with the gold tree if there is one, else with the first.
        first = None if gold else view.first(alternative)
        arcs = []
        for (h, m), name, p, chosen in parts:
            head = None if h == 0 else h - 1
            apart, shared = _compared((h, m), first)
            apart |= bool(gold) and compared[m - 1] and (head, m - 1) not in in_gold
            label = f"{name} {view.label(p)}".strip()
            arcs.append(DrawnArc(head, m - 1, p, label, apart, not chosen, shared, name))
        here = {(None if h == 0 else h - 1, m - 1) for (h, m), _ in view.structure(alternative)}
        below = [
            DrawnArc(arc.head, arc.modifier, 1.0, arc.label, (arc.head, arc.modifier) not in here)
            for arc in gold
        ]
        caption = _count(arcs, first, "arc")
        if gold:
            caption = f"{len(here & counted)} of {number_of(len(counted), 'arc')} as in gold"
        drawn = draw_tree(
            view.words, arcs, view.options, view.title, below, caption, weight, view.counters
        )
        pictures.append(drawn)
    return pictures, "gold below" if gold else ""


def _gold_arcs(doc: Doc, span: SpanStructure) -> list[DrawnArc]:
    arcs = []
    heads = known_heads(doc)[0].tolist()
    for token in doc[span.start : span.end]:
        head = None if heads[token.i] == token.i else heads[token.i] - span.start
        # A head that is unknown or outside of the span cannot be drawn.
        if heads[token.i] >= 0 and (head is None or 0 <= head < len(span)):
            label = "" if head is None else token.dep_
            arcs.append(DrawnArc(head, token.i - span.start, 1.0, label))
    labels = [arc.label for arc in arcs if arc.head is not None]
    # A label that all parts have carries no information.
    alike = len(labels) > 1 and len(set(labels)) == 1
    return [replace(arc, label="") for arc in arcs] if alike else arcs


def _brackets(view: StructureView) -> Drawn:
    pictures = []
    most = PARTS_PER_WORD * len(view.words)
    for alternative, weight in view.choices:
        brackets = []
        before = view.first(alternative)
        for (first, last, *label), p, chosen in view.parts(alternative, most):
            how = (not chosen, *_compared((first, last, *label), before))
            if label:
                name = view.tag_name(label[0])
                shown = f"{name} {view.label(p)}".strip()
                brackets.append(DrawnBracket(first, last, p, shown, label[0], *how, name))
            elif last > first:
                # Trees have a span over every word, and its bracket would carry no information.
                brackets.append(DrawnBracket(first, last + 1, p, view.label(p), None, *how))
        caption = _count(brackets, before, "span")
        drawn = draw_brackets(
            view.words, brackets, view.options, view.title, caption, weight, view.counters
        )
        pictures.append(drawn)
    return pictures, ""


def _compared(part: Part, first: set[Part] | None) -> tuple[bool, bool]:
    """Return whether to emphasize a part of an alternative, and whether the first one has it."""
    return (False, False) if first is None else (part not in first, part in first)


def _count(parts: Sequence[_Marked], first: set[Part] | None, name: str) -> str:
    """Return, in words, the number of parts by which an alternative differs from the first."""
    if first is None:
        return ""
    count = sum(part.set_apart for part in parts)
    return f"{number_of(count, name)} not in the first"


def _pairs(view: StructureView, draw: Callable[..., Picture], per_word: int | None) -> Drawn:
    # Raises an error if the other text is not known.
    view.annotation.cells()
    other = view.doc[view.span.other_start : view.span.other_end]
    columns = [token.text for token in other]
    most = None if per_word is None else per_word * (len(view.words) + len(columns))
    return _tables(view, draw, view.words, columns, lambda part: (part[0], part[1]), most), ""


def _map_of_arcs(view: StructureView) -> Drawn:
    rows = ["(root)", *view.words]
    drawn = _tables(view, draw_heat_map, rows, view.words, lambda part: (part[0], part[1] - 1))
    return drawn, "rows are heads of the columns"


def _map_of_tags(view: StructureView) -> Drawn:
    numbers = [part[1] for part, _, _ in view.parts(None)]
    numbers += [int(tag) for decoded, _ in view.span.alternatives for tag in decoded]
    names = [view.tag_name(i) for i in range(max(numbers, default=-1) + 1)]
    drawn = _tables(view, draw_heat_map, names, view.words, lambda part: (part[1], part[0]))
    return drawn, "tags by word"


def _tables(
    view: StructureView,
    draw: Callable[..., Picture],
    rows: list[str],
    columns: list[str],
    place: Callable[[Part], tuple[int, int]],
    most: int | None = None,
) -> list[Picture]:
    """Draw a table of the parts of each alternative.

    Args:
        place: row and column of a part.
        most: see :meth:`StructureView.parts`.
    """
    options, title, known = view.options, view.title, view.known
    pictures = []
    for alternative, weight in view.choices:
        first = view.first(alternative)
        cells = [
            DrawnCell(*place(part), p, chosen, *_compared(part, first))
            for part, p, chosen in view.parts(alternative, most)
        ]
        caption = _count(cells, first, "part")
        pictures.append(draw(rows, columns, cells, options, title, known, caption, weight))
    return pictures


def _tags(view: StructureView) -> Drawn:
    shown = view.known and view.options.probabilities

    def tag(number: int, p: float, other: bool = False, first: bool = True) -> DrawnTag:
        return DrawnTag(number, view.tag_name(number), p, other, shown and first)

    best: list[int] = []
    rows: list[TagRow] = []
    for alternative, weight in view.choices:
        sequence = view.structure(alternative)
        first = not rows
        best = best or [number for (_, number), _ in sequence]
        tags = [[tag(number, p, number != best[i], first)] for (i, number), p in sequence]
        rows.append(TagRow(tags, "" if weight is None else weight_text(weight)))
    further: list[list[DrawnTag]] = [[] for _ in view.words]
    if view.options.threshold is not None:
        probable = view.probable(view.options.threshold)
        for (i, number), p in sorted(probable, key=lambda one: -one[1]):
            if number != best[i] and len(further[i]) < PARTS_PER_WORD:
                further[i].append(tag(number, p, True))
    if any(further):
        rows.append(TagRow(further, "else"))
    drawn = draw_tags(view.words, rows, view.options, view.title)
    weighted = any(weight is not None for _, weight in view.choices)
    return [replace(drawn, caption="weight of each structure, its tags" * weighted)], ""


def _rationale(view: StructureView) -> Drawn:
    if not _is_of_tokens(view.span):
        raise _not_drawn(view, "rationale")
    pictures = []
    for alternative, weight in view.choices:
        first = view.first(alternative)
        marks = [
            # In further alternatives, only the differences from the first one stand out.
            Highlight(i, i + 1, p, "", view.label(p), not chosen or (i,) in (first or ()))
            for (i,), p, chosen in sorted(view.parts(alternative))
        ]
        drawn = draw_highlights(view.spaced_words, marks, view.options, view.title, weight=weight)
        if first is not None:
            drawn = replace(drawn, signs=frozenset({"mark", "shared mark"}))
        pictures.append(drawn)
    return pictures, ""


def _list_of_parts(view: StructureView) -> Drawn:
    """Draw a row for each part, which works for every kind."""
    most = PARTS_PER_WORD * len(view.words)
    found = [part for alternative, _ in view.choices for part in view.parts(alternative, most)]
    numbers = sorted({part for part, _, _ in found})
    row = {part: i for i, part in enumerate(numbers)}
    text = find_kind(view.span.kind).part_text
    rows = [text(view.annotation, view.span, part) for part in numbers]
    columns = ["probability" if view.known else "chosen"]
    drawn = _tables(view, draw_heat_map, rows, columns, lambda part: (row[part], 0), most)
    return drawn, "a row for each part"


def _is_of_tokens(span: SpanStructure) -> bool:
    """Return whether each part of the decoded structure is one token."""
    parts = find_kind(span.kind).parts(span.decoded)
    return all(len(part) == 1 and part[0] < len(span) for part in parts)


_OF_ARCS = {
    "tree": Drawing(
        _tree,
        seen="Over the words stands the tree that the pipeline found: arrows lead from a word, the "
        "head, to those that depend on it.",
    ),
    "heatmap": Drawing(
        _map_of_arcs,
        seen="Each column is a word, each row a head that it may have: the stronger the colour, "
        "the more probable.",
    ),
}
_OF_BRACKETS = {
    "brackets": Drawing(
        _brackets, seen="Below the words, a bracket joins those that the pipeline takes together."
    )
}
complete_kind(
    PARTS,
    drawings={
        "rationale": Drawing(_rationale, _is_of_tokens, "Marked are chosen words."),
        "parts": Drawing(
            _list_of_parts,
            seen="Each row is a part of the structure that the pipeline found, by its numbers: the "
            "stronger the colour, the more probable.",
        ),
    },
)
complete_kind("heads", drawings=_OF_ARCS)
complete_kind("arcs", drawings=_OF_ARCS)
complete_kind(
    "cells",
    drawings={
        "alignment": Drawing(
            lambda view: _pairs(view, draw_alignment, PARTS_PER_WORD),
            seen="Lines join the words of two texts that the pipeline found to match.",
        ),
        "heatmap": Drawing(
            lambda view: _pairs(view, draw_heat_map, None),
            seen="Rows are the words of one text and columns those of another: the stronger "
            "the colour, the more probable it is that two match.",
        ),
    },
)
complete_kind(
    "tags",
    drawings={
        "entities": Drawing(
            draw_entities,
            lambda span: names_entities(span.labels),
            "Marked are the entities that the pipeline found, with their labels.",
        ),
        "tags": Drawing(_tags, seen="Below each word stands its tag in the best sequence of tags."),
        "heatmap": Drawing(
            _map_of_tags,
            seen="Each column is a word, each row a tag: the stronger the colour, the more "
            "probable.",
        ),
    },
)
complete_kind(
    "items",
    drawings={
        "rationale": Drawing(
            _rationale, seen="Marked are the words that the pipeline chose to decide by."
        )
    },
)
complete_kind("spans", drawings=_OF_BRACKETS)
complete_kind("segments", drawings=_OF_BRACKETS)


def known_styles() -> list[str]:
    """Return :data:`STYLES` and the styles of custom kinds."""
    others = (name for kind in known_kinds() for name in kind.drawings)
    return list(dict.fromkeys([*STYLES, *others]))


def default_style(span: SpanStructure) -> str | None:
    """Return the first style that matches the structure, or None."""
    drawings = find_kind(span.kind).drawings.items()
    return next((name for name, drawing in drawings if drawing.fits(span)), None)


def draw_figure(view: StructureView, style: str | None) -> Figure:
    """Draw a structure in a style of :func:`known_styles`, or in its default style.

    Raises:
        LatentError: If the style does not match; the message lists the styles that do.
    """
    kind = find_kind(view.span.kind)
    style = style or default_style(view.span)
    if style is None or style not in kind.drawings:
        raise _not_drawn(view, style)
    pictures, note = kind.drawings[style].draw(view)
    parts = [view.component, view.span.structure, view.category, view.gold_category, note]
    caption, seen = " · ".join(filter(None, parts)), kind.drawings[style].seen
    return Figure(tuple(pictures), caption, view.options, seen)


def _not_drawn(view: StructureView, style: str | None) -> LatentError:
    span, kind = view.span, find_kind(view.span.kind)
    drawings = kind.drawings
    fitting = [name for name in known_styles() if name in drawings and drawings[name].fits(span)]
    reason = f"style is {style!r}, and " if style else "There is no drawing of this: "
    instead = f"drawn with {', '.join(fitting)}" if fitting else "not drawn"
    return LatentError(
        f"{reason}{span.structure} of {view.component!r} has the kind {kind.name!r}, "
        f"which is {instead}. {_advice(kind, style, bool(fitting))}"
    )


def _advice(kind: Kind, style: str | None, drawn: bool) -> str:
    """Return advice for a kind that is not drawn in a style, or in any style."""
    leave = "Leave style out, or name a component"
    if kind.name in BUILT_IN and kind.name != PARTS:
        return f"{leave}."
    name, named = kind.name, ""
    if name == PARTS:
        name, named = "windows", ", and parts = 'windows' to the structure"
    record = f"Kind({name!r}, drawings={{{style or 'blocks'!r}: Drawing(draw)}})"
    drawing = f"drawings to its record, register_kind({record}) of spacy_latent.kinds{named}"
    return f"{leave}; or add {drawing}." if drawn else f"Add {drawing}."
