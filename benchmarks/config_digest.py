"""Which config a raw result is of. Raw results themselves are read where spaCy must not be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacy.util import load_config

from spacy_latent.pipeline.unreached_stages import CALLBACK

# Settings of components, and of their models, that came later, with what says nothing there.
ADDED = {"evidence": None}
ADDED_TO_MODELS = {"learn_transitions": True}


def digest_of(config: Path, overrides: Mapping[str, Any] | None = None) -> str:
    """Of what a config says with these settings, whatever its comments are, whether or not it has
    settings that came later, and whether or not it refuses to be loaded where training would end
    early, and to read texts without tokens."""
    read = load_config(config, overrides=dict(overrides or {}), interpolate=False)
    if read.get("nlp", {}).get("after_pipeline_creation") == CALLBACK:
        # To its place among what are no blocks, where it stands in these configs without it.
        del read["nlp"]["after_pipeline_creation"]
        read["nlp"]["after_pipeline_creation"] = None
    for component in read.get("components", {}).values():
        model = component.get("model", {})
        for block, added in ((component, ADDED), (model, ADDED_TO_MODELS)):
            for setting, without in added.items():
                if setting in block and block[setting] is without:
                    del block[setting]
        _as_stock(model)
    return hashlib.sha256(read.to_str(interpolate=False).encode("utf8")).hexdigest()[:16]


def _as_stock(block: dict[str, Any]) -> None:
    """Call by spaCy's name the classifiers that differ from its own in empty texts alone. No corpus
    that is trained on has one, so that figures are the same to the last digit; a test compares."""
    if block.get("@architectures") == "spacy-latent.TextCatReduce.v1":
        block["@architectures"] = "spacy.TextCatReduce.v1"
    for inner in block.values():
        if isinstance(inner, dict):
            _as_stock(inner)
