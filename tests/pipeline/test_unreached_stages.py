"""Trainings that end before their last stage: errors at the start, and warnings at loading."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.util import load_config, load_model_from_config
from thinc.api import Config

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.pipeline.unreached_stages import CALLBACK, refuse_in_pipeline
from tests.pipeline.small_pipelines import (
    INLINE,
    TOK2VEC,
    examples,
    initialized,
    inline_pipeline,
    step,
)

TREE = "spacy-latent.ProjectiveTree.v1"
RELEASED = {
    "@misc": "spacy-latent.ReleasedStructure.v1",
    "release_at": 2,
    "restricted": {"@misc": TREE, "direction": "earlier"},
    "free": {"@misc": TREE},
}
SEQUENCE = {
    "@misc": "spacy-latent.EstimatorSequence.v1",
    "switch_at": 2,
    "first": {"@misc": "spacy-latent.Marginals.v1"},
    "then": {"@misc": "spacy-latent.SparseMAP.v1"},
}
STAGED = [
    (
        {"structure": RELEASED},
        r"ProjectiveTree\(.* follows ProjectiveTree\(.*earlier",
        "release_at",
    ),
    ({"estimator": SEQUENCE}, "SparseMAP follows Marginals", "switch_at"),
]


def with_callback(max_steps: int, **options: Any) -> Language:
    nlp = inline_pipeline("textcat", **options)
    config = nlp.config.copy()
    config["initialize"]["after_init"] = CALLBACK
    config["training"]["max_steps"] = max_steps
    return spacy.blank("en").from_config(config)


@pytest.mark.parametrize("options, names, setting", STAGED)
def test_inside_of_any_component_a_callback_refuses(
    options: dict[str, Any], names: str, setting: str
) -> None:
    part = "structure" if setting == "release_at" else "estimator"
    key = rf"components\.textcat\.model\.tok2vec\.{part}\.{setting}"
    message = rf"textcat.*max_steps.*{names}.*2 updates.*{key}"
    with pytest.raises(LatentError, match=message):
        initialized(with_callback(2, **options))
    for max_steps in (3, 0):
        initialized(with_callback(max_steps, **options))
    # Without the callback, initialization does not refuse.
    nlp = inline_pipeline("textcat", **options)
    nlp.config["training"]["max_steps"] = 2
    initialized(nlp)
    with pytest.raises(LatentError, match=message):
        refuse_in_pipeline(nlp)


def test_frozen_components_and_those_that_train_on_are_not_refused() -> None:
    nlp = inline_pipeline("textcat", structure=RELEASED)
    nlp.config["training"]["max_steps"] = 1
    optimizer = initialized(nlp)
    with pytest.raises(LatentError, match="textcat"):
        refuse_in_pipeline(nlp)
    nlp.config["training"]["frozen_components"] = ["textcat"]
    assert refuse_in_pipeline(nlp) is nlp
    nlp.config["training"]["frozen_components"] = []
    step(nlp, examples(nlp), optimizer)
    assert refuse_in_pipeline(nlp) is nlp


def told(nlp: Language, options: dict[str, Any]) -> list[str]:
    """Return the warnings when the pipeline is saved and loaded."""
    saved = nlp.to_bytes()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", LatentWarning)
        inline_pipeline("textcat", **options).from_bytes(saved)
    return [str(one.message) for one in found if one.category is LatentWarning]


@pytest.mark.parametrize("options, names, setting", STAGED)
def test_who_loads_what_ended_before_its_last_stage_is_told(
    options: dict[str, Any], names: str, setting: str
) -> None:
    nlp = inline_pipeline("textcat", **options)
    optimizer = initialized(nlp)
    # An untrained pipeline gives no warning.
    assert told(nlp, options) == []
    for updates in (1, 2):
        step(nlp, examples(nlp), optimizer)
        (message,) = told(nlp, options)
        assert f"saved after {updates} updates" in message and f"lower {setting}" in message
        assert re.search(names, message) and "untrained" in message
    step(nlp, examples(nlp), optimizer)
    assert told(nlp, options) == []


def test_saving_says_nothing(tmp_path: Any) -> None:
    """Saving gives no warning, since training saves at each evaluation and continues."""
    nlp = inline_pipeline("textcat", structure=RELEASED)
    step(nlp, examples(nlp), initialized(nlp))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        nlp.to_disk(tmp_path)


def test_pipelines_without_latent_layers_are_let_through() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("textcat")
    nlp.config["training"]["max_steps"] = 1
    assert refuse_in_pipeline(nlp) is nlp


# Components with a structure of their own, and components with one inside of their embedder.
OWNERS = ("latent_encoder", "latent_textcat", "latent_textcat_multilabel")
ABOVE = ("crf_ner", "latent_parser", "tree_spancat")


def alone(component: str, options: dict[str, Any], max_steps: int) -> Language:
    nlp = spacy.blank("en")
    if component == "textcat":
        nlp = inline_pipeline("textcat", **options)
    else:
        own = {"tok2vec": TOK2VEC, **options}
        inline = {"tok2vec": {**INLINE, **options}}
        nlp.add_pipe(component, config={"model": own if component in OWNERS else inline})
    nlp.config["training"]["max_steps"] = max_steps
    return nlp


@pytest.mark.parametrize("component", [*OWNERS, *ABOVE])
@pytest.mark.parametrize("options, names, setting", STAGED)
def test_components_of_this_package_refuse_without_a_callback(
    component: str, options: dict[str, Any], names: str, setting: str
) -> None:
    with pytest.raises(LatentError, match=rf"{component}.*{names}.*{setting}"):
        initialized(alone(component, options, 2))
    initialized(alone(component, options, 3))


# ---------------------------------------------------------------- when a config is loaded


def config_of(nlp: Language, **sections: dict[str, Any]) -> Config:
    """Return the config of a pipeline, with the callback that checks it at loading."""
    config = nlp.config.copy()
    config["nlp"]["after_pipeline_creation"] = CALLBACK
    for name, settings in sections.items():
        config[name].update(settings)
    return config


@pytest.mark.parametrize("component", [*OWNERS, *ABOVE, "textcat"])
@pytest.mark.parametrize("options, names, setting", STAGED)
def test_a_config_is_refused_when_it_is_loaded(
    component: str, options: dict[str, Any], names: str, setting: str
) -> None:
    config = config_of(alone(component, options, 2))
    message = rf"{component}.*max_steps.*{names}.*2 updates.*{setting}"
    with pytest.raises(LatentError, match=message):
        load_model_from_config(config, auto_fill=True)
    for max_steps in (3, 0):
        config["training"]["max_steps"] = max_steps
        load_model_from_config(config, auto_fill=True)


def test_by_a_variable_too() -> None:
    nlp = alone("latent_textcat", {"structure": RELEASED}, 0)
    config = config_of(nlp, training={"max_steps": "${system.seed}"}, system={"seed": 2})
    with pytest.raises(LatentError, match="max_steps"):
        load_model_from_config(config, auto_fill=True)


@pytest.mark.parametrize("component", ["latent_textcat", "textcat"])
@pytest.mark.parametrize("updates", [2, 3])
def test_a_pipeline_on_disk_is_loaded_whatever_its_max_steps(
    component: str, updates: int, tmp_path: Path
) -> None:
    nlp = load_model_from_config(config_of(alone(component, {"structure": RELEASED}, 3)))
    optimizer = initialized(nlp)
    for _ in range(updates):
        step(nlp, examples(nlp), optimizer)
    nlp.to_disk(tmp_path)
    edited = load_config(tmp_path / "config.cfg", interpolate=False)
    assert edited["nlp"]["after_pipeline_creation"] == CALLBACK
    edited["training"]["max_steps"] = 1
    edited.to_disk(tmp_path / "config.cfg")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", LatentWarning)
        again = spacy.load(tmp_path)
        spacy.load(tmp_path, config={"training.max_steps": 2})
    # If training ended before the last stage, both loads warn.
    told = [str(one.message) for one in found if one.category is LatentWarning]
    assert len(told) == (0 if updates == 3 else 2)
    assert all("saved after 2 updates" in message for message in told)
    assert again.config["training"]["max_steps"] == 1
    text = "I like Paris"
    assert again(text).cats == pytest.approx(nlp(text).cats)
    # The config alone is checked as a config for a new training.
    with pytest.raises(LatentError, match="max_steps"):
        load_model_from_config(edited)
    # With the meta of the saved pipeline, it is taken as trained.
    assert spacy.blank("en").from_config(edited, meta=again.meta)
    # A new initialization is checked again.
    again.config["initialize"]["after_init"] = CALLBACK
    with pytest.raises(LatentError, match="max_steps"):
        initialized(again)


def test_what_is_sourced_beside_it_hides_nothing(tmp_path: Path) -> None:
    nlp = alone("latent_textcat", {"structure": RELEASED}, 3)
    step(nlp, examples(nlp), initialized(nlp))
    nlp.to_disk(tmp_path)
    config = config_of(inline_pipeline("textcat", estimator=STAGED[1][0]["estimator"]))
    config["nlp"]["pipeline"] = ["latent_textcat", "textcat"]
    config["components"]["latent_textcat"] = {"source": str(tmp_path)}
    config["training"]["max_steps"] = 2
    with pytest.warns(LatentWarning, match="saved"):
        with pytest.raises(LatentError, match=r"^textcat.*SparseMAP.*Marginals"):
            load_model_from_config(config, auto_fill=True)
        config["training"]["frozen_components"] = ["textcat"]
        load_model_from_config(config, auto_fill=True)


@pytest.mark.parametrize("last", ["textcat", "latent_textcat"])
def test_a_pipeline_with_what_was_sourced_is_loaded_from_disk(last: str, tmp_path: Path) -> None:
    nlp = alone("latent_textcat", {"structure": RELEASED}, 3)
    step(nlp, examples(nlp), initialized(nlp))
    nlp.to_disk(tmp_path / "source")
    config = config_of(inline_pipeline("textcat", estimator=STAGED[1][0]["estimator"]))
    config["components"]["latent_textcat"] = {"source": str(tmp_path / "source")}
    config["nlp"]["pipeline"] = sorted(config["components"], key=lambda name: name == last)
    config["training"]["max_steps"] = 3
    with pytest.warns(LatentWarning, match="saved"):
        made = load_model_from_config(config, auto_fill=True)
    # Do not initialize, since that would remove the record of sourcing from the meta.
    made.config["training"]["max_steps"] = 2
    made.to_disk(tmp_path / "trained")
    assert "_sourced_vectors_hashes" in (tmp_path / "trained" / "meta.json").read_text()
    with pytest.warns(LatentWarning, match="saved"):
        again = spacy.load(tmp_path / "trained")
    assert again.pipe_names == config["nlp"]["pipeline"]
