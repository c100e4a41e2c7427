"""Probabilities of pairs of words as a heat map."""

from __future__ import annotations

from collections.abc import Sequence

from spacy_latent.visualize.alignment_svg import DrawnCell, description, said
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.markup import element, shortened, text, word_text
from spacy_latent.visualize.palette import light, shade
from spacy_latent.visualize.picture import Picture
from spacy_latent.visualize.text_size import widest

CELL = 26
SMALL_CELL = 16
MANY = 30
WORD = 13
LABEL = 9


def draw_heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[DrawnCell],
    options: DrawingOptions,
    title: str,
    known: bool = True,
    caption: str = "",
    weight: float | None = None,
) -> Picture:
    """Draw a square for each cell, with the cells of the best structure framed.

    The squares of more probable cells are darker. Columns run from right to left for text that does
    so.

    Args:
        rows: Words of the rows; ``source`` of a cell is its row.
        columns: Words of the columns; ``target`` of a cell is its column.
        known: True if probabilities are stored.
    """
    side = CELL if len(columns) <= MANY else SMALL_CELL
    left = options.offset_x + widest(map(shortened, rows), WORD) + 10
    top = 14 + widest(map(shortened, columns), WORD)
    across = left + len(columns) * side + options.offset_x
    down = top + len(rows) * side + 12

    step = -side if options.rtl else side
    lines = _grid(len(rows), len(columns), options.x(left, across), top, step, side)
    grid = {"class": "sl-line-stroke", "fill": "none", "stroke": light("line"), "d": lines}
    content = [element("path", grid)]
    for i, word in enumerate(rows):
        start = {"x": options.x(left - 8, across), "y": top + (i + 0.5) * side + WORD / 3}
        attributes = {**options.word("end"), **start, "font-size": WORD}
        content.append(element("text", attributes, word_text(word)))
    for j, word in enumerate(columns):
        middle = options.x(left + (j + 0.5) * side, across) + WORD / 3
        turned = f"translate({middle:.1f},{top - 8:.1f}) rotate(-90)"
        attributes = {**options.word("end" if options.rtl else "start"), "font-size": WORD}
        content.append(element("text", {**attributes, "transform": turned}, word_text(word)))
    for cell in cells:
        corner = options.x(left + cell.target * side + (side if options.rtl else 0), across)
        place = corner, top + cell.source * side
        tooltip = said(cell, rows, columns, known)
        content.append(_square(cell, place, side, tooltip, known, options))
    return Picture(
        "".join(content),
        title,
        description(cells, rows, columns, known),
        (across, down),
        caption,
        weight,
        signs=frozenset({"cell"} | ({"differs"} if any(c.set_apart for c in cells) else set())),
    )


def _square(
    cell: DrawnCell,
    place: tuple[float, float],
    side: int,
    tooltip: str,
    known: bool,
    options: DrawingOptions,
) -> str:
    """Return the markup of a cell, whose upper left corner is at a place."""
    x, y = place
    square = {"x": x, "y": y, "width": side, "height": side}
    fill = {"class": "sl-accent", "fill": options.color or light("accent")}
    inside = [
        element("title", {}, text(tooltip)),
        element("rect", {**square, **fill, "fill-opacity": shade(cell.probability)}),
    ]
    if known and options.probabilities and side == CELL:
        inside.append(_number(cell, x + side / 2, y + side / 2))
    if cell.chosen:
        inner = {key: value + (1 if key in "xy" else -2) for key, value in square.items()}
        color = "contrast" if cell.set_apart else "ink"
        frame = {"class": f"sl-{color}-stroke", "fill": "none", "stroke": light(color)}
        dashes = "4 2" if cell.set_apart else None
        inside.append(
            element("rect", {**inner, **frame, "stroke-width": 1.5, "stroke-dasharray": dashes})
        )
    return element("g", {"class": "sl-cell"}, *inside)


def _grid(rows: int, columns: int, left: float, top: float, right: float, down: float) -> str:
    across = "".join(
        f"M{left:.1f},{top + i * down:.1f}h{columns * right:.1f}" for i in range(rows + 1)
    )
    along = "".join(
        f"M{left + j * right:.1f},{top:.1f}v{rows * down:.1f}" for j in range(columns + 1)
    )
    return across + along


def _number(cell: DrawnCell, x: float, y: float) -> str:
    dark = cell.probability > 0.72
    short = f"{cell.probability:.2f}".removeprefix("0").removesuffix(".00")
    attributes = {
        "class": "sl-ground" if dark else "sl-ink",
        "fill": light("ground" if dark else "ink"),
        "x": x,
        "y": y + LABEL / 3,
        "font-size": LABEL,
        "text-anchor": "middle",
        "direction": "ltr",
    }
    return element("text", attributes, short)
