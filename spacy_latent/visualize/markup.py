"""Markup that stays inert whatever the text holds."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from html import escape

LONGEST_WORD = 40
CONTROL_PICTURES = 0x2400
# Left alone these would change the order of what is written after them. Marks that only give a
# direction of their own (U+200E, U+200F, U+061C) do no such harm and belong to good text.
BIDI_CONTROLS = {
    "\u202a": "[LRE]",
    "\u202b": "[RLE]",
    "\u202c": "[PDF]",
    "\u202d": "[LRO]",
    "\u202e": "[RLO]",
    "\u2066": "[LRI]",
    "\u2067": "[RLI]",
    "\u2068": "[FSI]",
    "\u2069": "[PDI]",
}
SEPARATORS = {"\x7f": "␡", "\u2028": "␤", "\u2029": "␤"}


def visible(text: str) -> str:
    """The text on one line, with signs for characters that would not be seen or would do harm.

    Control characters become the control pictures of Unicode, direction overrides their names,
    what XML cannot hold U+FFFD, and white space that stands alone ``␣``.
    """
    shown = "".join(_sign(character) for character in text)
    if shown.strip() and any(unicodedata.category(c) not in ("Cf", "Zs") for c in shown):
        return shown
    return "␣" * max(1, min(len(shown), 8))


def _sign(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(CONTROL_PICTURES + code)
    if character in SEPARATORS:
        return SEPARATORS[character]
    if character in BIDI_CONTROLS:
        return BIDI_CONTROLS[character]
    category = unicodedata.category(character)
    if category in ("Cc", "Cs") or code & 0xFFFE == 0xFFFE:
        return "\ufffd"
    return character


def shortened(text: str) -> str:
    """The visible text, cut with an ellipsis where it is longer than :data:`LONGEST_WORD`."""
    shown = visible(text)
    return shown if len(shown) <= LONGEST_WORD else shown[: LONGEST_WORD - 1] + "…"


def element(name: str, attributes: Mapping[str, object] | None = None, *content: str) -> str:
    """An element of XML or HTML. content: markup, already escaped; attributes are escaped here,
    and left out where they are None."""
    given = "".join(
        f' {key}="{escape(number(value))}"'
        for key, value in (attributes or {}).items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(content)}</{name}>"


def of_words(marked: bool, words: Iterable[int | str], *content: str) -> str:
    """Markup of a part of a structure, which says of which words it is: their places in the span,
    those of a second text after a "b". As it is where drawings are not marked."""
    if not marked:
        return "".join(content)
    return element("g", {"data-words": " ".join(map(str, words))}, *content)


def number(value: object) -> str:
    """A number with at most two decimals; anything else as text."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def text(value: str) -> str:
    """Visible text as markup."""
    return escape(visible(value))
