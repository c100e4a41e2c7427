"""Widths of texts, without knowledge of the font that a browser selects.

Words with too little space would run into each other. So each character counts with its width in
the widest of the fonts that browsers select for our font stack. These are DejaVu Sans (nearly as
wide as Verdana), Noto Sans with its fonts for other scripts, Loma and Waree for Thai, and
Liberation Sans, which is as wide as Arial.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

# All widths are fractions of the font size. For a character that no font has, a browser draws a
# box of this width, and another box for a mark above or below a letter. Every character of a
# monospaced font has the same width.
BOX = 0.61
# In hundredths of the font size, from the space to the tilde.
ASCII = [
    int(width)
    for width in (
        "32 41 46 84 64 96 78 28 40 40 55 84 32 37 32 38 64 64 64 64 64 64 64 64 64 64 34 34 84 "
        "84 84 56 102 69 69 73 77 67 62 78 76 34 50 67 56 91 76 79 67 79 73 67 62 74 69 99 69 "
        "67 69 40 38 40 84 56 50 62 64 55 64 62 36 64 64 28 28 58 28 98 64 62 64 64 42 53 40 64 "
        "60 82 60 60 53 64 56 64 84"
    ).split()
]
CAPITAL = 0.8
OTHER = 0.66
# Letters and signs that are wider than others of their script.
BROAD: Mapping[float, str] = {
    0.88: "мыюфъωψŵћћЪЫФЂЋМΜΨҡӎӹթֆևԹԾԱოღრტფდთ",
    1.0: "æœӕњжљшщҥҗӂӝҧՠտփապխļ©®¼½¾…—™ÆŴĦҴҼԽ",
    1.1: "ЊШЖЮЉЩҤҖӁӜҦŒ№→←ლسشصضআ",
}
# Width of most letters of scripts without capitals, of marks next to their letters, and of
# digits. Wide letters are less frequent than narrow ones.
SCRIPTS: Mapping[str, float] = {
    "ARABIC": 0.75,
    "BENGALI": 0.85,
    "DEVANAGARI": 0.75,
    "ETHIOPIC": 0.95,
    "GUJARATI": 0.8,
    "GURMUKHI": 0.75,
    "HEBREW": 0.7,
    "KANNADA": 1.15,
    "KHMER": 0.9,
    "LAO": 0.75,
    "MALAYALAM": 1.4,
    "MYANMAR": 1.25,
    "ORIYA": 0.85,
    "SINHALA": 1.2,
    "TAMIL": 1.3,
    "TELUGU": 1.0,
    "THAI": 0.75,
}
UNKNOWN = 1.1
WIDE = 1.05
EMOJI = 1.4
# Mean width of DejaVu Sans and Arial, from which each of them differs by a fourteenth.
USUAL = 0.93


def text_width(text: str, size: float) -> float:
    """Return a width that is enough for the text in any sans-serif font of a size, in pixels."""
    return size * max(sum(map(_width, text)), BOX * sum(map(_is_drawn, text)))


def usual_width(text: str, size: float) -> float:
    """Return the width in pixels in a font of average width.

    Running text is stretched or compressed to this width. The width of the widest font would leave
    gaps.
    """
    # Characters that are joined to the previous one are drawn as one, such as emoji of families.
    alone = [one for before, one in zip(f" {text}", text) if before != "\u200d"]
    return size * (USUAL * sum(map(_width, alone)) or BOX)


def fitted(width: float) -> dict[str, object]:
    """Return the attributes that stretch or compress a text to this width."""
    return {"textLength": width, "lengthAdjust": "spacingAndGlyphs"}


def widest(texts: Iterable[str], size: float) -> float:
    """Return the width of the widest text, or 0 for no texts."""
    return max((text_width(text, size) for text in texts), default=0.0)


def _is_drawn(character: str) -> bool:
    """Return whether the character may need a box.

    Format characters, and marks of Latin, Greek and Cyrillic, which every font has, need no box.
    """
    category = unicodedata.category(character)
    return category != "Cf" and not (category in ("Mn", "Me") and ord(character) < 0x590)


@lru_cache(maxsize=4096)
def _width(character: str) -> float:
    code, category = ord(character), unicodedata.category(character)
    if 0x20 <= code < 0x7F:
        return ASCII[code - 0x20] / 100
    if category in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(character) in ("W", "F"):
        return EMOJI if category == "So" else WIDE
    for width, characters in BROAD.items():
        if character in characters:
            return width
    base = unicodedata.normalize("NFD", character)[0]
    if base != character:
        return _width(base)
    name = unicodedata.name(character, "").partition(" ")[0]
    if name in SCRIPTS:
        return SCRIPTS[name]
    if category == "Lu":
        return CAPITAL
    return OTHER if category != "Lo" and category != "So" else UNKNOWN
