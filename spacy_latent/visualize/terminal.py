"""Latent trees as text."""

from __future__ import annotations

import sys
from collections import defaultdict

from spacy.tokens import Doc

from spacy_latent.annotations import Arc, LatentAnnotation, SpanStructure

UNICODE = ("├─ ", "└─ ", "│  ", "   ")
ASCII = ("|- ", "`- ", "|  ", "   ")


def format_annotation(annotation: LatentAnnotation, threshold: float | None = None) -> str:
    """One line per token: its index, its place in the tree, and the probability of its arc.

    threshold: list below each tree the arcs outside of it that are at least this probable.
    """
    encoding = sys.stdout.encoding or "ascii"
    branches = UNICODE if encoding.lower().replace("-", "").startswith("utf") else ASCII
    blocks = []
    for span in annotation.spans:
        trees: list[tuple[int | None, float]] = [(None, 1.0)] if not span.alternatives else []
        trees += [(i, weight) for i, (_, weight) in enumerate(span.alternatives)]
        for alternative, weight in trees:
            lines = _tree(annotation, span, alternative, branches)
            if alternative is not None:
                lines.insert(0, f"weight {weight:.2f}")
            blocks.append("\n".join(lines))
        if threshold is not None:
            blocks.append("\n".join(_other_arcs(annotation, span, threshold)))
    return "\n\n".join(block for block in blocks if block)


def _tree(
    annotation: LatentAnnotation,
    span: SpanStructure,
    alternative: int | None,
    branches: tuple[str, str, str, str],
) -> list[str]:
    fork, last, pass_by, nothing = branches
    alone = LatentAnnotation(annotation.doc, annotation.component, [span])
    arcs = alone.arcs(alternative=alternative)
    modifiers: dict[int | None, list[Arc]] = defaultdict(list)
    for arc in arcs:
        modifiers[arc.head].append(arc)
    known = span.probabilities is not None
    width = len(str(span.end - 1))
    lines = []
    # A stack, not recursion: a tree may be as deep as its sentence is long.
    todo = [(arc, "", "") for arc in reversed(modifiers[None])]
    while todo:
        arc, before, below = todo.pop()
        probability = f"  {arc.probability:.2f}" if known else ""
        word = _printable(annotation.doc, arc.modifier)
        lines.append(f"{arc.modifier:>{width}}  {before}{word}{probability}")
        children = modifiers[arc.modifier]
        for i, child in reversed(list(enumerate(children))):
            final = i == len(children) - 1
            todo.append(
                (child, below + (last if final else fork), below + (nothing if final else pass_by))
            )
    return lines


def _other_arcs(annotation: LatentAnnotation, span: SpanStructure, threshold: float) -> list[str]:
    alone = LatentAnnotation(annotation.doc, annotation.component, [span])
    drawn = {(arc.head, arc.modifier) for arc in alone.arcs()}
    others = [arc for arc in alone.arcs(threshold) if (arc.head, arc.modifier) not in drawn]
    others.sort(key=lambda arc: -arc.probability)
    return [
        f"{_printable(annotation.doc, arc.modifier)} <- "
        f"{'root' if arc.head is None else _printable(annotation.doc, arc.head)}"
        f"  {arc.probability:.2f}"
        for arc in others
    ]


def _printable(doc: Doc, i: int) -> str:
    """A token on one line, without the control characters that would steer a terminal."""
    text = doc[i].text
    return text if text.isprintable() and text.strip() else repr(text)
