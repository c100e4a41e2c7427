"""How the structure of one text changes: a strip of drawings, and an animation of them.

The single drawings are those of :func:`spacy_latent.visualize.render`. Neither the page nor the
animation needs a script or anything from elsewhere, and who asked for less motion sees the last
drawing at rest.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from spacy.tokens import Doc

from spacy_latent.errors import LatentError
from spacy_latent.visualize.drawing import render

SECONDS = 0.9
# The last drawing stands for so many times as long as the others.
LAST_STANDS = 3
CAPTION = 40
SVG = re.compile(r"<svg\b.*?</svg>", re.S)
OPENING = re.compile(r"<svg\b[^>]*>")
# Characters that XML cannot hold, not even escaped.
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
SIZE = re.compile(r'\s(width|height)="([\d.]+)(?:px)?"')


@dataclass(frozen=True)
class Frame:
    """caption: what stands under the drawing, such as "step 500". doc: with structures."""

    caption: str
    doc: Doc


@dataclass(frozen=True)
class Film:
    """The structures of one component on one text, in the order of time."""

    component: str
    frames: Sequence[Frame]

    @property
    def text(self) -> str:
        return self.frames[-1].doc.text if self.frames else ""

    def drawings(self) -> list[str]:
        """Markup of each frame. Raises LatentError for structures that are not drawn."""
        drawn = [render(frame.doc, self.component, jupyter=False) for frame in self.frames]
        return [NOT_XML.sub("\ufffd", drawing) for drawing in drawn]


def animated_svg(film: Film) -> str:
    """One SVG file that shows a film over and over, or "" where its drawings are no SVG."""
    if not film.frames:
        return ""
    pictures = []
    for drawing in film.drawings():
        found = SVG.findall(drawing)
        if not found:
            return ""
        pictures.append(_stacked(found))
    across = max(width for _, width, _ in pictures)
    down = CAPTION + max(height for _, _, height in pictures)
    count = len(film.frames)
    groups = []
    for i, (frame, (content, _, height)) in enumerate(zip(film.frames, pictures)):
        done = across * (i + 1) / count
        # Words stand at the bottom, and should not jump with the height of the arcs.
        drop = down - height
        groups.append(
            f'<g class="film-frame" style="animation-delay:{_delay(i, count):.2f}s">'
            f'<rect class="film-bar" width="{done:.1f}" height="3"/>'
            f'<text class="film-ink" x="16" y="26" font-size="15">{_shown(frame.caption)}</text>'
            f'<g transform="translate(0,{drop:.0f})">{content}</g></g>'
        )
    label = f"{film.component} on: {film.text}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'role="img" aria-label="{_shown(label)}" width="{across:.0f}" height="{down:.0f}" '
        f'viewBox="0 0 {across:.0f} {down:.0f}" font-family="system-ui, Arial, sans-serif">'
        f"<style>{_motion(count)}</style>"
        f'<rect class="film-ground" width="100%" height="100%"/>{"".join(groups)}</svg>\n'
    )


def film_page(films: Sequence[Film], title: str, charts: str = "") -> str:
    """An HTML page: each film as an animation, and below it as a strip of its drawings.

    charts: markup that stands before the films.
    """
    sections = "\n".join(_section(film) for film in films)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_shown(title)}</title><style>{PAGE_RULES}</style></head>\n"
        f'<body><h1>{_shown(title)}</h1>\n<div class="film-charts">{charts}</div>\n{sections}\n'
        "</body></html>\n"
    )


def _section(film: Film) -> str:
    heading = f"<h2><code>{_shown(film.component)}</code> {_shown(film.text)}</h2>"
    try:
        drawings = film.drawings()
    except LatentError as error:
        return f"<section>{heading}<p>{_shown(str(error))}</p></section>"
    animation = animated_svg(film)
    moving = ""
    if animation:
        source = b64encode(animation.encode("utf8")).decode("ascii")
        told = f"animation of the {len(drawings)} drawings below"
        moving = f'<img class="film" alt="{told}" src="data:image/svg+xml;base64,{source}">'
    cells = [
        f"<figure><div>{_cell(drawing)}</div>"
        f"<figcaption>{_shown(frame.caption)}</figcaption></figure>"
        for frame, drawing in zip(film.frames, drawings)
    ]
    return f'<section>{heading}{moving}<div class="film-strip">{"".join(cells)}</div></section>'


def _cell(drawing: str) -> str:
    """The drawing without the headings around its pictures, as far as these are SVG."""
    return OPENING.sub(_scalable, "".join(SVG.findall(drawing)) or drawing)


def _stacked(drawings: Sequence[str]) -> tuple[str, float, float]:
    """The drawings of a text with several structures below each other: markup, width, height."""
    across = down = 0.0
    placed = []
    for drawing in drawings:
        width, height = _size(drawing)
        placed.append(f'<g transform="translate(0,{down:.0f})">{drawing}</g>')
        across, down = max(across, width), down + height
    return "".join(placed), across, down


def _size(drawing: str) -> tuple[float, float]:
    opening = OPENING.match(drawing)
    found = dict(SIZE.findall(opening[0])) if opening else {}
    return float(found.get("width", 800)), float(found.get("height", 400))


def _scalable(opening: re.Match[str]) -> str:
    """With a viewBox, without which a drawing is cut off instead of made smaller."""
    if "viewBox" in opening[0]:
        return opening[0]
    width, height = _size(opening[0])
    return f'{opening[0][:-1]} viewBox="0 0 {width:.0f} {height:.0f}">'


def _delay(i: int, count: int) -> float:
    """Negative, so that the first round is like all others."""
    return SECONDS * (i - (count - 1 + LAST_STANDS))


def _motion(count: int) -> str:
    slots = count - 1 + LAST_STANDS
    first, last = 100 / slots, 100 * LAST_STANDS / slots
    return (
        ".film-ground{fill:#fff}.film-ink{fill:#1b1f24}.film-bar{fill:#0072b2}"
        "@media(prefers-color-scheme:dark){.film-ground{fill:#15181c}.film-ink{fill:#e8eaed}"
        ".film-bar{fill:#56b4e9}}"
        ".film-frame{visibility:hidden}.film-frame:last-of-type{visibility:visible}"
        "@media(prefers-reduced-motion:no-preference){"
        f".film-frame{{animation:film {slots * SECONDS:.2f}s step-end infinite}}"
        ".film-frame:last-of-type{animation-name:film-last}}"
        f"@keyframes film{{0%{{visibility:visible}}{first:.4f}%,100%{{visibility:hidden}}}}"
        f"@keyframes film-last{{0%{{visibility:visible}}{last:.4f}%,100%{{visibility:hidden}}}}"
    )


def _shown(text: str) -> str:
    """Escaped, and on one line."""
    return escape("".join(c if c.isprintable() else " " for c in text), quote=True)


PAGE_RULES = """
body{font:16px/1.5 system-ui,Arial,sans-serif;margin:0 auto;padding:1rem;max-width:1200px;
background:#fff;color:#1b1f24}
h1{font-size:1.4rem}h2{font-size:1rem;font-weight:600;margin:2rem 0 .5rem}
code{color:#5b6470}
.film{display:block;max-width:100%;height:auto;border:1px solid #d5dae0}
.film-strip{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));gap:1rem;
align-items:end;margin-top:1rem}
.film-strip figure{margin:0;min-width:0}
.film-strip figure>div{overflow-x:auto;border:1px solid #d5dae0}
.film-strip svg{width:100%!important;height:auto!important;max-width:100%!important;display:block}
.film-strip figcaption{font-size:.85rem;color:#5b6470}
.film-charts{display:flex;flex-wrap:wrap;gap:1rem}
.film-charts figcaption{font-size:.85rem}
.film-charts text{fill:currentColor;font-size:12px}
.film-charts path,.film-charts polyline{fill:none;stroke-width:1.6}
.film-charts .frame{stroke:#a3abb6}
@media(prefers-color-scheme:dark){body{background:#15181c;color:#e8eaed}
code,.film-strip figcaption{color:#a3abb6}.film,.film-strip figure>div{border-color:#3a414a}}
"""
