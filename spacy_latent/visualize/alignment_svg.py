"""Alignments drawn as two columns of words with lines between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spacy_latent.errors import number_of
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
from spacy_latent.visualize.palette import opacity
from spacy_latent.visualize.picture import Picture
from spacy_latent.visualize.text_size import widest

WORD = 15
ROW = 24
LABEL = 10
# Least and greatest distance between the columns. It grows with their height, because lines
# between close columns would be almost vertical.
BETWEEN = (170.0, 460.0)


@dataclass(frozen=True)
class DrawnCell:
    """Pair of positions in the two texts.

    Attributes:
        source, target: Positions in the first and in the second text.
        chosen: True if the pair is part of the best structure.
        set_apart, shared: See :class:`spacy_latent.visualize.arcs_svg.DrawnArc`.
    """

    source: int
    target: int
    probability: float = 1.0
    chosen: bool = True
    set_apart: bool = False
    shared: bool = False

    # The legend reads these attributes of every part that is drawn.
    label = name = ""

    @property
    def faint(self) -> bool:
        """True if the pair is not part of the best structure."""
        return not self.chosen


def draw_alignment(
    source: Sequence[str],
    target: Sequence[str],
    cells: Sequence[DrawnCell],
    options: DrawingOptions,
    title: str,
    known: bool = True,
    caption: str = "",
    weight: float | None = None,
) -> Picture:
    """Draw two columns of words, with a line for each cell.

    The first text is in the left column, or in the right one for text that runs from right to left.
    The width and the darkness of a line grow with the probability of the cell. Lines of cells that
    are not chosen are dashed. Columns, unlike rows, keep the lines short when the texts are long.

    Args:
        known: True if probabilities are stored.
    """
    first, second = (widest(map(shortened, words), WORD) for words in (source, target))
    rows = max(len(source), len(target), 1)
    start = options.offset_x + first + 8
    end = start + min(BETWEEN[1], max(BETWEEN[0], rows * ROW / 2))
    across = end + 8 + second + options.offset_x
    down = rows * ROW + 16

    # A shorter text is spread over the height of the longer one, to keep lines horizontal.
    def y(i: int, words: Sequence[str]) -> float:
        return 8 + (i + 0.5) * rows * ROW / len(words)

    content = []
    for cell in sorted(cells, key=lambda cell: cell.probability):
        left, right = options.x(start, across), options.x(end, across)
        a, b, c, d = map(number, (left, y(cell.source, source), right, y(cell.target, target)))
        middle = number((left + right) / 2)
        path = f"M{a},{b}C{middle},{b} {middle},{d} {c},{d}"
        line = options.line(cell, path, 2 * options.arrow_stroke)
        line["stroke-linecap"] = None if line["stroke-dasharray"] else "round"
        strength = opacity(cell.probability, cell.set_apart, cell.shared)
        tooltip = element("title", {}, text(said(cell, source, target, known)))
        group = {"class": "sl-cell", "opacity": strength}
        drawn = element("g", group, tooltip, element("path", line))
        content.append(of_words(options.marked, (cell.source, f"b{cell.target}"), drawn))
    # For text from right to left, "end" is the left edge, so that the anchors need no mirroring.
    columns = ((source, start - 8, "end", ""), (target, end + 8, "start", "b"))
    for words, place, anchor, text_name in columns:
        for i, word in enumerate(words):
            where: dict[str, object] = {
                "x": options.x(place, across),
                "y": y(i, words) + WORD / 3,
                "data-word": f"{text_name}{i}" if options.marked else None,
            }
            content.append(element("text", {**options.word(anchor), **where}, word_text(word)))
    return Picture(
        "".join(content),
        title,
        description(cells, source, target, known),
        (across, down),
        caption,
        weight,
        signs=signs_of("pair", cells),
    )


def said(cell: DrawnCell, source: Sequence[str], target: Sequence[str], known: bool) -> str:
    """Return a cell in words."""
    pair = f"{shortened(source[cell.source])} ~ {shortened(target[cell.target])}"
    return f"{pair} ({cell.probability:.2f})" if known else pair


def description(
    cells: Sequence[DrawnCell], source: Sequence[str], target: Sequence[str], known: bool
) -> str:
    """Return the strongest cells in words, as the description of the drawing for screen readers."""
    strongest = sorted(cells, key=lambda cell: -cell.probability)
    pairs = listed(strongest, lambda cell: said(cell, source, target, known))
    words, count = number_of(len(source), "word"), number_of(len(cells), "pair")
    return f"{words} against {len(target)}, {count}: {pairs}."
