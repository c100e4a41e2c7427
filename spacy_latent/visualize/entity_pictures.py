"""Pictures of entities in a text, and of the differences between two sets of entities."""

from __future__ import annotations

from dataclasses import replace

from spacy_latent.annotations import Entity
from spacy_latent.visualize.highlights import Highlight, draw_highlights
from spacy_latent.visualize.picture import Drawn, Picture
from spacy_latent.visualize.structure_view import StructureView
from spacy_latent.visualize.terminal import BELOW, UNCALIBRATED, entity_text

# Number of words shown on each side of a difference between alternatives.
AROUND = 5


def draw_entities(view: StructureView) -> Drawn:
    """Mark the entities of each alternative; after the first, only the differences from it."""
    pictures = []
    for alternative, weight in view.choices:
        if alternative:
            pictures.append(_other_entities(view, alternative, weight))
            continue
        least = view.options.threshold if alternative is None else None
        if least is not None:
            # Raises an error if no probabilities are stored.
            view.parts(None)
        found = [
            entity
            for entity in view.annotation.entities(alternative)
            if least is None or (entity.probability or 0.0) >= least
        ]
        marks = _marks(view, found)
        drawn = draw_highlights(view.spaced_words, marks, view.options, view.title, weight=weight)
        pictures.append(replace(drawn, caption=_uncalibrated(view, weight)))
    return pictures, ""


def _uncalibrated(view: StructureView, weight: float | None) -> str:
    """Return the note on a weight that is not calibrated while the entities are."""
    uncalibrated = (
        weight is not None and view.span.entities_calibrated and view.options.probabilities
    )
    return UNCALIBRATED if uncalibrated else ""


def _other_entities(view: StructureView, alternative: int, weight: float | None) -> Picture:
    """Draw the differences from the first alternative, with a few words of context.

    Entities that only the first alternative has are faint, if they do not overlap with the others.
    The caption lists all of them.
    """
    gone, new = view.annotation.differences(alternative)
    taken = {i for entity in new for i in range(entity.start, entity.end)}
    apart = [e for e in gone if taken.isdisjoint(range(e.start, e.end))]
    marks = _marks(view, new) + _marks(view, apart, faint=True)
    marks.sort(key=lambda mark: mark.start)
    # Entities without a mark, which overlap with other marks, are included.
    places = [(e.start - view.span.start, e.end - view.span.start) for e in [*gone, *new]]
    words, begin = view.spaced_words, 0
    if places:
        begin = max(0, min(start for start, _ in places) - AROUND)
        end = min(len(words), max(end for _, end in places) + AROUND)
        before, after = begin > 0, end < len(words)
        words = [*([("…", " ")] * before), *words[begin:end], *([("…", "")] * after)]
        begin -= before
    moved = [replace(mark, start=mark.start - begin, end=mark.end - begin) for mark in marks]
    drawn = draw_highlights(words, moved, view.options, view.title, weight=weight)
    shown = view.options.probabilities
    notes = [
        f"{word} {', '.join(entity_text(view.doc, e, shown) for e in entities)}"
        for word, entities in (("without", gone), ("with", new))
        if entities
    ]
    if calibrated := _uncalibrated(view, weight):
        notes.insert(0, calibrated)
    return replace(drawn, caption="; ".join(notes))


def _marks(view: StructureView, entities: list[Entity], faint: bool = False) -> list[Highlight]:
    return [
        Highlight(
            entity.start - view.span.start,
            entity.end - view.span.start,
            1.0 if entity.probability is None else entity.probability,
            entity.label,
            _number(view, entity),
            faint,
            entity.below_min_confidence,
        )
        for entity in entities
    ]


def _number(view: StructureView, entity: Entity) -> str:
    shown = entity.probability is not None and view.options.probabilities
    number = f"{entity.probability:.2f}" if shown else ""
    return f"{number} {BELOW}".strip() if entity.below_min_confidence else number
