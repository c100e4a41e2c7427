"""Drawings of latent structures, by displaCy's conventions: the entry to this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spacy import displacy
from spacy.tokens import Doc, Span

from spacy_latent.annotations import LatentAnnotation, SpanStructure
from spacy_latent.errors import LatentError
from spacy_latent.visualize.alignment_svg import DrawnCell, draw_alignment
from spacy_latent.visualize.brackets_svg import DrawnBracket, draw_brackets
from spacy_latent.visualize.displacy_drawing import render_with_displacy
from spacy_latent.visualize.heat_map_svg import draw_heat_map
from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.look import Look
from spacy_latent.visualize.markup import shortened
from spacy_latent.visualize.page import deliver, fragment, html_page, in_notebook, minified
from spacy_latent.visualize.page import serve_markup as _serve_markup
from spacy_latent.visualize.picture import Figure, Picture, beside, svg
from spacy_latent.visualize.tag_rows import DrawnTag, TagRow, draw_tags
from spacy_latent.visualize.tree_svg import DrawnArc, draw_tree

# More than this many parts a word hide each other.
PARTS_PER_WORD = 3
TITLE_WORDS = 12
DISPLACY_STYLES = ("dep", "ent", "span")
# How each kind is drawn if no style is asked for; tags that make entities as such.
DEFAULT_STYLES = {
    "heads": "tree",
    "arcs": "tree",
    "cells": "alignment",
    "tags": "tags",
    "items": "rationale",
    "spans": "brackets",
    "segments": "brackets",
}


def render(
    docs: Iterable[Doc | Span] | Doc | Span,
    component: str | None = None,
    style: str | None = None,
    page: bool = False,
    minify: bool = False,
    jupyter: bool | None = None,
    options: dict[str, Any] | None = None,
    gold: Doc | Sequence[Doc] | None = None,
) -> str:
    """Draw the latent structures of docs, as ``displacy.render`` does parses and entities.

    component: name of the component; None draws those of all.
    style: None for that which fits each structure. "tree" draws arcs over the words, "alignment"
        two columns of words with lines between them, "heatmap" a square for each pair of words
        (alignments, trees) or of a tag and a word, "tags" rows of tags, "entities" those that tags
        such as B-PER make, "rationale" highlighted words, "brackets" spans and segments. "dep",
        "ent" and "span" are displaCy's own drawings of trees, of items, and of tags, spans and
        segments. A style that does not fit is refused.
    page: a whole HTML page. minify: without line breaks. jupyter: show it in a notebook; None to
        find out. The wrapper of ``displacy.set_render_wrapper`` is used.
    options: those of :class:`spacy_latent.visualize.look.Look`: threshold, alternatives, fold,
        probabilities; and displaCy's compact, distance, color, bg, font and so on.
    gold: docs of the same tokens with dependency heads, drawn below the words of latent trees;
        arcs that only one of the two has are set apart.
    RETURNS: a single drawing of arcs, pairs or brackets is an SVG that can be a file of its own;
        everything else is HTML with its own style. Nothing in a notebook, which shows it.

    Raises LatentError for a component that is not on a doc, a style that does not fit, a threshold
    without stored probabilities, options that nothing knows, and gold of other tokens.
    """
    made = _as_docs(docs)
    golds = _as_gold(made, gold)
    look = Look.from_options(options)
    if style in DISPLACY_STYLES:
        return render_with_displacy(
            made, component, style, page, minify, jupyter, dict(options or {}), golds
        )
    figures = make_figures(made, component, style, look, golds)
    if made:
        look = look.of(displacy.get_doc_settings(made[0]))
    markup = _markup(figures, look, page, in_notebook(jupyter))
    return deliver(minified(markup) if minify else markup, jupyter)


def render_svg(
    docs: Iterable[Doc | Span] | Doc | Span,
    component: str | None = None,
    style: str | None = None,
    options: dict[str, Any] | None = None,
    gold: Doc | Sequence[Doc] | None = None,
) -> str:
    """One SVG with all drawings: those of one structure side by side, structures in rows.

    Arguments as for :func:`render`. Texts are folded at the option ``fold``. Raises LatentError for
    displaCy's own styles, and if there is nothing to draw.
    """
    made = _as_docs(docs)
    look = Look.from_options(options)
    if style in DISPLACY_STYLES:
        raise LatentError(
            f"style is {style!r}, which displaCy draws one by one; for one SVG leave style out, or "
            "use render."
        )
    look = replace(look, as_svg=True)
    figures = make_figures(made, component, style, look, _as_gold(made, gold))
    if not figures:
        raise LatentError(
            "There is no latent structure to draw on the docs. Were they made by the pipeline, "
            "with annotate other than 'none'?"
        )
    look = look.of(displacy.get_doc_settings(made[0]))
    return svg(beside(figures), look, standalone=True) + "\n"


def serve(
    docs: Iterable[Doc | Span] | Doc | Span,
    component: str | None = None,
    style: str | None = None,
    page: bool = True,
    minify: bool = False,
    options: dict[str, Any] | None = None,
    gold: Doc | Sequence[Doc] | None = None,
    port: int = 5000,
    host: str = "127.0.0.1",
    auto_select_port: bool = False,
) -> None:
    """Serve the drawings until interrupted, as ``displacy.serve`` does.

    host: unlike displaCy's, only this machine can see them unless another one is given.
    """
    markup = render(docs, component, style, page, minify, False, options, gold)
    _serve_markup(markup, port, host, auto_select_port)


def make_figures(
    docs: Sequence[Doc],
    component: str | None,
    style: str | None,
    look: Look,
    gold: Sequence[Doc] | None,
) -> list[Figure]:
    """The drawings of each structure of each doc; arguments as for :func:`render`."""
    if style is not None and style not in STYLES:
        known = ", ".join([*STYLES, *DISPLACY_STYLES])
        raise LatentError(f"style is {style!r}; there are {known}.")
    figures = []
    for i, doc in enumerate(docs):
        if component is not None and component not in doc._.latent:
            there = ", ".join(doc._.latent) or "nothing"
            raise LatentError(
                f"There is no latent structure of {component!r} on the doc; it has {there}. Was "
                "the doc made by the pipeline, with annotate other than 'none'?"
            )
        own = look.of(displacy.get_doc_settings(doc))
        for name in [component] if component else list(doc._.latent):
            for span in doc._.latent[name].spans:
                subject = _Subject(doc, name, span, own, None if gold is None else gold[i])
                figures.append(subject.figure(style))
    return figures


def _as_docs(docs: Iterable[Doc | Span] | Doc | Span) -> list[Doc]:
    given = [docs] if isinstance(docs, (Doc, Span)) else list(docs)
    for one in given:
        if not isinstance(one, (Doc, Span)):
            raise LatentError(f"Only a Doc or a Span can be drawn, and this is {type(one)}.")
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


def _markup(figures: Sequence[Figure], look: Look, page: bool, notebook: bool) -> str:
    pictures = [picture for figure in figures for picture in figure.pictures]
    if page:
        return html_page(figures, look)
    if not pictures:
        return ""
    if len(pictures) == 1 and pictures[0].size is not None and not notebook:
        return svg(pictures[0], look, standalone=True)
    return fragment(figures, look)


@dataclass(frozen=True)
class _Subject:
    """One structure that is to be drawn."""

    doc: Doc
    component: str
    span: SpanStructure
    look: Look
    gold: Doc | None

    def figure(self, style: str | None) -> Figure:
        style = style or self.default_style
        kinds, draw = STYLES.get(style or "", ((), _tree))
        if self.span.kind not in kinds:
            fitting = [name for name, (kinds, _) in STYLES.items() if self.span.kind in kinds]
            told = f"style is {style!r}, and " if style else "There is no drawing of this: "
            instead = f"drawn with {', '.join(fitting)}" if fitting else "not drawn"
            raise LatentError(
                f"{told}{self.span.structure} of {self.component!r} has the kind "
                f"{self.span.kind!r}, which is {instead}. Leave style out, or name a component."
            )
        pictures, note = draw(self)
        title = [self.component, self.span.structure, self.category, note]
        return Figure(tuple(pictures), " · ".join(filter(None, title)), self.look)

    @property
    def category(self) -> str:
        """The most probable category of the doc: that which a rationale or an alignment is for."""
        if not self.doc.cats:
            return ""
        best = max(self.doc.cats, key=lambda name: self.doc.cats[name])
        return f"{best} {self.doc.cats[best]:.2f}"

    @property
    def default_style(self) -> str | None:
        if self.span.kind == "tags" and "O" in (self.span.labels or ()):
            return "entities"
        return DEFAULT_STYLES.get(self.span.kind)

    @property
    def annotation(self) -> LatentAnnotation:
        return LatentAnnotation(self.doc, self.component, [self.span])

    @property
    def words(self) -> list[str]:
        return [token.text for token in self.doc[self.span.start : self.span.end]]

    @property
    def spaced_words(self) -> list[tuple[str, str]]:
        tokens = self.doc[self.span.start : self.span.end]
        return [(token.text, token.whitespace_) for token in tokens]

    @property
    def known(self) -> bool:
        return self.span.probabilities is not None

    @property
    def title(self) -> str:
        words = [shortened(word) for word in self.words]
        more = " …" if len(words) > TITLE_WORDS else ""
        return f"{self.span.structure} of {self.component}: {' '.join(words[:TITLE_WORDS])}{more}"

    @property
    def choices(self) -> list[tuple[int | None, float | None]]:
        """The alternatives to draw, with their weights, or only the best structure."""
        asked = self.span.alternatives[: self.look.alternatives]
        return [(i, weight) for i, (_, weight) in enumerate(asked)] or [(None, None)]

    def parts(self, alternative: int | None) -> list[tuple[tuple[int, ...], float, bool]]:
        """Index within the span, probability, and whether it is of the structure itself: the parts
        of the structure; or with a threshold all that are as probable, but not too many."""
        chosen = self.annotation._chosen(self.span, None, alternative)
        if self.look.threshold is None or alternative is not None:
            return [(part, p, True) for part, p in chosen]
        own = {part for part, _ in chosen}
        probable = self.annotation._chosen(self.span, self.look.threshold, None)
        found = [(part, p, part in own) for part, p in probable]
        found.sort(key=lambda one: (not one[2], -one[1]))
        return found[: PARTS_PER_WORD * len(self.span)]

    def structure(self, alternative: int | None) -> list[tuple[tuple[int, ...], float]]:
        """The parts of the structure, whatever the threshold."""
        return self.annotation._chosen(self.span, None, alternative)

    def label(self, probability: float) -> str:
        return f"{probability:.2f}" if self.known and self.look.probabilities else ""

    def tag_name(self, number: int) -> str:
        labels = self.span.labels
        return labels[number] if labels and 0 <= number < len(labels) else str(number)


Drawn = tuple[list[Picture], str]


def _tree(subject: _Subject) -> Drawn:
    gold = [] if subject.gold is None else _gold_arcs(subject.gold, subject.span)
    in_gold = {(arc.head, arc.modifier) for arc in gold}
    pictures = []
    for alternative, weight in subject.choices:
        parts = subject.parts(alternative)
        arcs = []
        for (h, m), p, chosen in parts:
            head = None if h == 0 else h - 1
            apart = bool(gold) and (head, m - 1) not in in_gold
            arcs.append(DrawnArc(head, m - 1, p, subject.label(p), apart, not chosen))
        here = {(None if h == 0 else h - 1, m - 1) for (h, m), _ in subject.structure(alternative)}
        below = [
            DrawnArc(arc.head, arc.modifier, 1.0, arc.label, (arc.head, arc.modifier) not in here)
            for arc in gold
        ]
        same = f"{len(here & in_gold)} of {len(gold)} arcs as in gold" if gold else ""
        drawn = draw_tree(
            subject.words, arcs, subject.look, subject.title, below, same, weight=weight
        )
        pictures.append(drawn)
    return pictures, "gold below" if gold else ""


def _gold_arcs(doc: Doc, span: SpanStructure) -> list[DrawnArc]:
    arcs = []
    for token in doc[span.start : span.end]:
        head = None if token.head.i == token.i else token.head.i - span.start
        # A head outside of the span has no place in this picture.
        if head is None or 0 <= head < len(span):
            label = "" if head is None else token.dep_
            arcs.append(DrawnArc(head, token.i - span.start, 1.0, label))
    return arcs


def _brackets(subject: _Subject) -> Drawn:
    pictures = []
    for alternative, weight in subject.choices:
        brackets = []
        for (first, last, *label), p, chosen in subject.parts(alternative):
            if label:
                name = f"{subject.tag_name(label[0])} {subject.label(p)}".strip()
                brackets.append(DrawnBracket(first, last, p, name, label[0], not chosen))
            elif last > first:
                # Trees have a span over every word: these would say nothing.
                brackets.append(
                    DrawnBracket(first, last + 1, p, subject.label(p), faint=not chosen)
                )
        drawn = draw_brackets(subject.words, brackets, subject.look, subject.title, "", weight)
        pictures.append(drawn)
    return pictures, ""


def _alignment(subject: _Subject) -> Drawn:
    return _pairs(subject, draw_alignment)


def _heat_map(subject: _Subject) -> Drawn:
    return _pairs(subject, draw_heat_map)


def _pairs(subject: _Subject, draw: Callable[..., Picture]) -> Drawn:
    rows, columns, shift, note = _axes(subject)
    pictures = []
    for alternative, weight in subject.choices:
        cells = [
            DrawnCell(part[0] - shift[0], part[1] - shift[1], p, chosen)
            for part, p, chosen in _all_parts(subject, alternative)
        ]
        pictures.append(
            draw(rows, columns, cells, subject.look, subject.title, subject.known, weight=weight)
        )
    return pictures, note


def _all_parts(
    subject: _Subject, alternative: int | None
) -> list[tuple[tuple[int, ...], float, bool]]:
    parts = subject.parts(alternative)
    if subject.span.kind == "tags":
        return [((tag, i), p, chosen) for (i, tag), p, chosen in parts]
    return parts


def _axes(subject: _Subject) -> tuple[list[str], list[str], tuple[int, int], str]:
    """Names of rows and columns, the indices that come first in them, and what they are."""
    span = subject.span
    if span.kind == "cells":
        # Asks for the other text, and says so where it is not known.
        subject.annotation.cells()
        other = subject.doc[span.other_start : span.other_end]
        return subject.words, [token.text for token in other], (0, 0), ""
    if span.kind == "tags":
        numbers = [part[0] for part, _, _ in _all_parts(subject, None)]
        numbers += [int(tag) for decoded, _ in span.alternatives for tag in decoded]
        names = [subject.tag_name(i) for i in range(max(numbers, default=-1) + 1)]
        return names, subject.words, (0, 0), "tags by word"
    return ["(root)", *subject.words], subject.words, (0, 1), "rows are heads of the columns"


def _tags(subject: _Subject) -> Drawn:
    shown = subject.known and subject.look.probabilities

    def tag(number: int, p: float, other: bool = False, first: bool = True) -> DrawnTag:
        return DrawnTag(number, subject.tag_name(number), p, other, shown and first)

    best: list[int] = []
    rows: list[TagRow] = []
    for alternative, weight in subject.choices:
        sequence = subject.structure(alternative)
        first = not rows
        best = best or [number for (_, number), _ in sequence]
        tags = [[tag(number, p, number != best[i], first)] for (i, number), p in sequence]
        rows.append(TagRow(tags, "" if weight is None else f"{weight:.2f}"))
    further: list[list[DrawnTag]] = [[] for _ in subject.words]
    if subject.look.threshold is not None:
        probable = subject.annotation._chosen(subject.span, subject.look.threshold, None)
        for (i, number), p in sorted(probable, key=lambda one: -one[1]):
            if number != best[i] and len(further[i]) < PARTS_PER_WORD:
                further[i].append(tag(number, p, True))
    if any(further):
        rows.append(TagRow(further, "else"))
    return [draw_tags(subject.words, rows, subject.look, subject.title)], ""


def _entities(subject: _Subject) -> Drawn:
    pictures = []
    for alternative, weight in subject.choices:
        # Of an alternative it is the whole sequence that has a probability.
        shown = alternative is None and subject.span.entity_probabilities is not None
        least = subject.look.threshold if alternative is None else None
        if least is not None:
            # Says so where no probabilities are stored.
            subject.parts(None)
        marks = [
            Highlight(
                entity.start - subject.span.start,
                entity.end - subject.span.start,
                entity.probability if shown else 1.0,
                entity.label,
                f"{entity.probability:.2f}" if shown and subject.look.probabilities else "",
            )
            for entity in subject.annotation.entities(alternative)
            if least is None or entity.probability >= least
        ]
        drawn = draw_highlights(
            subject.spaced_words, marks, subject.look, subject.title, weight=weight
        )
        pictures.append(drawn)
    return pictures, ""


def _rationale(subject: _Subject) -> Drawn:
    pictures = []
    for alternative, weight in subject.choices:
        marks = [
            Highlight(i, i + 1, p, "", subject.label(p), not chosen)
            for (i,), p, chosen in sorted(subject.parts(alternative))
        ]
        drawn = draw_highlights(
            subject.spaced_words, marks, subject.look, subject.title, weight=weight
        )
        pictures.append(drawn)
    return pictures, ""


# By its name: the kinds that a style can draw, and how.
STYLES: Mapping[str, tuple[tuple[str, ...], Callable[[_Subject], Drawn]]] = {
    "tree": (("heads", "arcs"), _tree),
    "alignment": (("cells",), _alignment),
    "heatmap": (("cells", "heads", "arcs", "tags"), _heat_map),
    "tags": (("tags",), _tags),
    "entities": (("tags",), _entities),
    "rationale": (("items",), _rationale),
    "brackets": (("spans", "segments"), _brackets),
}
