"""Pictures in HTML and their output: a page, a notebook or a server, as in displaCy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from spacy import displacy
from spacy.util import find_available_port, is_in_jupyter

from spacy_latent.visualize import figure_table, highlights, tag_rows
from spacy_latent.visualize import legend as legends
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.elements import Markup, join, tag
from spacy_latent.visualize.legend import legend
from spacy_latent.visualize.markup import element, text, visible
from spacy_latent.visualize.picture import (
    Figure,
    Picture,
    overrides,
    stylesheet,
    svg,
    weight_caption,
)

NOTHING = Markup("")
# The beginning of a drawing, and the part that all its identifiers begin with.
DRAWING = re.compile('(?=<svg [^>]*id="sl-)')
IDENTIFIER = re.compile(' id="(sl-[0-9a-f]{12})')
RULES = """
.spacy-latent{background:var(--sl-ground);color:var(--sl-ink);padding:.5rem 1rem}
.spacy-latent h1,.sl-seen,.sl-figure>figcaption{overflow-wrap:anywhere}
.sl-seen{max-width:60rem;line-height:1.5}
/* English sentences keep their order on a page that is written from right to left. */
[dir=rtl]>h1,[dir=rtl]>.sl-seen,[dir=rtl]>figcaption,
[dir=rtl] .sl-panel>header>span{unicode-bidi:plaintext;text-align:right}
.sl-figure{margin:0 0 1.5rem}
.sl-figure>figcaption{color:var(--sl-muted);font-size:.85rem;margin-bottom:.3rem}
.sl-panels{display:flex;flex-wrap:wrap;gap:1rem 1.5rem;align-items:flex-start}
.sl-panel{max-width:100%;min-width:0}
.sl-panel>header{font-size:.85rem;font-weight:600;display:flex;flex-wrap:wrap;gap:.6em;align-items:center}
.sl-weight{display:inline-block;width:5rem;height:.5rem;background:var(--sl-line);border-radius:.25rem;overflow:hidden}
.sl-weight>span{display:block;height:100%;background:var(--sl-accent)}
/* A shadow at each side on which the drawing goes on. */
.sl-scroll{overflow-x:auto;max-width:100%;background:
linear-gradient(to right,var(--sl-ground) 30%,transparent) left/2.5rem 102% no-repeat local,
linear-gradient(to left,var(--sl-ground) 30%,transparent) right/2.5rem 102% no-repeat local,
linear-gradient(to right,var(--sl-muted),transparent) left/.7rem 100% no-repeat scroll,
linear-gradient(to left,var(--sl-muted),transparent) right/.7rem 100% no-repeat scroll}
.sl-scroll>svg>rect.sl-ground{fill:none}
.sl-scroll:focus-visible{outline:2px solid var(--sl-accent)}
@media print{
.spacy-latent{padding:0;min-height:0!important}
.sl-scroll,.sl-figures{overflow:visible}
.sl-scroll{background:none}
.sl-scroll svg{min-width:0!important}
.sl-figure,.sl-figures{break-inside:avoid}
.spacy-latent h1,.spacy-latent p{break-after:avoid}
}
"""


def fragment(figures: Sequence[Figure], options: DrawingOptions) -> str:
    """Return the HTML of the figures, with the style sheet and the legend that they need."""
    return _body(figures, options, _style(), NOTHING)


def html_page(
    figures: Sequence[Figure],
    options: DrawingOptions,
    opening: Markup = NOTHING,
    title: str = "Latent structures",
    closing: Markup = NOTHING,
) -> str:
    """Return a self-contained HTML page of the figures.

    Args:
        opening: Markup above the figures, such as a
            :func:`spacy_latent.visualize.figure_table.figure_table`.
    """
    style = f"{overrides(options)}margin:0;min-height:100vh;box-sizing:border-box"
    lang, direction = escape(options.lang), escape(options.direction)
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title>{_style(figure_table.RULES)}"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="{lang}" dir="{direction}">\n<head>{head}</head>\n'
        f'<body class="spacy-latent" style="{style}">\n'
        f"{_body(figures, options, opening, closing)}\n"
        "</body>\n</html>\n"
    )


def heading(title: str, *sentences: str) -> Markup:
    """Return the beginning of a page: its title and a description of its content."""
    # Set the direction, since these sentences are English and the texts may run from right to left.
    said = tag("bdi", " ".join(sentences))
    return join(tag("h1", title), tag("p", said, class_="sl-seen"))


def _style(more: str = "") -> str:
    return element("style", {}, rules(), more)


def packaged(name: str) -> str:
    """Return the text of a file in the directory of this module."""
    return (files(__package__) / name).read_text(encoding="utf8")


def rules() -> str:
    """Return the style sheet of the figures."""
    return "".join((stylesheet(), RULES, tag_rows.RULES, highlights.RULES, legends.RULES))


def _body(figures: Sequence[Figure], options: DrawingOptions, before: str, after: str) -> str:
    attributes = {
        "class": "spacy-latent",
        "lang": options.lang,
        "dir": options.direction,
        "style": f"{overrides(options)}font-family:{options.font}",
    }
    signs = (sign for figure in figures for picture in figure.pictures for sign in picture.signs)
    drawn = (figure_markup(figure) for figure in figures)
    return element("div", attributes, before, legend(signs), own_identifiers("".join(drawn)), after)


def own_identifiers(markup: str) -> str:
    """Return the markup with different identifiers for each of several drawings of one text."""
    found: Counter[str] = Counter()
    pieces = []
    for piece in DRAWING.split(markup):
        for name in sorted(set(IDENTIFIER.findall(piece))):
            found[name] += 1
            if found[name] > 1:
                piece = piece.replace(name, f"{name}-{found[name]}")
        pieces.append(piece)
    return "".join(pieces)


def figure_markup(figure: Figure) -> str:
    """Return the HTML of one figure, for a page that has the style sheet."""
    options = figure.options
    panels = "\n".join(
        _panel(picture, options, figure.drop(picture)) for picture in figure.pictures
    )
    return element(
        "figure",
        {"class": "sl-figure", "lang": options.lang, "dir": options.direction},
        element("figcaption", {}, text(figure.caption)),
        element("div", {"class": "sl-panels"}, panels),
    )


def _panel(picture: Picture, options: DrawingOptions, drop: float) -> str:
    header = ""
    if picture.weight is not None:
        bar = element("span", {"style": f"width:{100 * min(1, max(0, picture.weight)):.0f}%"})
        meter = element("span", {"class": "sl-weight", "aria-hidden": "true"}, bar)
        header += f"{weight_caption(picture.weight)}{meter}"
    if picture.caption:
        header += element("span", {}, text(picture.caption))
    drawn = picture.content if picture.size is None else svg(picture, options, standalone=False)
    # A region that scrolls has to be reachable with the keyboard.
    scroll: dict[str, object] = {
        "class": "sl-scroll",
        "tabindex": 0,
        "role": "region",
        "aria-label": visible(picture.title),
    }
    if drop:
        scroll["style"] = f"padding-top:{drop:.0f}px"
    return element(
        "div",
        {"class": "sl-panel"},
        element("header", {}, header) if header else "",
        element("div", scroll, drawn),
    )


def minified(markup: str) -> str:
    """Return the markup without line breaks.

    Texts in the markup have no line breaks, because these are drawn as signs.
    """
    return markup.replace("\n", "").strip()


def deliver(markup: str, jupyter: bool | None) -> str:
    """Apply the render wrapper of displaCy, and show the markup if this is a notebook.

    The wrapper was set with ``displacy.set_render_wrapper``. ``displacy.render`` does the same.
    """
    if displacy.RENDER_WRAPPER is not None:
        markup = displacy.RENDER_WRAPPER(markup)
    if not in_notebook(jupyter):
        return markup
    from IPython.display import HTML, display

    return display(HTML(f'<span class="tex2jax_ignore">{markup}</span>'))


def in_notebook(jupyter: bool | None) -> bool:
    """Return ``jupyter``; for None, whether the code runs in a notebook."""
    return bool(jupyter or (jupyter is None and is_in_jupyter()))


def serve_markup(markup: str, port: int, host: str, auto_select_port: bool) -> None:
    """Serve the markup until interrupted, with the WSGI application of displaCy."""
    from wsgiref import simple_server

    port = find_available_port(port, host, auto_select_port)
    displacy._html["parsed"] = markup
    server = simple_server.make_server(host, port, displacy.app)
    print(f"Serving on http://{host}:{port} (stop with Ctrl+C)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"Shutting down server on port {port}.")
    finally:
        server.server_close()
