"""Tag sequences as rows below their words, with alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spacy_latent.visualize.look import Look
from spacy_latent.visualize.markup import element, shortened, text
from spacy_latent.visualize.palette import category_color, opacity, tinted
from spacy_latent.visualize.picture import Picture
from spacy_latent.visualize.text_size import text_width

WORD = 15
TAG = 12
PADDING = 26
OUTSIDE = "O"
RULES = """
.sl-tags{border-collapse:separate;border-spacing:3px 2px;margin:0 0 .9rem;font-size:15px}
.sl-tags th,.sl-tags td{padding:1px 4px;text-align:center;white-space:nowrap;font-weight:400}
.sl-tags th[scope=row]{position:sticky;inset-inline-start:0;
background:var(--sl-ground);color:var(--sl-muted);font-size:12px;text-align:end}
.sl-tag{display:inline-block;padding:0 5px;border-radius:4px;border:1.5px solid var(--sl-line);
font-size:12px;line-height:1.5}
.sl-tag-other{border-style:dashed}
.sl-tag small{opacity:.8;margin-inline-start:.4em}
"""


@dataclass(frozen=True)
class DrawnTag:
    """The tag of one word. number: of the tag; name: its name or its number as text."""

    number: int
    name: str
    probability: float = 1.0


@dataclass(frozen=True)
class TagRow:
    """A tag for each word. weight: of the sequence; None for the best."""

    tags: Sequence[DrawnTag]
    weight: float | None = None


def draw_tags(
    words: Sequence[str],
    rows: Sequence[TagRow],
    further: Sequence[Sequence[DrawnTag]],
    look: Look,
    title: str,
    known: bool,
) -> Picture:
    """A table: words, tags of the best sequence, then of the others with their weights. It is
    folded into several where it would grow wider than the option ``fold``.

    further: for each word its other probable tags, drawn dashed in a row of their own.
    """
    tables = []
    for start, end in _folds(words, rows, look):
        header = "".join(
            element("th", {"scope": "col"}, element("bdi", {}, text(shortened(word))))
            for word in words[start:end]
        )
        lines = [element("tr", {}, "<td></td>", header)]
        for row in rows:
            weight = "" if row.weight is None else f"{row.weight:.2f}"
            cells = []
            for i in range(start, end):
                other = row.tags[i].number != rows[0].tags[i].number
                shown = known and row is rows[0]
                cells.append(element("td", {}, _chip(row.tags[i], look, shown, other)))
            lines.append(element("tr", {}, element("th", {"scope": "row"}, weight), *cells))
        if any(further[start:end]):
            cells = [
                element("td", {}, "<br>".join(_chip(tag, look, known, True) for tag in tags))
                for tags in further[start:end]
            ]
            label = element("th", {"scope": "row"}, "else")
            lines.append(element("tr", {"valign": "top"}, label, *cells))
        tables.append(element("table", {"class": "sl-tags"}, *lines))
    pairs = "; ".join(f"{shortened(w)}: {t.name}" for w, t in zip(words[:60], rows[0].tags))
    return Picture("".join(tables), title, f"{len(words)} words with tags: {pairs}.")


def _folds(words: Sequence[str], rows: Sequence[TagRow], look: Look) -> Iterator[tuple[int, int]]:
    start, across = 0, 0.0
    for i, word in enumerate(words):
        names = [row.tags[i].name for row in rows]
        wide = max(
            text_width(shortened(word), WORD), *(text_width(name, TAG) + 34 for name in names)
        )
        if i > start and across + wide + PADDING > look.fold:
            yield start, i
            start, across = i, 0.0
        across += wide + PADDING
    if words:
        yield start, len(words)


def _chip(tag: DrawnTag, look: Look, known: bool, other: bool) -> str:
    kind = tag.name.split("-", 1)[-1]
    name = text(shortened(tag.name))
    if known and look.probabilities:
        name += element("small", {}, f"{tag.probability:.2f}")
    style = None
    if tag.name != OUTSIDE:
        # Parts of an entity have one colour: B-PER, I-PER.
        color = look.colors.get(tag.name) or look.colors.get(kind) or _color(tag, kind)
        strength = 0.1 + 0.4 * opacity(tag.probability)
        style = f"border-color:{color};background:{tinted(color, strength)}"
    attributes = {"class": "sl-tag sl-tag-other" if other else "sl-tag", "style": style}
    return element("span", attributes, name)


def _color(tag: DrawnTag, kind: str) -> str:
    if kind == tag.name:
        return category_color(tag.number)
    return category_color(sum(map(ord, kind)))
