"""Markup that is inert for every text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TypeVar

from spacy_latent.characters import visible

LONGEST_WORD = 40
LONGEST_TOOLTIP = 1000
# Number of parts that descriptions for screen readers name.
LISTED = 40

Part = TypeVar("Part")


def shortened(text: str) -> str:
    """Return the visible text, shortened with an ellipsis to :data:`LONGEST_WORD` characters."""
    shown = visible(text)
    return shown if len(shown) <= LONGEST_WORD else shown[: LONGEST_WORD - 1] + "…"


def word_text(word: str) -> str:
    """Return the content of an SVG text: a word, and a tooltip with all of a shortened one."""
    whole = tooltip(word)
    return (element("title", {}, escape(whole)) if whole else "") + text(shortened(word))


def tooltip(word: str) -> str | None:
    """Return all of a word that :func:`shortened` shortens, or None."""
    return None if shortened(word) == visible(word) else visible(word[:LONGEST_TOOLTIP])


def element(name: str, attributes: Mapping[str, object] | None = None, *content: str) -> str:
    """Return an element of XML or HTML.

    Args:
        attributes: Attributes, which are escaped here. None leaves an attribute out.
        content: Markup that is already escaped.
    """
    given = "".join(
        f' {key}="{escape(number(value))}"'
        for key, value in (attributes or {}).items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(content)}</{name}>"


def of_words(marked: bool, words: Iterable[int | str], *content: str) -> str:
    """Return the markup of a part of a structure, marked with the words of the part.

    Args:
        marked: If false, the content is returned unchanged.
        words: Positions of the words in the span. Positions in a second text follow a "b".
    """
    if not marked:
        return "".join(content)
    return element("g", {"data-words": " ".join(map(str, words))}, *content)


def listed(parts: Sequence[Part], say: Callable[[Part], str]) -> str:
    """Return the first parts in words, and how many more there are."""
    more = f"; and {len(parts) - LISTED} more" if len(parts) > LISTED else ""
    return "; ".join(map(say, parts[:LISTED])) + more


def number(value: object) -> str:
    """Return a number with at most two decimals, or anything else as text."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def text(value: str) -> str:
    """Return the visible text as markup."""
    return escape(visible(value))
