"""Drawings of latent structures with the conventions of displaCy: entry points of this package."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from spacy.tokens import Doc, Span

from spacy_latent.annotations import SpanStructure
from spacy_latent.errors import LatentError, LatentWarning, number_of
from spacy_latent.visualize.displacy_drawing import (
    NO_STRUCTURE,
    drawn_components,
    render_with_displacy,
)
from spacy_latent.visualize.drawing_options import DrawingOptions, settings_of
from spacy_latent.visualize.elements import Markup
from spacy_latent.visualize.markup import shortened
from spacy_latent.visualize.page import (
    NOTHING,
    deliver,
    fragment,
    heading,
    html_page,
    in_notebook,
    minified,
    serve_markup,
)
from spacy_latent.visualize.picture import WEIGHTS, Figure, beside, svg
from spacy_latent.visualize.structure_view import TITLE_WORDS, StructureView
from spacy_latent.visualize.styles import draw_figure, known_styles

# Advice for a slice of a doc, which lacks a structure that covers more than the slice.
OF_SLICES = "A slice of a doc has the structures within it, such as those of its sentences."
DISPLACY_STYLES = ("dep", "ent", "span")
# Greatest number of words, in both texts together, of the drawn pieces of a pair that is aligned
# piece by piece. Each drawing has a row for each word.
WORDS_OF_A_PAIR = 1000


def render(
    docs: Iterable[Doc | Span] | Doc | Span,
    component: str | None = None,
    style: str | None = None,
    page: bool = False,
    minify: bool = False,
    jupyter: bool | None = None,
    options: Mapping[str, object] | None = None,
    gold: Doc | Sequence[Doc] | None = None,
    opening: Markup = NOTHING,
    title: str | None = None,
    closing: Markup = NOTHING,
    note: str = "",
) -> str:
    """Draw the latent structures of docs, as ``displacy.render`` draws parses and entities.

    Custom kinds may have further styles, see :mod:`spacy_latent.kinds`. The render wrapper of
    ``displacy.set_render_wrapper`` is applied.

    Args:
        component: Name of the component; None draws the structures of all components.
        style: None selects the style that matches each structure. A style that does not match is
            refused.

            - "tree": arcs over the words.
            - "alignment": two columns of words with lines between them.
            - "heatmap": a square for each pair of words (alignments, trees), or for each tag and
              word.
            - "tags": rows of tags.
            - "entities": the entities that tags such as B-PER form.
            - "rationale": highlighted words.
            - "brackets": spans and segments.
            - "parts": a row for each part, for parts without a known meaning.
            - "dep", "ent" and "span": displaCy's own drawings of trees, of items, and of tags,
              spans and segments.
        page: Return a whole HTML page.
        minify: Remove line breaks.
        jupyter: Show the drawing in a notebook; None detects a notebook.
        options: The options of :class:`spacy_latent.visualize.drawing_options.DrawingOptions`:
            threshold, alternatives, fold, probabilities; and displaCy's compact, distance, color,
            bg, font and so on.
        gold: Docs of the same tokens with dependency heads, categories or both. Heads are drawn
            below the words of latent trees, with other lines for arcs that only one of the two
            trees has. The gold category is written next to the predicted one.
        opening, closing: Content of a whole page above and below the drawings, such as a
            :func:`spacy_latent.visualize.figure_table.figure_table`. The default begins a page with
            the title and a description of the drawings.
        title: Title of a whole page. The default has the names of the components, and the text if
            there is only one.
        note: Further sentence of the description of the drawings on a whole page.

    Returns:
        SVG that can be stored as a file, for a single drawing of arcs, pairs or brackets. HTML with
        its own style sheet otherwise. Nothing in a notebook, which shows the drawing.

    Raises:
        LatentError: If a doc lacks the component, the style does not match, a threshold is given
            without stored probabilities, an option is unknown, or the gold docs have other tokens.
            For a whole page also if no component wrote a structure on the docs.
    """
    made = _as_docs(docs)
    golds = _as_gold(made, gold)
    drawing_options = DrawingOptions.from_options(options)
    if style in DISPLACY_STYLES:
        return render_with_displacy(
            made, component, style, page, minify, jupyter, dict(options or {}), golds
        )
    figures = make_figures(made, component, style, drawing_options, golds)
    # It is no error if a component has recorded an empty result, as for docs without words, or if
    # the page has other content.
    bare = page and not opening and not closing
    if bare and made and not any(len(doc._.latent) for doc in made):
        raise LatentError(NO_STRUCTURE)
    if not page and any(map(len, made)) and not any(is_drawn(doc, component) for doc in made):
        # displaCy warns, too, if it has nothing to draw.
        warnings.warn(f"{NO_STRUCTURE} {OF_SLICES}", LatentWarning, stacklevel=2)
    if made:
        drawing_options = drawing_options.of(settings_of(made[0]))
    if page:
        title = title or page_title(made, component)
        names = [component] if component else None
        notes = [WEIGHTS] if drawing_options.alternatives and has_alternatives(made, names) else []
        opening = opening or heading(title, *seen(figures), *notes, *filter(None, [note]))
        markup = html_page(figures, drawing_options, opening, title, closing)
    else:
        markup = _markup(figures, drawing_options, in_notebook(jupyter))
    return deliver(minified(markup) if minify else markup, jupyter)


def render_svg(
    docs: Iterable[Doc | Span] | Doc | Span,
    component: str | None = None,
    style: str | None = None,
    options: Mapping[str, object] | None = None,
    gold: Doc | Sequence[Doc] | None = None,
) -> str:
    """Draw all structures as one SVG: one row per structure, with its drawings side by side.

    See :func:`render` for the arguments. Texts are folded at the option ``fold``.

    Raises:
        LatentError: If the style is one of displaCy's own styles, or there is nothing to draw.
    """
    made = _as_docs(docs)
    drawing_options = DrawingOptions.from_options(options)
    if style in DISPLACY_STYLES:
        raise LatentError(
            f"style is {style!r}, with which displaCy draws each text separately. For one SVG "
            "leave style out, or use render."
        )
    drawing_options = replace(drawing_options, as_svg=True)
    figures = make_figures(made, component, style, drawing_options, _as_gold(made, gold))
    if not figures:
        raise LatentError(NO_STRUCTURE)
    drawing_options = drawing_options.of(settings_of(made[0]))
    return svg(beside(figures), drawing_options, standalone=True) + "\n"


def serve(
    docs: Iterable[Doc | Span] | Doc | Span,
    component: str | None = None,
    style: str | None = None,
    page: bool = True,
    minify: bool = False,
    options: Mapping[str, object] | None = None,
    gold: Doc | Sequence[Doc] | None = None,
    port: int = 5000,
    host: str = "127.0.0.1",
    auto_select_port: bool = False,
) -> None:
    """Serve the drawings until interrupted, as ``displacy.serve`` does.

    See :func:`render` for the other arguments.

    Args:
        host: Host to listen on. Unlike with displaCy, only this machine can see the drawings unless
            another host is given.
        auto_select_port: Select another port if this one is taken.
    """
    markup = render(docs, component, style, page, minify, False, options, gold)
    serve_markup(markup, port, host, auto_select_port)


def make_figures(
    docs: Sequence[Doc],
    component: str | None,
    style: str | None,
    drawing_options: DrawingOptions,
    gold: Sequence[Doc] | None,
) -> list[Figure]:
    """Return the drawings of each structure of each doc; see :func:`render` for the arguments."""
    if style is not None and style not in known_styles():
        known = ", ".join([*known_styles(), *DISPLACY_STYLES])
        raise LatentError(
            f"style is {style!r}; expected one of {known}. For further styles, register a kind "
            "with spacy_latent.kinds.register_kind."
        )
    figures = []
    for doc, its_gold in zip(docs, gold or repeat(None)):
        own = drawing_options.of(settings_of(doc))
        for name in drawn_components(doc, component):
            spans = doc._.latent[name].spans
            drawn = drawn_pieces(spans)
            for number, span in enumerate(spans[:drawn], 1):
                figure = draw_figure(StructureView(doc, name, span, own, its_gold), style)
                if span.other_start is not None and len(spans) > 1:
                    left_out = number == drawn < len(spans)
                    more = "; the pair is long, and further pieces are not drawn" * left_out
                    said = f"{figure.caption} · piece {number} of {len(spans)}{more}"
                    figure = replace(figure, caption=said)
                figures.append(figure)
    return figures


def drawn_pieces(spans: Sequence[SpanStructure]) -> int:
    """Return the number of structures of a doc that are drawn.

    All structures are drawn, with one exception. A pair of texts may be aligned in pieces. At least
    one piece is then drawn, and no more pieces than have :data:`WORDS_OF_A_PAIR` words together.
    """
    count, words = 0, 0
    for span in spans:
        if span.other_start is not None and span.other_end is not None:
            words += span.end - span.start + span.other_end - span.other_start
        if count and words > WORDS_OF_A_PAIR:
            break
        count += 1
    return count


def is_drawn(doc: Doc, component: str | None) -> bool:
    """Return whether there is a structure to draw.

    A doc without words has no structure, and neither has a pair of texts if one text has no words.
    """
    names = [component] if component else list(doc._.latent)
    return any(doc._.latent[name].spans for name in names if name in doc._.latent)


def _as_docs(docs: Iterable[Doc | Span] | Doc | Span) -> list[Doc]:
    given = [docs] if isinstance(docs, (Doc, Span)) else list(docs)
    for one in given:
        if not isinstance(one, (Doc, Span)):
            raise LatentError(f"Expected a Doc or a Span to draw; got {type(one)}.")
    return [d.as_doc(copy_user_data=True) if isinstance(d, Span) else d for d in given]


def _as_gold(docs: Sequence[Doc], gold: Doc | Sequence[Doc] | None) -> list[Doc] | None:
    if gold is None:
        return None
    golds = [gold] if isinstance(gold, Doc) else list(gold)
    if [len(doc) for doc in golds] != [len(doc) for doc in docs]:
        raise LatentError(
            "gold does not have the docs' tokens: give one doc for each, tokenised alike."
        )
    return golds


def page_title(docs: Sequence[Doc], component: str | None) -> str:
    """Return the title of a page: the names of the components and the text."""
    there = [component] if component else dict.fromkeys(name for d in docs for name in d._.latent)
    docs = [doc for doc in docs if is_drawn(doc, component)] or docs
    names = ", ".join(there) or "the pipeline"
    words = [shortened(token.text) for token in docs[0]] if len(docs) == 1 else []
    more = " …" if len(words) > TITLE_WORDS else ""
    of = f"“{' '.join(words[:TITLE_WORDS])}{more}”" if words else number_of(len(docs), "text")
    return f"What {names} found in {of}"


def has_alternatives(docs: Sequence[Doc], names: Sequence[str] | None = None) -> bool:
    """Return whether weighted alternatives are stored for components; None: for any component."""
    return any(
        span.alternatives
        for doc in docs
        for name in (doc._.latent if names is None else names)
        if name in doc._.latent
        for span in doc._.latent[name].spans
    )


def seen(figures: Sequence[Figure]) -> list[str]:
    """Return the sentences that describe the figures of a page."""
    return list(dict.fromkeys(figure.seen for figure in figures if figure.seen))


def _markup(figures: Sequence[Figure], drawing_options: DrawingOptions, notebook: bool) -> str:
    pictures = [picture for figure in figures for picture in figure.pictures]
    if not pictures:
        return ""
    if len(pictures) == 1 and pictures[0].size is not None and not notebook:
        return svg(pictures[0], drawing_options, standalone=True)
    return fragment(figures, drawing_options)
