"""Explanations drawn as rationales are: the text with the words that do for what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from spacy import displacy

from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.look import Look
from spacy_latent.visualize.page import heading, html_page
from spacy_latent.visualize.picture import Figure, Picture

if TYPE_CHECKING:
    from spacy_latent.pipeline.explanation import Explanation

# Words that change less are not marked.
SHOWN = 0.05
TITLE = "Words that the predictions rest on"


def render_explanations(explanations: Sequence[Explanation]) -> str:
    """An HTML page with a figure for each: the chosen words, marked as strongly as the learned mask
    keeps them, other words that it may keep fainter; and the words that leave-one-out marks."""
    look = Look.from_options({})
    figures = [_figure(explanation, look) for explanation in explanations]
    if explanations:
        look = look.of(displacy.get_doc_settings(explanations[0].doc))
    seen = (
        "Each text stands here twice. On the left are marked the few words that do for the "
        "prediction: hide all others, and it stays. On the right, words that matter alone: hide "
        "one, and the probability of the prediction falls by the number beside it."
    )
    return html_page(figures, look, heading(TITLE, seen), TITLE)


def _figure(found: Explanation, look: Look) -> Figure:
    own = look.of(displacy.get_doc_settings(found.doc))
    pictures = (
        _picture(found, found.weights, found.chosen, own, "learned mask"),
        _picture(found, found.falls, found.falls >= SHOWN, own, "leave-one-out"),
    )
    return Figure(pictures, f"{found.component} · {found.what} ({found.probability:.0%})", own)


def _picture(
    found: Explanation, weights: np.ndarray, chosen: np.ndarray, look: Look, caption: str
) -> Picture:
    marks = [
        Highlight(i, i + 1, float(weight), "", f"{weight:.2f}", not chosen[i])
        for i, weight in enumerate(weights)
        if chosen[i] or weight >= SHOWN
    ]
    words = [(token.text, token.whitespace_) for token in found.doc]
    title = f"{caption} of {found.component}: {found.what}"
    drawn = draw_highlights(words, marks, look, title)
    return replace(drawn, title=title, caption=caption)
