"""Arcs over a row of words: their lines, arrowheads, labels and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.markup import element, number, shortened, text, visible
from spacy_latent.visualize.palette import color_name, light, opacity, width

LABEL = 10
CORNER = 8
# Distance from a label to the line below it, and to lines at its sides.
CLEAR = 3.0


@dataclass(frozen=True)
class DrawnArc:
    """Arc to draw.

    Attributes:
        head, modifier: Positions of words. The head of a root is None.
        set_apart: Draw the arc dashed and in the contrast colour.
        faint: Draw the arc dashed.
        shared: Draw the arc thin and grey and without its label, because a drawing next to it has
            the same arc.
        name: The label without the probability.
    """

    head: int | None
    modifier: int
    probability: float = 1.0
    label: str = ""
    set_apart: bool = False
    faint: bool = False
    shared: bool = False
    name: str = ""


def draw_arc(
    arc: DrawnArc,
    path: str,
    tip: float,
    base: float,
    up: int,
    options: DrawingOptions,
    words: Sequence[str],
    crosses: bool,
) -> str:
    """Draw an arc with its arrowhead and its tooltip.

    Args:
        tip, base: The x and the y coordinate of the arrowhead.
        up: −1 for an arc above ``base``, 1 for an arc below it.
        crosses: Whether another arc crosses this one.
    """
    color = color_name(arc.set_apart, arc.shared)
    half = options.arrow_width / 2
    head = (
        f"M{number(tip)},{number(base)}l{number(-half)},{number(up * 1.6 * half)}"
        f"h{number(2 * half)}z"
    )
    line = options.line(arc, path, options.arrow_stroke)
    line["class"] = f"displacy-arc {line['class']}"
    halo = {
        "class": "sl-ground-stroke",
        "d": path,
        "fill": "none",
        "stroke": options.bg or light("ground"),
        "stroke-width": width(arc.probability, options.arrow_stroke, arc.shared) + 2.5,
    }
    point = {"class": f"displacy-arrowhead sl-{color}", "d": head, "fill": line["stroke"]}
    name = "displacy-arrow sl-crossing" if crosses else "displacy-arrow"
    # The halo makes both arcs easy to follow at a crossing.
    return element("path", halo) + element(
        "g",
        {"class": name, "opacity": opacity(arc.probability, arc.set_apart, arc.shared)},
        element("title", {}, text(said_of_arc(arc, words))),
        element("path", line),
        element("path", point),
    )


def ends_of(arc: DrawnArc) -> tuple[int, int]:
    """Return the left and the right word of an arc that is not from the root."""
    assert arc.head is not None
    return min(arc.head, arc.modifier), max(arc.head, arc.modifier)


def words_of_arc(arc: DrawnArc) -> tuple[int, ...]:
    """Return the modifier of an arc and its head, if the head is a word."""
    return (arc.modifier,) if arc.head is None else (arc.head, arc.modifier)


def root_label(arc: DrawnArc) -> str:
    """Return the label to show of an arc from the root."""
    return "root" if arc.shared else f"root {arc.label}".strip()


def path_of_arc(left: float, right: float, base: float, turn: float, up: int) -> str:
    """Return the path of an arc with rounded corners, whose horizontal line is at ``turn``."""
    corner = min(CORNER, (right - left) / 2, abs(turn - base))
    a, b, y, t, c = (number(float(v)) for v in (left, right, base, turn, turn - up * corner))
    inner, outer = number(left + corner), number(right - corner)
    return f"M{a},{y}V{c}Q{a},{t} {inner},{t}H{outer}Q{b},{t} {b},{c}V{y}"


def has_label(arc: DrawnArc) -> bool:
    """Return whether the label of an arc is shown."""
    return bool(arc.label) and not arc.shared


def clear_position(left: float, right: float, half: float, lines: Sequence[float]) -> float:
    """Return the position nearest to the middle of a line at which no other line crosses its label.

    It is the middle of the line if there is no such position.

    Args:
        left, right: Ends of the line of the label.
        half: Half the width of the label.
        lines: Positions of the other lines.
    """
    middle, reach = (left + right) / 2, half + CLEAR
    places = [middle, *(x + side * reach for x in lines for side in (-1, 1))]
    fits = [
        place
        for place in places
        if left + half <= place <= right - half
        and all(abs(place - x) >= reach - 1e-6 for x in lines)
    ]
    return min(fits, key=lambda place: abs(place - middle), default=middle)


def draw_label(label: str, x: float, turn: float, up: int, soft: bool) -> str:
    """Return the markup of a label.

    Args:
        turn: Height of the line of the label.
        up: −1 if the label is above the line, 1 if it is below.
    """
    attributes = {
        "class": "displacy-label sl-number sl-soft" if soft else "displacy-label sl-number",
        "x": x,
        "y": turn - CLEAR if up < 0 else turn + LABEL + 1,
        "font-size": LABEL,
        "text-anchor": "middle",
        "direction": "ltr",
    }
    return element("text", attributes, text(label))


def said_of_arc(arc: DrawnArc, words: Sequence[str]) -> str:
    """Return a description of an arc in words."""
    head = "root" if arc.head is None else shortened(words[arc.head])
    label = f" ({visible(arc.label)})" if arc.label else ""
    return f"{head} → {shortened(words[arc.modifier])}{label}"
