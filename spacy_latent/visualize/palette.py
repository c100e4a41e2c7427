"""Colours that colour-blind readers can distinguish, on light and on dark backgrounds.

The hues are from Okabe and Ito (2008), "Color Universal Design". No drawing relies on colour alone:
dashes, widths and labels have the same information.
"""

from __future__ import annotations

ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"

CATEGORIES = (ORANGE, SKY_BLUE, GREEN, PURPLE, VERMILLION, BLUE, YELLOW)

# (light, dark) by the name of the CSS variable.
COLORS = {
    "ink": ("#1B1F24", "#E8EAED"),
    "muted": ("#5B6470", "#A3ABB6"),
    "ground": ("#FFFFFF", "#15181C"),
    "line": ("#D5DAE0", "#3A414A"),
    "accent": (BLUE, SKY_BLUE),
    "contrast": (VERMILLION, ORANGE),
}

FAINTEST = 0.3
STANDS_OUT = 0.8
THINNEST = 0.6


def light(name: str) -> str:
    """Return the colour for viewers without support for CSS variables."""
    return COLORS[name][0]


def variables(dark: bool) -> str:
    """Return CSS that sets the colours for a dark or a light background."""
    return ";".join(f"--sl-{name}:{pair[dark]}" for name, pair in COLORS.items())


def opacity(probability: float, set_apart: bool = False, shared: bool = False) -> float:
    """Return the opacity of a part, which grows with its probability and is never 0.

    Args:
        set_apart: True for a part that must stand out, however improbable it is.
        shared: True for a part that other drawings have, too. All such parts have the same opacity.
    """
    least = STANDS_OUT if set_apart or shared else 0.0
    return FAINTEST + (1 - FAINTEST) * (least if shared else max(least, _clipped(probability)))


def color_name(set_apart: bool, shared: bool) -> str:
    """Return the name in :data:`COLORS` of the colour of a part; see :func:`opacity`."""
    return "contrast" if set_apart else "muted" if shared else "accent"


def shade(probability: float) -> float:
    """Return the opacity of an area, which may be lighter than a line."""
    return 0.08 + 0.92 * _clipped(probability)


def width(probability: float, widest: float, shared: bool = False) -> float:
    """Return the width of a line, which grows with its probability unless it is ``shared``."""
    if shared:
        return 1.0
    return THINNEST + (widest - THINNEST) * _clipped(probability)


def _clipped(probability: float) -> float:
    # NaN compares false with everything: it is drawn as 0.
    return min(1.0, probability) if probability > 0 else 0.0


def tinted(color: str, alpha: float) -> str:
    """Return a colour ``#RRGGBB`` with transparency; other notations are returned unchanged."""
    if len(color) != 7 or not color.startswith("#"):
        return color
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:.2f})"


def category_color(index: int) -> str:
    """Return the colour of the category of this number; colours repeat."""
    return CATEGORIES[index % len(CATEGORIES)]
