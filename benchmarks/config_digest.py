"""Digests of configs, which raw results name. This module needs spaCy; reading raw results does
not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacy.util import load_config

from spacy_latent.pipeline.unreached_stages import CALLBACK

# Settings that were added later, with their neutral values: of components, by factory, of their
# models, and of the estimators of these.
ADDED: dict[str, dict[str, Any]] = {"crf_ner": {"evidence": None}}
ADDED_TO_MODELS = {"learn_transitions": True}
ADDED_TO_ESTIMATORS = {"forward": "map"}


def digest_of(config: Path, overrides: Mapping[str, Any] | None = None) -> str:
    """Return a digest of a config with these settings. Comments do not change it, nor do settings
    that were added later with their neutral values. The callback that refuses trainings that end
    too early, and the classifiers that accept empty texts, do not change it either.
    """
    read = load_config(config, overrides=dict(overrides or {}), interpolate=False)
    if read.get("nlp", {}).get("after_pipeline_creation") == CALLBACK:
        # Configs without the callback have it among the settings that are no blocks.
        del read["nlp"]["after_pipeline_creation"]
        read["nlp"]["after_pipeline_creation"] = None
    for component in read.get("components", {}).values():
        model = component.get("model", {})
        blocks = (
            (component, ADDED.get(component.get("factory", ""), {})),
            (model, ADDED_TO_MODELS),
            (model.get("estimator", {}), ADDED_TO_ESTIMATORS),
        )
        for block, added in blocks:
            for setting, without in added.items():
                if setting in block and block[setting] == without:
                    del block[setting]
        _as_stock(model)
    return hashlib.sha256(read.to_str(interpolate=False).encode("utf8")).hexdigest()[:16]


def _as_stock(block: dict[str, Any]) -> None:
    """Give classifiers that differ from spaCy's in empty texts alone the name of spaCy's. No
    training corpus has an empty text, so figures are the same to the last digit; a test
    compares.
    """
    if block.get("@architectures") == "spacy-latent.TextCatReduce.v1":
        block["@architectures"] = "spacy.TextCatReduce.v1"
    for inner in block.values():
        if isinstance(inner, dict):
            _as_stock(inner)
