"""Finished drawings, and the layout of several drawings as one SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from html import escape
from itertools import pairwise

from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.markup import element, text
from spacy_latent.visualize.palette import COLORS, light, variables
from spacy_latent.visualize.text_size import text_width

TEXT = 15
CAPTION = 30
MARGIN = 16
GAP = 24
ROW_WIDTH = 1400
# Texts with more words than this are hard to read in one row.
LONG = 60
# At this scale, labels of 10 pixels are 9 pixels high.
LEAST_SCALE = 0.9


@dataclass(frozen=True)
class Picture:
    """Drawing of one structure.

    Attributes:
        content: Content of ``<svg>``, or HTML if ``size`` is None.
        title, description: Plain text for screen readers.
        size: Width and height in pixels.
        caption: Short plain text above the drawing.
        weight: Weight of the structure among its alternatives.
        baseline: Height of the words, used to align the words of pictures side by side.
        signs: Names in :data:`spacy_latent.visualize.legend.SIGNS` of the signs to explain.
    """

    content: str
    title: str
    description: str
    size: tuple[float, float] | None = None
    caption: str = ""
    weight: float | None = None
    baseline: float = 0.0
    signs: frozenset[str] = frozenset()


# Pictures side by side, and the caption of all of them.
Drawn = tuple[list[Picture], str]


@dataclass(frozen=True)
class Figure:
    """Pictures of one structure, shown side by side.

    Attributes:
        options: Options of the drawings, with the language of the doc.
        seen: Sentence that explains the drawing to new readers.
    """

    pictures: tuple[Picture, ...]
    caption: str
    options: DrawingOptions
    seen: str = ""

    def drop(self, picture: Picture) -> float:
        """Return the distance to lower a picture, so that its words align with other pictures."""
        return max(other.baseline for other in self.pictures) - picture.baseline


def folded(picture: Picture, ends: Sequence[float], options: DrawingOptions) -> Picture:
    """Return a drawing over one row of words, folded into rows of at most the option ``fold``.

    Only texts of more than :data:`LONG` words are folded. Parts that cross the end of a row
    continue at the same height in the next row.

    Args:
        ends: End of each word, from the left; from the right for text that runs from right to left.
    """
    assert picture.size is not None
    across, down = picture.size
    if len(ends) <= LONG:
        return picture
    breaks = [0.0, *row_ends(ends, options), across]
    widest = max(b - a for a, b in pairwise(breaks))
    name = f"sl-{sha1(picture.content.encode()).hexdigest()[:12]}-row"
    rows = []
    for i, (start, end) in enumerate(pairwise(breaks)):
        left = across - end if options.rtl else start
        window = {
            "x": widest - (end - start) if options.rtl else 0.0,
            "y": i * down,
            "width": end - start,
            "height": down,
            "viewBox": f"{left:.1f} 0 {end - start:.1f} {down:.1f}",
        }
        inside = element("use", {"href": f"#{name}"})
        if not i:
            inside = element("g", {"id": name}, picture.content)
        rows.append(element("svg", window, inside))
    signs = picture.signs | ({"rows"} if len(rows) > 1 else set())
    return replace(
        picture, content="".join(rows), size=(widest, down * len(rows)), signs=frozenset(signs)
    )


def row_ends(ends: Sequence[float], options: DrawingOptions) -> list[float]:
    """Return the ends of all rows except the last one, for the arguments of :func:`folded`."""
    if len(ends) <= LONG:
        return []
    found, begin, last = [], 0.0, 0.0
    for end in ends:
        if end - begin > options.fold and last > begin:
            found.append(last)
            begin = last
        last = end
    return found


def in_one_row(x: float, half: float, breaks: Sequence[float]) -> float:
    """Return the middle ``x`` of a label, moved so that the label is within one row.

    Args:
        half: Half the width of the label.
        breaks: Positions at which rows end.
    """
    cut = next((end for end in breaks if abs(end - x) < half), None)
    return x if cut is None else cut + (half if x >= cut else -half)


def stylesheet() -> str:
    """Return the CSS rules of all drawings.

    The rules set the colours by the reader's scheme, or by the scheme of the notebook or site
    around the drawing. They also set the layout of drawings in HTML.
    """
    light_there, dark_there = (
        ",".join(f"{host} .spacy-latent" for host in hosts) for hosts in zip(*HOSTS)
    )
    return f"""
