"""Changes in the structure of one text over time: a strip of drawings, and their animation.

The drawings are the drawings of :func:`spacy_latent.visualize.render_svg`. The page and the
animation need no script and no external resources. Readers who prefer reduced motion see the last
drawing, not moving.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from spacy.tokens import Doc

from spacy_latent.errors import LatentError
from spacy_latent.visualize.drawing import render_svg
from spacy_latent.visualize.markup import text
from spacy_latent.visualize.picture import stylesheet

SECONDS = 0.9
# The last drawing is shown this many times as long as the others.
LAST_STANDS = 3
SEEN = (
    "Structures of each text in the course of training: an animation, and below it the single "
    "drawings in the order of time."
)
CAPTION = 40
SIZE = re.compile(r'\s(width|height)="([\d.]+)"')


@dataclass(frozen=True)
class Frame:
    """Frame of a film.

    Attributes:
        caption: Text below the drawing, such as "step 500".
    """

    caption: str
    doc: Doc


@dataclass(frozen=True)
class Film:
    """Structures of one component on one text, in order of time."""

    component: str
    frames: Sequence[Frame]

    @property
    def text(self) -> str:
        """Text of the last frame, "" without frames."""
        return self.frames[-1].doc.text if self.frames else ""

    def drawings(self) -> list[str]:
        """Return an SVG of each frame.

        Raises:
            LatentError: If the structures cannot be drawn.
        """
        return [render_svg(frame.doc, self.component) for frame in self.frames]


def animated_svg(film: Film) -> str:
    """Return one SVG file that repeats a film, or "" for a film without frames.

    Raises:
        LatentError: If the structures cannot be drawn.
    """
    drawings = film.drawings()
    if not drawings:
        return ""
    sizes = [_size(drawing) for drawing in drawings]
    across = max(width for width, _ in sizes)
    down = CAPTION + max(height for _, height in sizes)
    count = len(drawings)
    groups = []
    for i, (frame, drawing, (_, height)) in enumerate(zip(film.frames, drawings, sizes)):
        done = across * (i + 1) / count
        # The words are at the bottom. They stay there if the height of the arcs changes.
        drop = down - height
        groups.append(
            f'<g class="film-frame" style="animation-delay:{_delay(i, count):.2f}s">'
            f'<rect class="sl-accent" width="{done:.1f}" height="3"/>'
            f'<text class="sl-ink" x="16" y="26" font-size="15">{text(frame.caption)}</text>'
            f'<g transform="translate(0,{drop:.0f})">{drawing}</g></g>'
        )
    label = text(f"{film.component} on: {film.text}")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="spacy-latent" role="img" '
        f'aria-label="{label}" width="{across:.0f}" height="{down:.0f}" '
        f'viewBox="0 0 {across:.0f} {down:.0f}" font-family="system-ui, Arial, sans-serif">'
        f"<style>{stylesheet()}{_motion(count)}</style>"
        f'<rect class="sl-ground" width="100%" height="100%"/>{"".join(groups)}</svg>\n'
    )


def film_page(films: Sequence[Film], title: str, charts: str = "") -> str:
    """Return an HTML page with each film as an animation and as a strip of drawings below it.

    The markup ``charts`` stands before the films.
    """
    sections = "\n".join(_section(film) for film in films)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{stylesheet()}{PAGE_RULES}</style></head>\n"
        f'<body class="spacy-latent"><h1>{text(title)}</h1>\n<p>{SEEN}</p>\n'
        f'<div class="film-charts">{charts}</div>\n{sections}\n'
        "</body></html>\n"
    )


def _section(film: Film) -> str:
    heading = f"<h2><code>{text(film.component)}</code> {text(film.text)}</h2>"
    try:
        drawings, animation = film.drawings(), animated_svg(film)
    except LatentError as error:
        return f"<section>{heading}<p>{text(str(error))}</p></section>"
    source = b64encode(animation.encode("utf8")).decode("ascii")
    description = f"animation of the {len(drawings)} drawings below"
    cells = [
        f"<figure><div>{drawing}</div><figcaption>{text(frame.caption)}</figcaption></figure>"
        for frame, drawing in zip(film.frames, drawings)
    ]
    return (
        f'<section>{heading}<img class="film" alt="{description}" '
        f'src="data:image/svg+xml;base64,{source}">'
        f'<div class="film-strip">{"".join(cells)}</div></section>'
    )


def _size(drawing: str) -> tuple[float, float]:
    """Return the width and the height in pixels of a drawing of this package."""
    found = dict(SIZE.findall(drawing[: drawing.index(">")]))
    return float(found["width"]), float(found["height"])


def _delay(i: int, count: int) -> float:
    """Return the delay of a frame; it is negative, so that the first round is like all others."""
    return SECONDS * (i - (count - 1 + LAST_STANDS))


def _motion(count: int) -> str:
    slots = count - 1 + LAST_STANDS
    first, last = 100 / slots, 100 * LAST_STANDS / slots
    return (
        ".film-frame{visibility:hidden}.film-frame:last-of-type{visibility:visible}"
        "@media(prefers-reduced-motion:no-preference){"
        f".film-frame{{animation:film {slots * SECONDS:.2f}s step-end infinite}}"
        ".film-frame:last-of-type{animation-name:film-last}}"
        f"@keyframes film{{0%{{visibility:visible}}{first:.4f}%,100%{{visibility:hidden}}}}"
        f"@keyframes film-last{{0%{{visibility:visible}}{last:.4f}%,100%{{visibility:hidden}}}}"
    )


PAGE_RULES = """
body{font:16px/1.5 system-ui,Arial,sans-serif;margin:0 auto;padding:1rem;max-width:1200px;
background:var(--sl-ground);color:var(--sl-ink)}
h1{font-size:1.4rem}h2{font-size:1rem;font-weight:600;margin:2rem 0 .5rem}
code,figcaption{color:var(--sl-muted)}
figcaption{font-size:.85rem}
.film{display:block;max-width:100%;height:auto;border:1px solid var(--sl-line)}
.film-strip{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));gap:1rem;
align-items:end;margin-top:1rem}
.film-strip figure{margin:0;min-width:0}
.film-strip figure>div{border:1px solid var(--sl-line)}
.film-strip svg{width:100%!important;height:auto!important;max-width:100%!important;display:block}
.film-charts{display:flex;flex-wrap:wrap;gap:1rem}
.film-charts text{fill:currentColor;font-size:12px}
.film-charts path,.film-charts polyline{fill:none;stroke-width:1.6}
.film-charts .frame{stroke:var(--sl-muted)}
@media print{.film{display:none}.film-strip figure{break-inside:avoid}}
"""
