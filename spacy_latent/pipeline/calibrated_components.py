"""Components of a pipeline whose probabilities can be calibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spacy.language import Language


def parse_components(nlp: Language) -> list[str]:
    """Return the names of the components whose probabilities of arcs can be calibrated."""
    return [name for name, pipe in nlp.pipeline if hasattr(pipe, "all_labels")]


def span_components(nlp: Language) -> list[str]:
    """Return the names of the components whose probabilities of spans can be calibrated."""
    return [name for name, pipe in nlp.pipeline if hasattr(pipe, "numbered_sets")]


def entity_components(nlp: Language) -> list[str]:
    """Return the names of the components whose probabilities of entities can be calibrated."""
    return [name for name, pipe in nlp.pipeline if hasattr(pipe, "scored")]


def uncalibrated_components(nlp: Language) -> list[str]:
    """Return the names of the components that can be calibrated and have no calibration."""
    found = {*parse_components(nlp), *span_components(nlp), *entity_components(nlp)}
    named = [(name, nlp.get_pipe(name)) for name in nlp.pipe_names if name in found]
    return [name for name, pipe in named if getattr(pipe, "calibration", None) is None]