.spacy-latent{{{variables(False)}}}
@media (prefers-color-scheme:dark){{.spacy-latent{{{variables(True)}}}}}
{light_there}{{{variables(False)}}}
{dark_there}{{{variables(True)}}}
@media print{{{PRINTED}{{{variables(False)};print-color-adjust:exact}}}}
{RULES}
"""


# Takes precedence over all rules of the hosts.
PRINTED = ".spacy-latent" * 3
# Selectors by which a host page declares that it is light or dark, against the browser's setting:
# JupyterLab and Jupyter Notebook 7, Visual Studio Code, Colab, sites of Material for MkDocs.
HOSTS = (
    ("[data-jp-theme-light=true]", "[data-jp-theme-light=false]"),
    (".vscode-light", ".vscode-dark"),
    ("html[theme=light]", "html[theme=dark]"),
    ("[data-md-color-scheme=default]", "[data-md-color-scheme=slate]"),
)
_FILLS = "\n".join(
    f".sl-{name}{{fill:var(--sl-{name})}}.sl-{name}-stroke{{stroke:var(--sl-{name})}}"
    for name in COLORS
)
RULES = f"""{_FILLS}
.sl-number{{fill:var(--sl-ink);stroke:var(--sl-ground);stroke-width:3px;paint-order:stroke;stroke-linejoin:round}}
.sl-soft{{fill:var(--sl-muted)}}
svg.displacy text{{unicode-bidi:isolate}}"""


def svg(picture: Picture, options: DrawingOptions, standalone: bool) -> str:
    """Return an ``<svg>`` element.

    Args:
        standalone: True for a file of its own, with its own style.
    """
    assert picture.size is not None
    across, down = picture.size
    contents = picture.title + picture.description + picture.content
    name = sha1(contents.encode()).hexdigest()[:12]
    ground = element(
        "rect",
        {
            "class": "sl-ground",
            "width": across,
            "height": down,
            "fill": options.bg or light("ground"),
        },
    )
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "xml:lang": options.lang,
        "lang": options.lang,
        "id": f"sl-{name}",
        "class": "displacy spacy-latent" if standalone else "displacy",
        "role": "img",
        "aria-labelledby": f"sl-{name}-title sl-{name}-description",
        "width": across,
        "height": down,
        "viewBox": f"0 0 {across:.0f} {down:.0f}",
        "direction": options.direction,
        "font-family": options.font,
        "font-size": TEXT,
        "style": _size(across, down, standalone) + (overrides(options) if standalone else ""),
    }
    return element(
        "svg",
        attributes,
        element("title", {"id": f"sl-{name}-title"}, text(picture.title)),
        element("desc", {"id": f"sl-{name}-description"}, text(picture.description)),
        element("style", {}, escape(stylesheet(), quote=False)) if standalone else "",
        ground,
        picture.content,
    )


def _size(across: float, down: float, standalone: bool) -> str:
    """Return the CSS declarations for the size of a drawing.

    A drawing on a page shrinks with the page as long as it stays readable, and scrolls beyond that.
    A standalone image keeps its size, even if the page around it sets another size for images.
    """
    if standalone:
        return f"max-width:none;height:{down:.0f}px;"
    return f"max-width:100%;min-width:{LEAST_SCALE * across:.0f}px;height:auto;"


def overrides(options: DrawingOptions) -> str:
    """Return the CSS declarations of the colours that the options set."""
    given = {"ink": options.color, "accent": options.color, "ground": options.bg}
    return "".join(f"--sl-{name}:{color};" for name, color in given.items() if color)


def beside(figures: Sequence[Figure]) -> Picture:
    """Combine all pictures into one, with figures in rows.

    The pictures of a figure are side by side as long as they fit. Rows begin on the side where
    writing begins.
    """
    # Distance from the beginning of the row, top, width, markup, style.
    placed: list[tuple[float, float, float, str, DrawingOptions]] = []
    below = 0.0
    for figure in figures:
        options = figure.options
        wide = 2 * MARGIN + text_width(figure.caption, TEXT)
        muted = {"class": "sl-muted", "fill": light("muted")}
        placed.append(
            (0.0, below, wide, _caption(figure.caption, wide, 22, muted, options), options)
        )
        below += CAPTION
        for row in _rows(figure.pictures):
            start, deepest = 0.0, 0.0
            for picture in row:
                assert picture.size is not None
                caption = picture_caption(picture)
                wide = max(picture.size[0], 2 * MARGIN + text_width(caption, TEXT))
                if caption:
                    bold = {"class": "sl-ink", "fill": light("ink"), "font-weight": "bold"}
                    markup = _caption(caption, wide, 20, bold, options)
                    placed.append((start, below, wide, markup, options))
                lead = (CAPTION if caption else 0) + figure.drop(picture)
                placed.append((start, below + lead, picture.size[0], picture.content, options))
                start += wide + GAP
                deepest = max(deepest, picture.size[1] + lead)
            below += deepest + GAP
    across = max((start + wide for start, _, wide, _, _ in placed), default=1.0)
    content = []
    for start, top, wide, markup, options in placed:
        left = across - start - wide if options.rtl else start
        shift = f"translate({left:.0f},{top:.0f})"
        content.append(element("g", {"transform": shift}, markup))
    titles = [picture.title for figure in figures for picture in figure.pictures]
    descriptions = [picture.description for figure in figures for picture in figure.pictures]
    title = titles[0] if len(titles) == 1 else f"{len(titles)} drawings: {titles[0]}, ..."
    return Picture("".join(content), title, " ".join(descriptions), (across, max(below, 1.0)))


def _caption(
    caption: str, across: float, y: float, attributes: dict[str, str], options: DrawingOptions
) -> str:
    # Captions begin with English words or with a name, in texts from right to left, too.
    place = {
        "x": across - MARGIN if options.rtl else MARGIN,
        "y": y,
        "text-anchor": "end" if options.rtl else None,
        "direction": "ltr",
    }
    return element("text", {**attributes, **place}, text(caption))


def _rows(pictures: Sequence[Picture]) -> Iterator[list[Picture]]:
    row: list[Picture] = []
    across = 0.0
    for picture in pictures:
        assert picture.size is not None
        if row and across + picture.size[0] > ROW_WIDTH:
            yield row
            row, across = [], 0.0
        row.append(picture)
        across += picture.size[0] + GAP
    if row:
        yield row


def weight_text(weight: float) -> str:
    """Return the weight with two decimals, or with its first non-zero digit if it is below 0.005.

    Long sentences have many trees, so that the weight of the best one may be much less than 0.01.
    """
    return f"{weight:.2f}" if weight >= 0.005 or not weight else f"{weight:.1g}"


# Meaning of the weights of alternatives, which depends on the estimator.
WEIGHTS = (
    "Several structures of one text are alternatives. The weight of a structure is its "
    "probability among all possible structures. For samples, and for estimators that mix a few "
    "structures, such as SparseMAP, it is the share in the mixture."
)


def weight_caption(weight: float) -> str:
    """Return the weight of an alternative, with the meaning of the weight."""
    return f"weight of this structure {weight_text(weight)}"


def picture_caption(picture: Picture) -> str:
    """Return the text above a picture: its weight and its caption."""
    weight = "" if picture.weight is None else weight_caption(picture.weight)
    return " · ".join(filter(None, (weight, picture.caption)))
