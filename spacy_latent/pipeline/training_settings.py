"""Settings of training in a pipeline's config."""

from __future__ import annotations

from typing import Any

from spacy.language import Language


def training_settings(nlp: Language) -> dict[str, Any]:
    """Return the config's [training], with its variables interpolated."""
    return dict(nlp.config.interpolate().get("training") or {})


def training_reader(nlp: Language) -> dict[str, Any]:
    """Return the block of the reader of the training corpus, empty if there is none."""
    reader: Any = nlp.config.interpolate()
    for part in str(training_settings(nlp).get("train_corpus")).split("."):
        reader = reader.get(part) if isinstance(reader, dict) else None
    return dict(reader) if isinstance(reader, dict) else {}


def last_step(training: dict[str, Any]) -> int:
    """Return the number of updates after which training ends, 0 if there is no such end.

    Return 0 for a value that is not a number: spaCy refuses it when training begins.
    """
    max_steps = training.get("max_steps")
    return max_steps if isinstance(max_steps, int) else 0
