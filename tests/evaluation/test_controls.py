"""Configs of control models, and comparisons of two pipelines' settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from thinc.api import Config

from spacy_latent.errors import LatentError
from spacy_latent.evaluation.controls import (
    control_config,
    differences,
    kind_of_trees,
    of_training,
    unintended_differences,
)
from tests.pipeline.small_pipelines import INLINE, TOK2VEC, initialized, latent_pipeline, stock
from tests.repository.recipes import recipe

GIVEN = {"@misc": "spacy-latent.GivenTrees.v1", "trees": "flat", "seed": 0, "words": None}
ENCODER = "components.latent_encoder.model.estimator"


def read(name: str) -> Config:
    return Config().from_disk(recipe(name), interpolate=False)


def differing(ours: dict[str, Any], theirs: dict[str, Any], place: str = "") -> set[str]:
    """Return the dotted names of the blocks and settings in which two configs differ."""
    found = set()
    for key in ours.keys() | theirs.keys():
        name, a, b = f"{place}{key}", ours.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            found |= differing(a, b, f"{name}.")
        elif isinstance(a, dict) and isinstance(b, dict) and "@misc" not in a:
            found |= differing(a, b, f"{name}.")
        elif a != b:
            found.add(name)
    return found


@pytest.mark.parametrize(
    "name, changed",
    [
        ("demo_attention", {ENCODER}),
        ("demo_attention_score_function", {"components.latent_textcat.model.estimator"}),
        (
            "listops_spinn",
            {
                ENCODER,
                "components.latent_encoder.supervision",
                "components.latent_encoder.teacher_forcing",
            },
        ),
    ],
)
def test_only_the_trees_are_otherwise(name: str, changed: set[str]) -> None:
    config = read(name)
    before = config.to_str()
    trees = "flat" if name.startswith("demo") else "balanced"
    made, changes = control_config(config, trees)
    assert differing(config, made) == changed == {change.name for change in changes}
    assert config.to_str() == before, "the config that was given is as it was"
    assert "GivenTrees.v1 (trees = " in str(changes[0])
    spacy.util.load_model_from_config(made, auto_fill=True)


def test_inline_layers_defaults_and_settings_that_need_scores() -> None:
    config = Config(
        {
            "nlp": {"lang": "en", "pipeline": ["latent_encoder", "tagger", "textcat"]},
            "components": {
                "latent_encoder": {
                    "factory": "latent_encoder",
                    "supervision": 0.5,
                    "teacher_forcing": True,
                },
                "tagger": {
                    "factory": "tagger",
                    **stock("tagger", {**INLINE, "entropy_weight": 0.1}),
                },
                "textcat": {"factory": "textcat"},
                "parser": {"source": "some_model"},
            },
        }
    )
    made, changes = control_config(config, "flat")
    assert [change.name for change in changes] == [
        ENCODER,
        "components.latent_encoder.supervision",
        "components.latent_encoder.teacher_forcing",
        "components.tagger.model.tok2vec.estimator",
        "components.tagger.model.tok2vec.entropy_weight",
    ]
    assert changes[0].before["@misc"] == "spacy-latent.Marginals.v1"
    assert str(changes[1]) == "components.latent_encoder.supervision: 0.5 → 0.0"
    assert "parser" in made["components"] and made["components"]["textcat"] == {
        "factory": "textcat"
    }
    # The control adds no settings that the config leaves to the factory.
    assert made["components"]["latent_encoder"]["model"] == {"estimator": GIVEN}
    only, changes = control_config(config, "flat", components=["tagger"])
    assert all(change.name.startswith("components.tagger.") for change in changes)
    assert only["components"]["latent_encoder"] == config["components"]["latent_encoder"]
    del made["components"]["parser"]
    nlp = spacy.util.load_model_from_config(made, auto_fill=True)
    assert kind_of_trees(nlp) == "flat trees"


def test_what_has_no_control() -> None:
    with pytest.raises(LatentError, match="estimator"):
        control_config(read("ner_baseline"))
    with pytest.raises(LatentError, match="BinaryTreeLstm"):
        control_config(read("listops_gumbel_tree_lstm"))
    with pytest.raises(LatentError, match=r"'tree'.*latent_encoder, textcat"):
        control_config(read("demo_attention"), components=["tree"])
    with pytest.raises(LatentError, match="'up'"):
        control_config(read("demo_attention"), "up")
    # Loading the control refuses a structure that is no tree, with the reason.
    made, _ = control_config(read("rationale_k_of_n"))
    with pytest.raises(LatentError, match=r"GivenTrees.*KOfN"):
        spacy.util.load_model_from_config(made, auto_fill=True)


def with_estimator(estimator: dict[str, Any], **more: Any) -> Language:
    model = {"tok2vec": TOK2VEC, "estimator": estimator, **more}
    nlp = latent_pipeline("textcat", encoder={"model": model})
    initialized(nlp)
    return nlp


def test_in_what_pipelines_differ() -> None:
    marginals = {"@misc": "spacy-latent.Marginals.v1"}
    ours, control = with_estimator(marginals), with_estimator(GIVEN, entropy_weight=0.0)
    assert differences(ours, ours) == []
    ours.config["training"]["seed"], ours.config["training"]["max_epochs"] = 7, 3
    found = differences(ours, control)
    assert {change.name for change in of_training(found)} == {"training.max_epochs"}
    assert unintended_differences(found) == of_training(found)
    assert any(change.name == f"{ENCODER}.@misc" for change in found)
    assert kind_of_trees(control) == "flat trees" and kind_of_trees(ours) is None
    sharper = with_estimator(marginals, temperature=0.5)
    (change,) = unintended_differences(differences(sharper, control))
    assert str(change) == "components.latent_encoder.model.temperature: 0.5 → 1.0"


def test_the_same_file_is_the_same_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours, theirs = spacy.blank("en"), spacy.blank("en")
    ours.config["corpora"]["train"]["path"] = "corpus/train.spacy"
    theirs.config["corpora"]["train"]["path"] = str(tmp_path / "corpus" / "train.spacy")
    assert differences(ours, theirs) == []
    theirs.config["corpora"]["train"]["path"] = "other/train.spacy"
    assert [change.name for change in differences(ours, theirs)] == ["corpora.train.path"]
