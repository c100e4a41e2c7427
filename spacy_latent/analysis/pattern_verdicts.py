"""Verdicts on structures alone: simple patterns, dependence on the text's length, entropy."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spacy_latent.analysis.figures import LayerFigures
from spacy_latent.analysis.verdict import Verdict, percent
from spacy_latent.kinds import PARTS, complete_kind, find_kind

# Least share of parts in common with a pattern that needs no learning, to count as the same.
NEARLY = 0.9
# Least share of tokens whose head the text's length determines, for a warning.
BY_LENGTH = 0.95
# Least such share for a note.
LARGELY_BY_LENGTH = 0.8
# Least share of SparseMAP's mixtures with one structure, for a note.
NEARLY_ALL = 0.9
# Least share of the entropy of a uniform choice, for a warning.
UNDECIDED = 0.9


def of_shape(figures: LayerFigures) -> Iterator[Verdict]:
    """Yield verdicts on the trivial shapes of a kind, and on a tag of nearly all tokens."""
    kind = find_kind(figures.kind)
    yield from kind.said("judge", kind.judge(figures))
    shares = figures.tag_shares or {}
    if shares and max(shares.values()) >= NEARLY:
        tag = max(shares, key=lambda name: (shares[name], name))
        text = (
            f"Tag {tag} covers {percent(shares[tag])} of the tokens, so the tags carry no "
            "information."
        )
        yield Verdict("warning", "one-tag", text)


def _judge_heads(figures: LayerFigures) -> list[Verdict]:
    share = figures.flat_share
    if share is None or not share >= NEARLY:
        return []
    text = (
        f"Trees are nearly flat: {percent(share)} of the tokens are roots or have a root as head."
    )
    return [Verdict("warning", "flat", text)]


def _judge_items(figures: LayerFigures) -> list[Verdict]:
    rate = figures.mean("rate")
    if rate >= 0.98:
        return [Verdict("warning", "all-chosen", f"Nearly everything is chosen: {percent(rate)}.")]
    if rate <= 0.02:
        return [Verdict("warning", "none-chosen", f"Nearly nothing is chosen: {percent(rate)}.")]
    return []


def _judge_segments(figures: LayerFigures) -> list[Verdict]:
    length, tokens = figures.mean("segment length"), figures.mean("tokens")
    if length <= 1.02:
        return [Verdict("warning", "single-tokens", "Nearly every segment is a single token.")]
    if tokens >= 3 and length >= NEARLY * tokens:
        return [Verdict("warning", "one-segment", "Nearly every text is a single segment.")]
    return []


def _judge_cells(figures: LayerFigures) -> list[Verdict]:
    found, near = [], figures.mean("diagonal")
    if near >= NEARLY:
        text = (
            f"The alignment is nearly the diagonal: {percent(near)} of its cells are on the "
            "diagonal."
        )
        found.append(Verdict("warning", "diagonal", text))
    if figures.mean("coverage") <= 0.02:
        found.append(Verdict("warning", "none-aligned", "Nearly nothing is aligned."))
    return found


def _judge_arcs(figures: LayerFigures) -> list[Verdict]:
    if figures.mean("arcs per token") <= 0.02:
        return [Verdict("warning", "no-arcs", "The graphs have nearly no arcs.")]
    return []


CONTROLS_OF_HEADS = {
    "left-branching": "Every tree is nearly a left-branching chain: the head of {share} of the "
    "tokens is the next token.",
    "right-branching": "Every tree is nearly a right-branching chain: the head of {share} of the "
    "tokens is the token before.",
    "flat": "Trees are nearly flat: the head of {share} of the tokens is the first token.",
    "balanced": "Every tree is nearly the balanced tree, which does not depend on words: {share} "
    "of the heads are the same.",
    "nearest": "The trees are nearly those of the nearest-head control: the head of {share} of the "
    "tokens is the nearest word before that is a head in any text.",
}
CONTROLS_OF_BRACKETS = {
    "left-branching": "Every tree is (nearly) left-branching: {share} of its brackets "
    "begin with the text.",
    "right-branching": "Every tree is (nearly) right-branching: {share} of its brackets "
    "end with the text.",
    "balanced": "Every tree is nearly the balanced tree, which does not depend on words: {share} "
    "of its brackets are the same.",
}
complete_kind(PARTS, judge=lambda figures: [])
complete_kind("heads", judge=_judge_heads, control_words=CONTROLS_OF_HEADS)
complete_kind("items", judge=_judge_items)
complete_kind("segments", judge=_judge_segments)
# Phrases are like segments, but a text may be a single one.
complete_kind("phrases", judge=lambda figures: [])
complete_kind("cells", judge=_judge_cells)
complete_kind("arcs", judge=_judge_arcs)
complete_kind("spans", control_words=CONTROLS_OF_BRACKETS)


def of_controls(figures: LayerFigures) -> list[Verdict]:
    """Return a warning for each simple pattern that nearly all parts agree with."""
    found: list[Verdict] = []
    is_flat = (figures.flat_share or 0.0) >= NEARLY
    for name, share in figures.controls.items():
        words = find_kind(figures.kind).control_words.get(name)
        if words is None or not share >= NEARLY:
            continue
        # Another verdict says this already: the shape, or, if every word is a head, the chain.
        if (name == "flat" and is_flat) or (name == "nearest" and (found or is_flat)):
            continue
        found.append(Verdict("warning", f"like-{name}", words.format(share=percent(share))))
    return found


def of_length(figures: LayerFigures) -> Iterator[Verdict]:
    """Yield a verdict if the length of a text determines much of its structure."""
    share, tokens = figures.by_length
    if tokens < 100 or not share >= LARGELY_BY_LENGTH:
        return
    same = f"{percent(share)} of the tokens are treated as in most other texts of the same length."
    if share >= BY_LENGTH:
        text = f"The {figures.plural} do not depend on the words: {same}"
        yield Verdict("warning", "by-length", text)
    else:
        text = f"The {figures.plural} depend largely on the length of the text: {same}"
        yield Verdict("note", "largely-by-length", text)


def of_entropy(figures: LayerFigures) -> Iterator[Verdict]:
    """Yield a warning if the mean entropy is near the entropy of a uniform choice."""
    share = figures.mean("relative entropy")
    if share >= UNDECIDED:
        text = f"The scores hardly prefer any of the {figures.plural}: the entropy is "
        of_choice = f"{percent(share)} of the entropy of a uniform choice."
        yield Verdict("warning", "undecided-scores", text + of_choice)


def of_mixtures(figures: LayerFigures) -> list[Verdict]:
    """Return a note if nearly all mixtures of SparseMAP consist of one structure."""
    alone = figures.alone
    if alone is None or alone.share < NEARLY_ALL:
        return []
    text = (
        f"SparseMAP's mixture has only one structure in {percent(alone.share)} of the "
        f"{figures.plural}. Small changes of the scores keep its weight at 1, so the scorer gets "
        "no gradient from these.  "
    )
    if math.isfinite(alone.higher):
        text += (
            f"At temperature = {alone.higher:g}, in place of {alone.temperature:g}, half of them "
            "are mixtures of several structures. Train with this temperature, or with a "
            "schedule that ends at lower ones."
        )
    else:
        text += "No tested temperature changes this: the scores are very large."
    return [Verdict("note", "one-structure", text)]
