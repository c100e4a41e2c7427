"""Supervised and latent trees below other components, frozen, shared or trained by SPIGOT."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam

from spacy_latent.models.inspection import latent_models
from spacy_latent.models.latent_tok2vec import latent_layer
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    examples,
    initialized,
    scorer_weights,
    step,
    stock,
)

SPIGOT = {"@misc": "spacy-latent.Spigot.v1"}
TREE = {
    "@architectures": "spacy-latent.LatentTok2Vec.v1",
    "tok2vec": TOK2VEC,
    "structure": {"@misc": "spacy-latent.SpanningTree.v1", "single_root": True},
    "estimator": SPIGOT,
}


def found_heads(nlp: Language, sample: list[Example]) -> list[list[int]]:
    docs = nlp.pipe([example.reference.text for example in sample])
    return [doc._.latent["latent_encoder"].heads.tolist() for doc in docs]


def gold_heads(sample: list[Example]) -> list[list[int]]:
    return [[token.head.i for token in example.reference] for example in sample]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a pipeline with only an encoder, which is trained on heads."""
    path: Path = tmp_path_factory.mktemp("pretrained")
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": TREE, "supervision": 1.0})
    sample = examples(nlp)
    initialized(nlp, sample=sample)
    optimizer = Adam(0.01)
    for _ in range(60):
        step(nlp, sample, optimizer)
    assert found_heads(nlp, sample) == gold_heads(sample)
    nlp.to_disk(path)
    return path


def over(pretrained: Path, name: str) -> Language:
    """Return a pipeline of one of spaCy's components over the frozen, pretrained encoder."""
    config = copy.deepcopy(spacy.blank("en").config)
    config["nlp"]["pipeline"] = ["latent_encoder", name]
    config["components"] = {
        "latent_encoder": {"source": str(pretrained)},
        name: {"factory": name, **stock(name, LISTENER)},
    }
    config["training"]["frozen_components"] = ["latent_encoder"]
    config["training"]["annotating_components"] = ["latent_encoder"]
    return spacy.util.load_model_from_config(config, auto_fill=True)


def test_fixed_the_tree_stays_as_it_was_learned(pretrained: Path) -> None:
    nlp = over(pretrained, "textcat")
    sample = examples(nlp)
    with nlp.select_pipes(disable=["latent_encoder"]):
        nlp.initialize(lambda: sample)
    before = scorer_weights(nlp, "latent_encoder")
    frozen: dict[str, Any] = {"exclude": ["latent_encoder"], "annotates": ["latent_encoder"]}
    first = step(nlp, sample, Adam(0.01), **frozen)
    optimizer = Adam(0.01)
    for _ in range(20):
        last = step(nlp, sample, optimizer, **frozen)
    assert last["textcat"] < 0.5 * first["textcat"]
    assert np.array_equal(before, scorer_weights(nlp, "latent_encoder"))
    assert found_heads(nlp, sample) == gold_heads(sample)


def test_not_fixed_the_tree_goes_on_learning_from_the_task_alone(pretrained: Path) -> None:
    nlp = over(pretrained, "textcat")
    sample = examples(nlp)
    with nlp.select_pipes(disable=["latent_encoder"]):
        nlp.initialize(lambda: sample)
    encoder: Any = nlp.get_pipe("latent_encoder")
    encoder.cfg["supervision"] = 0.0
    before, optimizer = scorer_weights(nlp, "latent_encoder"), Adam(0.01)
    for _ in range(2):
        losses = step(nlp, sample, optimizer)
    assert "latent_encoder_supervision" not in losses
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))


@pytest.mark.parametrize("supervision", [0.0, 1.0], ids=["latent", "supervised"])
def test_under_spacys_parser(supervision: float) -> None:
    """The gradient of spaCy's parser reaches the scores of the latent tree through SPIGOT."""
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": TREE, "supervision": supervision})
    nlp.add_pipe("parser", config=stock("parser", LISTENER))
    sample = examples(nlp)
    initialized(nlp, sample=sample)
    optimizer, first = Adam(0.01), {}
    for _ in range(2):
        before = scorer_weights(nlp, "latent_encoder")
        losses = step(nlp, sample, optimizer)
        first = first or losses
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))
    for _ in range(40):
        losses = step(nlp, sample, optimizer)
    assert losses["parser"] < 0.3 * first["parser"]
    if supervision:
        assert losses["latent_encoder_supervision"] < 0.3 * first["latent_encoder_supervision"]
        assert found_heads(nlp, sample) == gold_heads(sample)


def test_under_a_graph() -> None:
    """A tagger's loss trains a latent graph and the latent tree below it, both by SPIGOT."""
    graph = {
        "@architectures": "spacy-latent.LatentTok2Vec.v1",
        "tok2vec": TREE,
        "structure": {"@misc": "spacy-latent.Bits.v1", "parts": "arcs"},
        "estimator": SPIGOT,
    }
    nlp = spacy.blank("en")
    nlp.add_pipe("tagger", config=stock("tagger", graph))
    sample = examples(nlp)
    initialized(nlp, sample=sample)
    nodes = latent_models(nlp.get_pipe("tagger").model)  # type: ignore[union-attr]
    assert sorted(latent_layer(node).structure.name for node in nodes) == ["Bits", "SpanningTree"]

    def weights() -> list[np.ndarray]:
        return [
            np.concatenate([p.detach().numpy().ravel() for p in layer.scorer.parameters()])
            for layer in map(latent_layer, nodes)
        ]

    optimizer = Adam(0.01)
    first = step(nlp, sample, optimizer)
    before = weights()
    step(nlp, sample, optimizer)
    assert all(not np.array_equal(a, b) for a, b in zip(before, weights()))
    for _ in range(12):
        last = step(nlp, sample, optimizer)
    assert last["tagger"] < first["tagger"]
