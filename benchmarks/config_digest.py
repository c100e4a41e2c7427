"""Digests of configs, by which raw results are assigned to configs.

This module needs spaCy. Raw results can be read without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacy.util import load_config

from spacy_latent.pipeline.unreached_stages import CALLBACK

# Settings that were added later, with their neutral values: of components by factory, of models,
# and of estimators.
ADDED: dict[str, dict[str, Any]] = {"crf_ner": {"evidence": None}}
ADDED_TO_MODELS = {"learn_transitions": True}
ADDED_TO_ESTIMATORS = {"forward": "map"}


def digest_of(config: Path, overrides: Mapping[str, Any] | None = None) -> str:
    """Return a digest of a config with overrides, which does not depend on the following things.

    - comments
    - settings that were added later, if they have their neutral values
    - the callback that refuses trainings that end before their last stage
    - a classifier that only differs from spaCy's in accepting empty texts
    """
    read = load_config(config, overrides=dict(overrides or {}), interpolate=False)
    if read.get("nlp", {}).get("after_pipeline_creation") == CALLBACK:
        # Without a callback, this setting is null and stands before the blocks of its section.
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
    """Give spaCy's name to classifiers that only differ from spaCy's in accepting empty texts.

    No training corpus has an empty text, so that all figures are equal. A test compares them.
    """
    if block.get("@architectures") == "spacy-latent.TextCatReduce.v1":
        block["@architectures"] = "spacy.TextCatReduce.v1"
    for inner in block.values():
        if isinstance(inner, dict):
            _as_stock(inner)
