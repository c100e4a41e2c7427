"""The part of a pipeline's config that says how it is trained."""

from __future__ import annotations

from typing import Any

from spacy.language import Language


def training_settings(nlp: Language) -> dict[str, Any]:
    """The config's [training], with what its variables stand for."""
    return dict(nlp.config.interpolate().get("training") or {})


def last_step(training: dict[str, Any]) -> int:
    """After how many updates training ends by these settings; 0 for no such end, and where it is no
    number, which is for spaCy to say: it checks the block when training begins."""
    max_steps = training.get("max_steps")
    return max_steps if isinstance(max_steps, int) else 0
