"""Tag sequences as rows below their words, with alternatives, in HTML and SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spacy_latent.errors import number_of
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.markup import element, shortened, text, tooltip, word_text
from spacy_latent.visualize.palette import category_color, light, opacity, tinted
from spacy_latent.visualize.picture import Picture
from spacy_latent.visualize.text_size import text_width

WORD = 15
TAG = 12
NUMBER = 10
PADDING = 26
MARGIN = 46
ROW = 26
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
    """Tag of one word.

    Attributes:
        name: Name of the tag, or its number as text.
        other: True if the tag is not in the best sequence; drawn dashed.
    """

    number: int
    name: str
    probability: float = 1.0
    other: bool = False
    shown: bool = False


@dataclass(frozen=True)
class TagRow:
    """Tags of each word, usually one per word.

    Attributes:
        label: Text at the beginning of the row.
    """

    tags: Sequence[Sequence[DrawnTag]]
    label: str = ""


def draw_tags(
    words: Sequence[str], rows: Sequence[TagRow], options: DrawingOptions, title: str
) -> Picture:
    """Draw words with rows of tags below them, as HTML tables, or as SVG if the options request it.

    A sequence that is wider than the option ``fold`` continues below.
    """
    folds = list(_folds(words, rows, options))
    pairs = "; ".join(
        f"{shortened(word)}: {' '.join(tag.name for tag in tags)}"
        for word, tags in zip(words[:60], rows[0].tags)
    )
    description = f"{number_of(len(words), 'word')} with tags: {pairs}."
    other = any(tag.other for row in rows for tags in row.tags for tag in tags)
    signs = frozenset(["other tag"] if other else [])
    if options.as_svg:
        content, size = _svg(words, rows, folds, options)
        return Picture(content, title, description, size, signs=signs)
    tables = "".join(_table(words, rows, start, end, options) for start, end in folds)
    return Picture(tables, title, description, signs=signs)


def _folds(
    words: Sequence[str], rows: Sequence[TagRow], options: DrawingOptions
) -> Iterator[tuple[int, int]]:
    start, across = 0, 0.0
    for i in range(len(words)):
        wide = _column(words, rows, i)
        if i > start and across + wide > options.fold:
            yield start, i
            start, across = i, 0.0
        across += wide
    if words:
        yield start, len(words)


def _column(words: Sequence[str], rows: Sequence[TagRow], i: int) -> float:
    tags = [_tag_width(tag) for row in rows for tag in row.tags[i]]
    return max([text_width(shortened(words[i]), WORD), *tags]) + PADDING


def _tag_width(tag: DrawnTag) -> float:
    return text_width(shortened(tag.name), TAG) + (NUMBER * 2.6 if tag.shown else 0)


def _color(tag: DrawnTag, options: DrawingOptions) -> str | None:
    if tag.name == OUTSIDE:
        return None
    # Parts of an entity have one colour: B-PER, I-PER.
    kind = tag.name.split("-", 1)[-1]
    number = tag.number if kind == tag.name else sum(map(ord, kind))
    return options.colors.get(tag.name) or options.colors.get(kind) or category_color(number)


def _strength(tag: DrawnTag) -> float:
    return 0.1 + 0.4 * opacity(tag.probability)


def _table(
    words: Sequence[str], rows: Sequence[TagRow], start: int, end: int, options: DrawingOptions
) -> str:
    header = "".join(
        element(
            "th", {"scope": "col"}, element("bdi", {"title": tooltip(word)}, text(shortened(word)))
        )
        for word in words[start:end]
    )
    lines = [element("tr", {}, "<td></td>", header)]
    for row in rows:
        cells = [
            element("td", {}, "<br>".join(_chip(tag, options) for tag in tags))
            for tags in row.tags[start:end]
        ]
        label = element("th", {"scope": "row"}, text(row.label) if row.label else "")
        lines.append(element("tr", {"valign": "top"}, label, *cells))
    return element("table", {"class": "sl-tags"}, *lines)


def _chip(tag: DrawnTag, options: DrawingOptions) -> str:
    name = element("bdi", {"title": tooltip(tag.name)}, text(shortened(tag.name)))
    if tag.shown:
        name += element("small", {}, f"{tag.probability:.2f}")
    color = _color(tag, options)
    style = color and f"border-color:{color};background:{tinted(color, _strength(tag))}"
    attributes = {"class": "sl-tag sl-tag-other" if tag.other else "sl-tag", "style": style}
    return element("span", attributes, name)


def _svg(
    words: Sequence[str],
    rows: Sequence[TagRow],
    folds: Sequence[tuple[int, int]],
    options: DrawingOptions,
) -> tuple[str, tuple[float, float]]:
    widths = [_column(words, rows, i) for i in range(len(words))]
    left = options.offset_x + (MARGIN if any(row.label for row in rows) else 0)
    across = left + max((sum(widths[a:b]) for a, b in folds), default=0) + options.offset_x
    content: list[str] = []
    y = 6.0
    for start, end in folds:
        centers = [left + sum(widths[start:i]) + widths[i] / 2 for i in range(start, end)]
        if options.rtl:
            centers = [across - center for center in centers]
        for word, x in zip(words[start:end], centers):
            content.append(_text(word, x, y + WORD, WORD, options, "displacy-word"))
        y += WORD + 10
        for row in rows:
            if row.label:
                edge = across - options.offset_x if options.rtl else options.offset_x
                where = {"x": edge, "y": y + 16, "font-size": TAG, "direction": options.direction}
                muted = {"class": "sl-muted", "fill": light("muted"), **where}
                content.append(element("text", muted, text(row.label)))
            for tags, x in zip(row.tags[start:end], centers):
                for i, tag in enumerate(tags):
                    content.append(_drawn_chip(tag, x, y + i * ROW, options))
            y += ROW * max([1, *map(len, row.tags[start:end])])
        y += 14
    return "".join(content), (across, y)


def _drawn_chip(tag: DrawnTag, x: float, y: float, options: DrawingOptions) -> str:
    wide = _tag_width(tag) + 10
    color = _color(tag, options)
    box = {
        "class": None if color else "sl-line-stroke",
        "x": x - wide / 2,
        "y": y,
        "width": wide,
        "height": ROW - 5,
        "rx": 4,
        "fill": color or "none",
        "fill-opacity": _strength(tag),
        "stroke": color or light("line"),
        "stroke-width": 1.5,
        "stroke-dasharray": "4 2" if tag.other else None,
    }
    number = NUMBER * 2.6 if tag.shown else 0
    name = _text(tag.name, x - number / 2, y + 15, TAG, options, "displacy-tag")
    if tag.shown:
        shown = f"{tag.probability:.2f}"
        end = x + wide / 2 - NUMBER * 1.4
        name += _text(shown, end, y + 15, NUMBER, options, "displacy-label")
    return element("g", {"class": "sl-chip"}, element("rect", box), name)


def _text(word: str, x: float, y: float, size: float, options: DrawingOptions, name: str) -> str:
    attributes = {
        "class": f"{name} sl-ink",
        "fill": options.color or light("ink"),
        "x": x,
        "y": y,
        "font-size": size,
        "text-anchor": "middle",
        "direction": options.direction if name == "displacy-word" else "ltr",
    }
    return element("text", attributes, word_text(word))
