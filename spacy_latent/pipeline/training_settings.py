"""The part of a pipeline's config that says how it is trained."""

from __future__ import annotations

from typing import Any

from spacy.language import Language


def training_settings(nlp: Language) -> dict[str, Any]:
    """The config's [training], with what its variables stand for."""
    return dict(nlp.config.interpolate().get("training") or {})
