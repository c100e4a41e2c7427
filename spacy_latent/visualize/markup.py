"""Markup that stays inert whatever the text holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from spacy_latent.characters import visible

LONGEST_WORD = 40


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
