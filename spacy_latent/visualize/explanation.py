"""Explanations drawn as rationales: the text with the words that suffice for the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.look import Look, settings_of
from spacy_latent.visualize.page import heading, html_page
from spacy_latent.visualize.picture import Figure, Picture

if TYPE_CHECKING:
    from spacy_latent.pipeline.explanation import Explanation

TITLE = "Words that the predictions rest on"
NONE_KEPT = "the mask keeps none; enough are the first by leave-one-out"


def render_explanations(explanations: Sequence[Explanation]) -> str:
    """Return an HTML page with a figure for each explanation.

    A figure has the text twice. The first drawing marks the chosen words as strongly as the learned
    mask keeps them, and other words that the mask keeps more faintly. The second drawing marks the
    words that leave-one-out finds.
    """
    look = Look.from_options({})
    figures = [_figure(explanation, look) for explanation in explanations]
    if explanations:
        look = look.of(settings_of(explanations[0].doc))
    seen = (
        "Each text stands here twice. On the left are marked the few words that do for the "
        "prediction: hide all others, and it stays. On the right, words that matter alone: hide "
        "one, and the probability of the prediction falls by the number beside it."
    )
    return html_page(figures, look, heading(TITLE, seen), TITLE)


def _figure(found: Explanation, look: Look) -> Figure:
    from spacy_latent.pipeline.explanation import LEAST

    own = look.of(settings_of(found.doc))
    matters = found.falls >= LEAST
    if found.from_falls:
        # The weights are almost 0, so that their colours would be useless.
        mask = _picture(found, found.falls, found.chosen, found.chosen, own, NONE_KEPT)
    else:
        marked = found.chosen | (found.weights >= LEAST)
        mask = _picture(found, found.weights, found.chosen, marked, own, "learned mask")
    alone = _picture(found, found.falls, matters, matters, own, "leave-one-out")
    caption = f"{found.component} · {found.what} ({found.probability:.0%})"
    return Figure((mask, alone), caption, own)


def _picture(
    found: Explanation,
    numbers: np.ndarray,
    chosen: np.ndarray,
    marked: np.ndarray,
    look: Look,
    caption: str,
) -> Picture:
    marks = [
        Highlight(i, i + 1, float(numbers[i]), "", f"{numbers[i]:.2f}", not chosen[i])
        for i in np.flatnonzero(marked).tolist()
    ]
    words = [(token.text, token.whitespace_) for token in found.doc]
    title = f"{caption} of {found.component}: {found.what}"
    drawn = draw_highlights(words, marks, look, title)
    return replace(drawn, title=title, caption=caption)
