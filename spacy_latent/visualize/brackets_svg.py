"""Spans of words drawn as brackets below them: constituency and shift-reduce trees, segments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spacy_latent.errors import number_of
from spacy_latent.visualize.arcs_svg import CLEAR
from spacy_latent.visualize.curves_svg import draw_curves, said_of_curves
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.legend import signs_of
from spacy_latent.visualize.markup import (
    element,
    listed,
    number,
    of_words,
    shortened,
    text,
    word_text,
)
from spacy_latent.visualize.nesting import levels
from spacy_latent.visualize.palette import category_color, opacity, tinted
from spacy_latent.visualize.picture import Picture, folded, in_one_row, row_ends
from spacy_latent.visualize.text_size import text_width
from spacy_latent.visualize.tree_svg import TOKEN

WORD = 15
LABEL = 10
GAP = 16
STEP = (6.0, 24.0)
HEIGHT = 420
STEP_WITH_LABELS = 16


@dataclass(frozen=True)
class DrawnBracket:
    """Bracket below the words ``start`` to ``end``, exclusive.

    Attributes:
        category: Number of the colour.
        faint, set_apart, shared, name: See :class:`spacy_latent.visualize.arcs_svg.DrawnArc`.
    """

    start: int
    end: int
    probability: float = 1.0
    label: str = ""
    category: int | None = None
    faint: bool = False
    set_apart: bool = False
    shared: bool = False
    name: str = ""


def draw_brackets(
    words: Sequence[str],
    brackets: Sequence[DrawnBracket],
    options: DrawingOptions,
    title: str,
    caption: str = "",
    weight: float | None = None,
    counters: np.ndarray | None = None,
) -> Picture:
    """Draw a row of words with a bracket below each span; longer spans are lower.

    Args:
        counters: Counters to draw below the brackets; see
            :func:`spacy_latent.visualize.curves_svg.draw_curves`.
    """
    depth = levels([(b.start, b.end) for b in brackets])
    step = min(STEP[1], max(STEP[0], HEIGHT / max([1, *depth])))
    labelled = [b for b in brackets if b.label and not b.shared and step >= STEP_WITH_LABELS]
    edges = _edges(words, labelled, options)
    across = edges[-1] + options.offset_x
    breaks = [options.x(end, across) for end in row_ends(edges[1:], options)]
    content = []
    for i, word in enumerate(words):
        center = options.x((edges[i] + edges[i + 1]) / 2, across)
        attributes = {**options.word(), "class": TOKEN, "x": center, "y": 12 + WORD}
        if options.marked:
            attributes["data-word"] = i
        content.append(element("text", attributes, word_text(word)))
    for bracket, level in zip(brackets, depth):
        left, right = edges[bracket.start] + 4, edges[bracket.end] - 4
        if options.rtl:
            left, right = across - right, across - left
        y = 20 + WORD + level * step
        drawn = [_bracket(bracket, left, right, y, min(step - 3, 7), options, words)]
        if step >= STEP_WITH_LABELS and bracket.label and not bracket.shared:
            half = text_width(bracket.label, LABEL) / 2 + CLEAR
            middle = in_one_row((left + right) / 2, half, breaks)
            where = {"x": middle, "y": y - CLEAR, "font-size": LABEL}
            attributes = {"class": "displacy-label sl-number", "text-anchor": "middle", **where}
            attributes["direction"] = "ltr"
            drawn.append(element("text", attributes, text(bracket.label)))
        content.append(of_words(options.marked, range(bracket.start, bracket.end), *drawn))
    down = 20 + WORD + max([0, *depth]) * step + 14
    curves, further = draw_curves(counters, edges[1:], across, down, options)
    content.append(curves)
    down += further
    size, count = number_of(len(words), "word"), number_of(len(brackets), "span")
    said = listed(brackets, lambda bracket: _said(bracket, words))
    description = f"{size}, {count}: {said}.{said_of_curves(counters)}"
    signs = signs_of("bracket", brackets) | ({"counters"} if further else set())
    picture = Picture(
        "".join(content), title, description, (across, down), caption, weight, signs=signs
    )
    return folded(picture, edges[1:], options)


def _edges(
    words: Sequence[str], labelled: Sequence[DrawnBracket], options: DrawingOptions
) -> list[float]:
    """Return the start of each word and the end of the last one.

    No word and no label is wider than the space that it gets.
    """
    ending: dict[int, list[DrawnBracket]] = defaultdict(list)
    for bracket in labelled:
        ending[bracket.end].append(bracket)
    edges = [options.offset_x]
    for i, word in enumerate(words, 1):
        width = text_width(shortened(word), WORD) + (8 if options.compact else GAP)
        end = edges[-1] + max(width, 30, options.distance or 0)
        labels = [edges[b.start] + text_width(b.label, LABEL) + 8 for b in ending[i]]
        edges.append(max([end, *labels]))
    return edges


def _bracket(
    bracket: DrawnBracket,
    left: float,
    right: float,
    y: float,
    rise: float,
    options: DrawingOptions,
    words: Sequence[str],
) -> str:
    path = f"M{number(left)},{number(y - rise)}V{number(y)}H{number(right)}V{number(y - rise)}"
    line = options.line(bracket, path, options.arrow_stroke)
    if bracket.category is not None and not bracket.shared:
        color = options.colors.get(bracket.name) or category_color(bracket.category)
        line.update({"class": None, "stroke": color, "fill": tinted(color, 0.25)})
    seen = opacity(bracket.probability, bracket.set_apart, bracket.shared)
    group = {"class": "sl-bracket", "opacity": seen}
    tooltip = element("title", {}, text(_said(bracket, words)))
    return element("g", group, tooltip, element("path", line))


def _said(bracket: DrawnBracket, words: Sequence[str]) -> str:
    inside = " ".join(shortened(word) for word in words[bracket.start : bracket.end][:12])
    more = " …" if bracket.end - bracket.start > 12 else ""
    return f"{inside}{more}" + (f" ({bracket.label})" if bracket.label else "")
