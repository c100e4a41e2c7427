"""Explanations drawn as rationales: the text with the words that suffice for the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spacy_latent.visualize.drawing_options import DrawingOptions, settings_of
from spacy_latent.visualize.elements import Markup, join, tag
from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.page import heading, html_page
from spacy_latent.visualize.picture import Figure, Picture

if TYPE_CHECKING:
    from spacy_latent.evaluation.explanation import Explanation

TITLE = "Words that explain the predictions"
NONE_KEPT = "enough together: the mask keeps none, so words were added by leave-one-out"
SHOWN_WORDS = 12
ENOUGH, ALONE, NOT_NEEDED = (
    "enough together",
    "leave-one-out: words that change the prediction alone",
    "no word is needed",
)


def render_explanations(explanations: Sequence[Explanation]) -> str:
    """Return an HTML page with a figure for each explanation.

    A figure has the text twice. The first drawing marks the chosen words, more strongly the more
    probably the learned mask keeps them, and faintly other words that the mask keeps. The second
    drawing marks the words that leave-one-out finds.
    """
    options = DrawingOptions()
    figures = [_figure(explanation, options) for explanation in explanations]
    if explanations:
        options = options.of(settings_of(explanations[0].doc))
    seen = (
        f"Each text is shown twice. Under “{ENOUGH}”, the marked words are enough for the "
        "prediction: it does not change if all other words are hidden. The number is the share "
        "of draws in which the learned mask keeps the word; a word without a number was added "
        f"in the order of the drawing below. Under “{ALONE}”, the number of a word is the fall "
        "of the probability if this word alone is hidden."
    )
    if any(explanation.from_falls for explanation in explanations):
        seen += f" Numbers under “{NONE_KEPT}” are such falls, too."
    advice = join(*[_advice(explanation) for explanation in explanations])
    return html_page(figures, options, heading(TITLE, seen), TITLE, advice)


def _advice(found: Explanation) -> Markup | None:
    """Return a paragraph on what to try if no word is needed, else None."""
    if found.advice is None:
        return None
    return tag("p", f"{found.component}, “{_beginning(found)}”: {found.advice}", class_="sl-seen")


def _beginning(found: Explanation) -> str:
    words = found.doc.text.split()
    return " ".join(words[:SHOWN_WORDS]) + (" …" if len(words) > SHOWN_WORDS else "")


def _figure(found: Explanation, options: DrawingOptions) -> Figure:
    from spacy_latent.evaluation.explanation import LEAST

    own = options.of(settings_of(found.doc))
    matters = found.falls >= LEAST
    if found.from_falls:
        # The weights are almost 0, so that their colours would be useless.
        mask = _picture(found, found.falls, found.chosen, found.chosen, own, NONE_KEPT)
    else:
        marked = found.chosen | (found.weights >= LEAST)
        caption = ENOUGH if found.chosen.any() else NOT_NEEDED
        mask = _picture(found, found.weights, found.chosen, marked, own, caption)
    alone = _picture(found, found.falls, matters, matters, own, ALONE)
    caption = f"{found.component} · {found.what} ({100 * found.probability:.0f}\u202f%)"
    return Figure((mask, alone), caption, own)


def _shown(number: float) -> str:
    """Return the number with two digits, and nothing for 0.00."""
    return f"{number:.2f}" if round(float(number), 2) else ""


def _picture(
    found: Explanation,
    numbers: np.ndarray,
    chosen: np.ndarray,
    marked: np.ndarray,
    options: DrawingOptions,
    caption: str,
) -> Picture:
    marks = [
        Highlight(i, i + 1, float(numbers[i]), "", _shown(numbers[i]), not chosen[i])
        for i in np.flatnonzero(marked).tolist()
    ]
    words = [(token.text, token.whitespace_) for token in found.doc]
    title = f"{caption} of {found.component}: {found.what}"
    drawn = draw_highlights(words, marks, options, title)
    signs = frozenset("kept mark" if mark.faint else "explaining mark" for mark in marks)
    return replace(drawn, title=title, caption=caption, signs=signs)
