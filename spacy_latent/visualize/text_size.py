"""How wide a text is, without a font: good enough to leave room for it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

# Parts of the font size; measured on common sans-serif fonts, rounded up.
WIDE = 1.05
CAPITAL = 0.72
BROAD = 0.9
NARROW = 0.33
OTHER = 0.58
ARABIC = 0.68


def text_width(text: str, size: float) -> float:
    """Width of the text in pixels in a sans-serif font of this size in pixels."""
    return size * sum(_width(character) for character in text)


def widest(texts: Iterable[str], size: float) -> float:
    """Width of the widest of them; 0 for none."""
    return max((text_width(text, size) for text in texts), default=0.0)


def _width(character: str) -> float:
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(character) in ("W", "F"):
        return WIDE
    if character in "mwMW@%…␣—":
        return BROAD
    if character in "iljtfI.,:;'|!()[] ":
        return NARROW
    if unicodedata.bidirectional(character) == "AL":
        return ARABIC
    return CAPITAL if category == "Lu" else OTHER
