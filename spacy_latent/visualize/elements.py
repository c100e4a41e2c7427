"""HTML and SVG from Python values, with everything escaped that is not :class:`Markup`."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import escape

from spacy_latent.characters import BIDI_CONTROLS, is_harmless


class Markup(str):
    """Piece of HTML that is safe without escaping."""


# Elements that have no end tag.
_VOID = frozenset({"meta", "input", "br"})
_NOT_INERT = re.compile(f"[<>&\x7f-\x9f\u2028\u2029{''.join(BIDI_CONTROLS)}]")


def tag(element: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        children: Content. Markup is inserted unchanged, lists item by item, None as nothing, and
            anything else as text.
        attributes: Attributes. ``class_`` is the attribute class, and underscores become hyphens.
            None and False leave an attribute out; True gives an attribute without a value.
    """
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        shown.append(f" {label}" if value is True else f' {label}="{text(value)}"')
    inner = join(*children)
    if element in _VOID:
        return Markup(f"<{element}{''.join(shown)}>")
    return Markup(f"<{element}{''.join(shown)}>{inner}</{element}>")


def join(*children: object) -> Markup:
    """Join children into markup. Text is escaped, lists are flattened, None is left out."""
    made = []
    for child in children:
        if isinstance(child, (list, tuple)):
            made.append(join(*child))
        elif isinstance(child, Markup):
            made.append(child)
        elif child is not None:
            made.append(text(child))
    return Markup("".join(made))


def text(value: object) -> Markup:
    """Return the escaped value, with control characters and direction overrides replaced.

    HTML does not allow control characters.
    """
    shown = "".join(
        character if character == "\n" or is_harmless(character) else "\ufffd"
        for character in str(value)
    )
    return Markup(escape(shown, quote=True))


def data_block(identifier: str, value: object) -> Markup:
    """Return a script element with JSON data, which no markup inside of the data can close."""
    written = inert_json(value)
    return Markup(f'<script type="application/json" id="{text(identifier)}">{written}</script>')


def script_policy(script: str) -> Markup:
    """Return the content security policy of a page that has this script and loads nothing."""
    digest = b64encode(sha256(script.encode("utf8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag("meta", http_equiv="Content-Security-Policy", content=policy)


def script_page(
    title: str,
    style: str,
    script: str,
    *content: object,
    lang: str = "en",
    class_: str | None = None,
) -> str:
    """Return a page with this content, which may run this script and loads nothing."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        script_policy(script),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    run = tag("script", Markup(script)) if script else None
    page = tag("html", head, tag("body", *content, run, class_=class_), lang=lang)
    return f"<!DOCTYPE html>\n{page}\n"


def inert_json(value: object) -> str:
    """Return compact JSON without characters of HTML markup and without direction overrides."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _NOT_INERT.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
