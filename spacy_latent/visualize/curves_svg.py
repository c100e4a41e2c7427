"""Counters of a scorer drawn as curves below the words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.markup import element, number, text
from spacy_latent.visualize.palette import category_color, light

HEIGHT = 44
GAP = 14
LABEL = 10


def draw_curves(
    counters: np.ndarray | None,
    ends: Sequence[float],
    across: float,
    top: float,
    options: DrawingOptions,
) -> tuple[str, float]:
    """Return the markup of one curve per counter, stacked vertically, and the height of all curves.

    A curve is straight between the ends of two words, and rises below a word that adds to the
    counter. Each curve has its own scale, with 0 and the least and the greatest value at its side.

    Args:
        counters: ``(words, K)``, the values after each word, starting from 0 before the first word;
            None for no counters.
        ends: End of each word, from the side where writing begins.
        across: Width of the whole drawing.
        top: Vertical position of the first curve.
    """
    if counters is None or not len(ends):
        return "", 0.0
    places = [options.offset_x, *ends]
    drawn = []
    for k, column in enumerate(counters.T.tolist()):
        values = [0.0, *column]
        low, high = min(values), max(values)
        bottom = top + GAP + k * (HEIGHT + GAP) + HEIGHT
        scale = HEIGHT / max(high - low, 1e-3)
        heights = [bottom - (value - low) * scale for value in values]
        name = f"counter {k + 1}: {_rounded(low)} to {_rounded(high)}"
        columns = [options.x(x, across) for x in places]
        drawn.append(_curve(k, name, columns, heights, bottom, options))
    return "".join(drawn), counters.shape[1] * (HEIGHT + GAP) + GAP


def _curve(
    k: int,
    name: str,
    columns: Sequence[float],
    heights: Sequence[float],
    bottom: float,
    options: DrawingOptions,
) -> str:
    """Return the markup of the curve of counter k, of its zero and of its name."""
    points = [f"{number(x)},{number(y)}" for x, y in zip(columns, heights, strict=True)]
    level = {
        "class": "sl-line-stroke",
        "d": f"M{number(columns[0])},{number(heights[0])}H{number(columns[-1])}",
        "fill": "none",
        "stroke": light("line"),
        "stroke-dasharray": "2 3",
    }
    curve = {
        "d": f"M{'L'.join(points)}",
        "fill": "none",
        "stroke": category_color(k),
        "stroke-width": 2,
        "stroke-linejoin": "round",
    }
    label = {
        "class": "displacy-label sl-number",
        "x": columns[0],
        "y": bottom - HEIGHT - 3,
        "font-size": LABEL,
        "text-anchor": "end" if options.rtl else "start",
        "direction": "ltr",
    }
    said = text(name)
    inside = element("path", level), element("path", curve), element("text", label, said)
    return element("g", {"class": "sl-counter"}, element("title", {}, said), *inside)


def said_of_curves(counters: np.ndarray | None) -> str:
    """Return the range of each counter in words, for screen readers."""
    if counters is None or not len(counters):
        return ""
    bounds = [(min(0.0, *column), max(0.0, *column)) for column in counters.T.tolist()]
    said = "; ".join(
        f"{k}: {_rounded(low)} to {_rounded(high)}" for k, (low, high) in enumerate(bounds, 1)
    )
    return f" Counters of the scorer: {said}."


def _rounded(value: float) -> str:
    """Return the value with one decimal, without a minus sign before a zero."""
    return f"{round(float(value), 1) + 0.0:.1f}"
