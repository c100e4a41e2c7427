"""Training of the configs over a transformer, with a small one that has random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.util import load_config, resolve_dot_names
from thinc.api import Adam, Config

from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.evaluation.mistakes import find_traps
from tests.pipeline.small_pipelines import (
    TRANSFORMER_WIDTH,
    examples,
    save_small_transformer,
    step,
)
from tests.repository.recipes import RECIPES, recipe

CONFIGS = [path for path in RECIPES if "_transformer" in path.stem]
TREE_LSTMS = [recipe(f"sentiment_{trees}_tree_lstm_encoder") for trees in ("sparsemap", "given")]
SENTENCES = [("I like London", "I hate London"), ("I hate Paris", "I hate Paris a lot")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a transformer, docs with all kinds of annotation, and pairs of texts."""
    path = tmp_path_factory.mktemp("files")
    (path / "encoder").mkdir()
    save_small_transformer(path / "encoder")
    docs = [example.reference for example in examples(spacy.blank("en"))]
    DocBin(docs=docs).to_disk(path / "docs.spacy")
    with open(path / "pairs.jsonl", "w", encoding="utf8") as lines:
        for label, (first, second) in zip(("contradiction", "entailment"), SENTENCES):
            lines.write(json.dumps({"text_a": first, "text_b": second, "label": label}) + "\n")
    return path


def small(path: Path, files: Path) -> Config:
    config = load_config(path)
    pairs = "pairs" in path.stem
    data = files / ("pairs.jsonl" if pairs else "docs.spacy")
    overrides: dict[str, Any] = {
        "paths.encoder": str(files / "encoder"),
        "paths.train": str(data),
        "paths.dev": str(data),
    }
    for name, component in config["components"].items():
        listener = component["model"].get("tok2vec", {})
        if "upstream" in listener:
            overrides[f"components.{name}.model.tok2vec.width"] = TRANSFORMER_WIDTH
        if "min_action_freq" in component:
            overrides[f"components.{name}.min_action_freq"] = 1
    return load_config(path, overrides=overrides)


def encoder_weights(nlp: Language) -> list[np.ndarray]:
    return [
        weights.detach().numpy().copy()
        for _, pipe in nlp.pipeline
        for node in pipe.model.walk()  # type: ignore[attr-defined]
        for shim in node.shims
        if hasattr(shim._model, "encoder")
        for weights in shim._model.parameters()
    ]


def baseline_of(path: Path) -> Path:
    """Return the path of the config for the same task without a structure."""
    task, _, _ = path.stem.partition("_transformer")
    return recipe(f"{task}_transformer_baseline")


def test_there_is_a_baseline_of_each() -> None:
    tasks = {path.stem.partition("_transformer")[0] for path in CONFIGS}
    assert tasks == {"sentiment", "ner", "pairs", "tree", "parser_ewt"}
    assert {baseline_of(path) for path in CONFIGS} <= set(CONFIGS)
    ends = {path.stem.partition("_transformer")[2] for path in CONFIGS}
    assert ends == {"", "_baseline", "_crf"}


@pytest.mark.parametrize("path", [*CONFIGS, *TREE_LSTMS], ids=lambda path: path.stem)
def test_the_config_trains_the_encoder(path: Path, files: Path) -> None:
    nlp = init_nlp(small(path, files))
    assert not [one.text for one in find_traps(nlp) if one.level != "note"]
    (reader,) = resolve_dot_names(nlp.config.interpolate(), ["corpora.train"])
    before, optimizer = encoder_weights(nlp), Adam(0.001)
    # The first gradient is zero below layers that start at zero.
    for _ in range(2):
        step(nlp, list(reader(nlp)), optimizer)
    after = encoder_weights(nlp)
    assert any(not np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    doc = nlp(make_pair_doc(nlp, *SENTENCES[0]) if "pairs" in path.stem else "I like London")
    assert ("baseline" in path.stem and "pairs" not in path.stem) != bool(doc._.latent)


def test_both_of_a_task_differ_in_the_structure_alone() -> None:
    for path in CONFIGS:
        with_it, without = load_config(path), load_config(baseline_of(path))
        for section in ("paths", "system", "corpora"):
            assert with_it[section] == without[section], path
        for setting in set(with_it["training"]) - {"score_weights"}:
            assert with_it["training"][setting] == without["training"][setting], setting
