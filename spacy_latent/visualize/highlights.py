"""Words and entities highlighted in the text, with their probabilities, in HTML and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spacy_latent.errors import number_of
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.markup import element, text, visible
from spacy_latent.visualize.palette import (
    ORANGE,
    SKY_BLUE,
    YELLOW,
    category_color,
    light,
    opacity,
    tinted,
)
from spacy_latent.visualize.picture import Picture
from spacy_latent.visualize.text_size import fitted, text_width, usual_width

WORD = 16
NUMBER = 11
LINE = 32
SPACE = 5
# Greatest opacity of yellow: a stronger one would hide the light text of dark pages.
BRIGHT = 0.35
RULES = """
.sl-text{line-height:2;overflow-wrap:anywhere;margin:.2rem 0;max-width:60rem}
.sl-text mark{color:inherit;padding:.1em .25em;border-radius:.25em;border-bottom:2px solid}
.sl-text mark.sl-faint{border-bottom-style:dashed}
.sl-text mark small{font-size:.7em;margin-inline-start:.35em}
.sl-text mark strong{font-size:.7em;margin-inline-start:.5em}
"""


@dataclass(frozen=True)
class Highlight:
    """Highlight of the words ``start`` to ``end``, exclusive.

    Attributes:
        number: Text after the label.
        faint: True if the words are not part of the structure; underlined with dashes.
        left_out: True if the words are part of the structure and the component left them out of its
            result; also underlined with dashes.
    """

    start: int
    end: int
    probability: float = 1.0
    label: str = ""
    number: str = ""
    faint: bool = False
    left_out: bool = False

    @property
    def weak(self) -> bool:
        """True if the words are underlined with dashes."""
        return self.faint or self.left_out


def draw_highlights(
    words: Sequence[tuple[str, str]],
    highlights: Sequence[Highlight],
    options: DrawingOptions,
    title: str,
    weight: float | None = None,
) -> Picture:
    """Draw the text with highlights, whose strength grows with their probability.

    Args:
        words: Each word with the white space after it.
        highlights: The highlights in order, without overlap.
    """
    listed = ", ".join(_said(words, mark) for mark in highlights if not mark.faint)
    count = sum(not mark.faint for mark in highlights)
    description = f"{count} marked in {number_of(len(words), 'word')}: {listed}."
    # Highlights with a label need no sign in the legend.
    plain = [mark for mark in highlights if not mark.label]
    signs = frozenset("other mark" if mark.faint else "mark" for mark in plain)
    if options.as_svg:
        content, size = _svg(words, highlights, options)
        return Picture(content, title, description, size, "", weight, signs=signs)
    pieces, done = [], 0
    for mark in highlights:
        pieces += [_plain(*word) for word in words[done : mark.start]]
        inside = "".join(_plain(*word) for word in words[mark.start : mark.end - 1])
        last, space = words[mark.end - 1]
        inside += element("bdi", {}, text(last))
        if mark.label:
            inside += element("strong", {}, text(mark.label))
        if mark.number:
            inside += element("small", {}, mark.number)
        color, strength = _color(mark, options)
        style = f"background:{tinted(color, strength)};border-color:{color}"
        attributes = {"class": "sl-faint" if mark.weak else None, "style": style}
        pieces.append(element("mark", attributes, inside) + _gap(space))
        done = mark.end
    pieces += [_plain(*word) for word in words[done:]]
    markup = element("p", {"class": "sl-text", "dir": options.direction}, *pieces)
    return Picture(markup, title, description, None, "", weight, signs=signs)


def _plain(word: str, space: str) -> str:
    return element("bdi", {}, text(word)) + _gap(space)


def _gap(space: str) -> str:
    return " " if space else "<wbr>"


def _said(words: Sequence[tuple[str, str]], mark: Highlight) -> str:
    inside = " ".join(visible(word) for word, _ in words[mark.start : mark.end])
    caption = " ".join(filter(None, [visible(mark.label) if mark.label else "", mark.number]))
    return f"{inside} ({caption})" if caption else inside


def _color(mark: Highlight, options: DrawingOptions) -> tuple[str, float]:
    """Return the colour and its opacity over the background."""
    if mark.label:
        plain = options.colors.get(mark.label) or category_color(sum(map(ord, mark.label)))
    else:
        plain = options.color or (SKY_BLUE if mark.faint else ORANGE)
    strongest = 0.2 if mark.weak else BRIGHT if plain == YELLOW else 0.5
    return plain, 0.05 + strongest * opacity(mark.probability)


def _svg(
    words: Sequence[tuple[str, str]], highlights: Sequence[Highlight], options: DrawingOptions
) -> tuple[str, tuple[float, float]]:
    """Draw lines, broken at the option ``fold``, with a box behind each part of a highlight."""
    marks = {i: mark for mark in highlights for i in range(mark.start, mark.end)}
    notes = {m.end - 1: " ".join(filter(None, [m.label, m.number])) for m in highlights}
    # Distance from the beginning of the line, top, width and width of the box of each word.
    places: list[tuple[float, float, float, float]] = []
    x, y = options.offset_x, 8.0
    for i, (word, space) in enumerate(words):
        note = notes.get(i)
        wide = usual_width(visible(word), WORD) + (text_width(note, NUMBER) + 6 if note else 0)
        if x > options.offset_x and x + wide > options.offset_x + options.fold:
            x, y = options.offset_x, y + LINE
        if i in marks and marks[i].start == i:
            x += 2
        joined = i in marks and i < marks[i].end - 1
        after = (SPACE if space or joined else 1) + (3 if i in marks else 0)
        places.append((x, y, wide, wide + (after if joined else 4)))
        x += wide + after
    across = max((x + wide for x, _, wide, _ in places), default=0.0) + options.offset_x
    content: list[str] = []
    for i, ((word, _), (x, y, _, box)) in enumerate(zip(words, places)):
        if i in marks:
            content.append(_box(marks[i], x - 2, y, box, across, options))
        content.append(_text(visible(word), notes.get(i, ""), x, y + 18, across, options))
    return "".join(content), (across, y + LINE)


def _box(
    mark: Highlight, x: float, y: float, wide: float, across: float, options: DrawingOptions
) -> str:
    color, strength = _color(mark, options)
    place = {"x": across - x - wide if options.rtl else x, "width": wide}
    box = {**place, "y": y, "height": 25, "fill": color, "fill-opacity": strength}
    left, right = place["x"], place["x"] + wide
    line = {
        "d": f"M{left:.1f},{y + 25:.1f}H{right:.1f}",
        "stroke": color,
        "stroke-width": 2,
        "stroke-dasharray": "5 3" if mark.weak else None,
    }
    return element("g", {"class": "sl-highlight"}, element("rect", box), element("path", line))


def _text(shown: str, note: str, x: float, y: float, across: float, options: DrawingOptions) -> str:
    wide = usual_width(shown, WORD)
    attributes = {
        "class": "displacy-word sl-ink",
        "fill": options.color or light("ink"),
        "x": across - x if options.rtl else x,
        "y": y,
        "font-size": WORD,
        # The side on which a line of this direction begins.
        "text-anchor": "start",
        "direction": options.direction,
    }
    drawn = element("text", {**attributes, **fitted(wide)}, text(shown))
    if note:
        after = x + wide + 5
        place = {"x": across - after if options.rtl else after, "font-size": NUMBER}
        small = {**attributes, **place, "class": "displacy-label sl-ink"}
        drawn += element("text", small, text(note))
    return drawn
