"""Rationales: chosen words as highlights in the text, with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spacy_latent.visualize.look import Look
from spacy_latent.visualize.markup import element, text, visible
from spacy_latent.visualize.palette import ORANGE, SKY_BLUE, opacity, tinted
from spacy_latent.visualize.picture import Picture

RULES = """
.sl-text{line-height:2;overflow-wrap:anywhere;margin:.2rem 0;max-width:60rem}
.sl-text mark{color:inherit;padding:.1em .25em;border-radius:.25em;border-bottom:2px solid}
.sl-text mark.sl-faint{border-bottom-style:dashed}
.sl-text mark small{font-size:.7em;opacity:.8;margin-inline-start:.35em}
"""


def draw_items(
    words: Sequence[tuple[str, str]],
    chosen: Mapping[int, float],
    look: Look,
    title: str,
    known: bool,
    others: Mapping[int, float] | None = None,
    caption: str = "",
    weight: float | None = None,
) -> Picture:
    """The text with highlights, as strong as the words are probable.

    words: each with the white space after it. chosen: probability by position. others: that were
    not chosen, underlined with dashes.
    """
    others = others or {}
    pieces = []
    for i, (word, space) in enumerate(words):
        shown = element("bdi", {}, text(word))
        if i in chosen or i in others:
            faint = i not in chosen
            probability = others[i] if faint else chosen[i]
            if known and look.probabilities:
                shown += element("small", {}, f"{probability:.2f}")
            color = look.color or (SKY_BLUE if faint else ORANGE)
            strength = 0.05 + (0.2 if faint else 0.5) * opacity(probability)
            style = f"background:{tinted(color, strength)};border-color:{color}"
            attributes = {"class": "sl-faint" if faint else None, "style": style}
            shown = element("mark", attributes, shown)
        pieces.append(shown + (" " if space else "<wbr>"))
    listed = ", ".join(
        f"{visible(words[i][0])} ({p:.2f})" if known else visible(words[i][0])
        for i, p in chosen.items()
    )
    markup = element("p", {"class": "sl-text", "dir": look.direction}, *pieces)
    description = f"{len(chosen)} of {len(words)} words chosen: {listed}."
    return Picture(markup, title, description, None, caption, weight)
