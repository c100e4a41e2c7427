"""The configs of docs/encoders.md train, with a small random transformer for the hub's."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from thinc.api import Config

from spacy_latent.errors import LatentWarning
from tests.pipeline.small_pipelines import (
    TRANSFORMER_WIDTH,
    copied_weights,
    examples,
    initialized,
    moved,
    save_small_transformer,
    scorer_weights,
    step,
    stock,
)

PAGE = Path(__file__).parents[2] / "docs" / "encoders.md"
BLOCKS = re.findall(
    r"^#+ ([^\n]*)\n|```ini\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S | re.M
)
AROUND = """
[components]
[components.latent_encoder]
[components.latent_encoder.model]
"""
HUB_NAME = 'name = "bert-base-cased"'


def configs() -> list[Any]:
    found, title = [], ""
    for heading, block in BLOCKS:
        title = heading or title
        if block:
            found.append(pytest.param(block, id=f"{title} {len(found)}"))
    return found


def pipeline(block: str, width: int) -> Language:
    config = Config().from_str(AROUND + block)["components"]
    nlp = spacy.blank("en")
    for i, word in enumerate(["I", "like", "hate", "London", "Paris"]):
        nlp.vocab.set_vector(word, np.eye(5, dtype="float32")[i])
    if "transformer" in config:
        nlp.add_pipe("transformer", config={"model": config["transformer"]["model"]})
    nlp.add_pipe("latent_encoder", config={"model": config["latent_encoder"]["model"]})
    listener = {"@architectures": "spacy-latent.LatentListener.v1", "width": width}
    nlp.add_pipe("tagger", config=stock("tagger", listener))
    return nlp


def embedder_of(nlp: Language) -> Any:
    """Return the model that embeds tokens for the latent layer."""
    if "transformer" in nlp.pipe_names:
        return nlp.get_pipe("transformer").model  # type: ignore[union-attr]
    return nlp.get_pipe("latent_encoder").model.get_ref("embedder")  # type: ignore[union-attr]


def test_there_is_a_config_of_each_kind() -> None:
    assert len(configs()) == 7


@pytest.mark.parametrize("block", configs())
def test_the_configs_of_the_page_train(block: str, tmp_path: Path) -> None:
    width = 96
    if "spacy-transformers" in block:
        save_small_transformer(tmp_path)
        assert block.count(HUB_NAME) == 1
        block, width = block.replace(HUB_NAME, f'name = "{tmp_path}"'), TRANSFORMER_WIDTH
    nlp = pipeline(block, width)
    sample = examples(nlp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LatentWarning)
        optimizer = initialized(nlp, sample=sample)
    step(nlp, sample, optimizer)
    before, below = scorer_weights(nlp, "latent_encoder"), copied_weights(embedder_of(nlp))
    step(nlp, sample, optimizer)
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))
    assert moved(below, embedder_of(nlp))
    assert len(nlp("I like London")._.latent["latent_encoder"].heads) == 3
