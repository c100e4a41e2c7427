"""Characters of texts, labels and names that may be drawn and printed unchanged."""

from __future__ import annotations

import unicodedata

CONTROL_PICTURES = 0x2400
# Unescaped, these would change the order of the text after them. Marks that only have a direction
# of their own (U+200E, U+200F, U+061C) do no such harm and belong to good text.
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
SOFT_HYPHEN, EMOJI_STYLE = "\xad", "\ufe0f"


def visible(text: str) -> str:
    """Return a text on one line, with signs for characters that are invisible or do harm.

    Control characters become the control pictures of Unicode. Overrides of the direction become
    their names. Characters that XML cannot hold become U+FFFD. A text of white space alone becomes
    ``␣``.
    """
    shown = "".join(_sign(character) for character in text)
    return shown if is_seen(shown) else "␣" * max(1, min(len(shown), 8))


def escaped(text: str) -> str:
    """Return a text with escapes for characters that control a terminal or text direction.

    The escapes are those of Python's ``repr``. All other characters stay as they are.
    """
    return "".join(c if is_harmless(c) else repr(c)[1:-1] for c in text)


def escaped_lines(text: str) -> str:
    """Return :func:`escaped` of each line of a text."""
    return "\n".join(map(escaped, text.split("\n")))


def of_same_length(text: str) -> str:
    """Return a text with U+FFFD for each character that is not harmless, except for line ends.

    Offsets stay valid, unlike those of :func:`visible`.
    """
    return "".join(c if c in "\n\t" or is_harmless(c) else "\ufffd" for c in text)


def on_one_line(text: str) -> str:
    """Return a word or name for a terminal.

    It is in quotation marks if no character of it is visible or if one is escaped.
    """
    if not is_seen(text):
        return repr(text)
    shown = escaped(text)
    return shown if shown == text else f"'{shown}'"


def is_seen(text: str) -> bool:
    """Return whether a text has more than white space and characters that shape or join others."""
    return bool(text.strip()) and any(unicodedata.category(c) not in ("Cf", "Zs") for c in text)


def is_harmless(character: str) -> bool:
    """Return whether a character may be drawn and printed unchanged.

    :func:`visible` puts a sign for all others. Joiners, soft hyphens and spaces are harmless.
    """
    return _sign(character) == character


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


def columns(text: str) -> int:
    """Return the number of columns that a text takes in a terminal.

    A character of Chinese or an emoji takes two. A combining mark, a joiner and a character that is
    joined to an emoji take none.
    """
    count = last = 0
    for before, character in zip(f" {text}", text):
        if character == EMOJI_STYLE and last == 1:
            # The symbol before is drawn as an emoji.
            count += 1
            last = 2
        elif not _is_part(before, character):
            last = 1 + (unicodedata.east_asian_width(character) in ("W", "F"))
            count += last
    return count


def _is_part(before: str, character: str) -> bool:
    """Return whether a terminal draws a character with the one before it, or not at all."""
    category = unicodedata.category(character)
    return (
        category in ("Mn", "Me")
        or (category == "Cf" and character != SOFT_HYPHEN)
        # Vowels and finals of Korean, in the syllable of the consonant before.
        or "\u1160" <= character <= "\u11ff"
        or (before == "\u200d" and category == "So")
        # Tones of skin.
        or (unicodedata.category(before) == "So" and "\U0001f3fb" <= character <= "\U0001f3ff")
    )
