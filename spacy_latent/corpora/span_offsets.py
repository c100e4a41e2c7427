"""Spans with offsets, as the formats of several annotation tools give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.tokens import Doc

Triple = tuple[int, int, str]
Bounds = tuple[int, int]
EXAMPLE = '[{"start": 0, "end": 5, "label": "ORG"}]'
# White space, which Label Studio writes in the text of a span unchanged or escaped.
SPACE = re.compile(r"\s|\\[nrt]")


def read_spans(
    spans: Any,
    row: dict[str, Any],
    doc: Doc,
    place: str,
    misaligned: list[str],
    labelled: bool = True,
) -> dict[Triple, Bounds]:
    """Return the distinct (start, end, label) of the spans, sorted, with their given bounds.

    White space at the ends of spans is removed. A span of only white space is added to
    ``misaligned``. If a span gives its text, the doc must have this text there.
    """
    text, expected = doc.text, f'{EXAMPLE[1:-1]} or [0, 5, "ORG"]'
    found: dict[Triple, Bounds] = {}
    for span in _by_label(spans if isinstance(spans, list) else [spans]):
        start, end, label = _of_object(span, row) if isinstance(span, dict) else _of_list(span)
        if label is None and not labelled:
            label = ""
        if not (_is_offset(start) and _is_offset(end) and isinstance(label, str)):
            raise LatentError(f"{place}: a span is {span!r}; expected {expected}.")
        if not label and labelled:
            raise LatentError(f"{place}: the span {span!r} has no label; expected {expected}.")
        if not start < end <= len(text):
            bounds = _of_utf_16(text, start, end) if start < end else None
            raise LatentError(
                f"{place}: a span goes from {start} to {end}, and the text has {len(text)} "
                "characters. Offsets count characters from 0, and a span ends before its end"
                f"{_utf_16_hint(text, bounds) if bounds is not None else ''}."
            )
        given = start, end
        inside = text[start:end]
        own = span.get("text") if isinstance(span, dict) else None
        if isinstance(own, str) and not _is_same(own, inside):
            bounds = _of_utf_16(text, start, end)
            is_utf_16 = bounds is not None and _is_same(own, text[slice(*bounds)])
            raise LatentError(
                f"{place}: a span goes from {start} to {end}, and its text is {own!r}, but there "
                f"is {inside!r} in the text. Correct its offsets, or leave out its text"
                f"{_utf_16_hint(text, bounds) if bounds is not None and is_utf_16 else ''}."
            )
        if inside.isspace():
            misaligned.append(_misfit((start, end, label), given, doc))
            continue
        start += len(inside) - len(inside.lstrip())
        end -= len(inside) - len(inside.rstrip())
        found.setdefault((start, end, label), given)
    return dict(sorted(found.items()))


def _is_same(first: str, second: str) -> bool:
    return SPACE.sub("", first) == SPACE.sub("", second)


def _of_object(span: dict[str, Any], row: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return start, end and label of a span with the keys of Prodigy or doccano.

    Spans of Prodigy may only have token indices, of which the last one is inclusive.
    """
    start = span.get("start", span.get("start_offset"))
    end = span.get("end", span.get("end_offset"))
    if start is None and end is None:
        try:
            tokens = row["tokens"]
            start = tokens[span["token_start"]]["start"]
            end = tokens[span["token_end"]]["end"]
        except (KeyError, IndexError, TypeError):
            pass
    label, labels = span.get("label"), span.get("labels")
    if label is None and isinstance(labels, list) and len(labels) == 1:
        # Label Studio's.
        (label,) = labels
    return start, end, label


def _by_label(spans: list[Any]) -> Iterator[Any]:
    """Yield the spans, and one for each label of Label Studio's spans with several."""
    for span in spans:
        labels = span.get("labels") if isinstance(span, dict) else None
        if isinstance(labels, list) and len(labels) > 1:
            yield from ({**span, "labels": [label]} for label in labels)
        else:
            yield span


def _of_list(span: Any) -> tuple[Any, Any, Any]:
    if not isinstance(span, list) or not 2 <= len(span) <= 4:
        return None, None, None
    start, end, *label = span
    return start, end, label[0] if label else None


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def align_spans(triples: dict[Triple, Bounds], doc: Doc, misaligned: list[str]) -> list[Triple]:
    """Return the spans that begin and end at token boundaries, and add others to ``misaligned``."""
    found = []
    for triple, given in triples.items():
        if doc.char_span(*triple[:2]) is not None:
            found.append(triple)
        else:
            misaligned.append(_misfit(triple, given, doc))
    return found


def _misfit(triple: Triple, given: Bounds, doc: Doc) -> str:
    """Describe a span that does not align with tokens, with a hint if it would in UTF-16."""
    hint, bounds = "", _of_utf_16(doc.text, *given)
    if bounds is not None and doc.char_span(*bounds) is not None:
        hint = _utf_16_hint(doc.text, bounds)
    return f"{shown(triple, given, doc.text)}{hint}"


def first_overlap(spans: Iterable[Triple]) -> tuple[Triple, Triple] | None:
    """Return the first two overlapping spans, or None.

    Args:
        spans: sorted.
    """
    return next(((a, b) for a, b in pairwise(spans) if b[0] < a[1]), None)


def shown(triple: Triple, given: Bounds, text: str) -> str:
    """Describe a span by its given bounds."""
    start, end = given
    return f"{text[start:end]!r} ({start} to {end}, {triple[2]})"


def _of_utf_16(text: str, start: int, end: int) -> Bounds | None:
    """Return bounds in characters for bounds in code units of UTF-16.

    A character beyond U+FFFF has two units. Return None if the bounds are the same in characters,
    or if they are no valid bounds in code units.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    try:
        first, last = (len(units[: 2 * place].decode("utf-16-le")) for place in (start, end))
    except UnicodeDecodeError:
        return None
    return None if (first, last) == (start, end) or 2 * end > len(units) else (first, last)


def _utf_16_hint(text: str, bounds: Bounds) -> str:
    start, end = bounds
    return (
        f". These are the offsets of {text[start:end]!r} in code units of UTF-16, as JavaScript "
        "counts: give offsets in characters"
    )
