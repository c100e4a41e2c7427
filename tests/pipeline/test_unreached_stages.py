"""Trainings that end before the last stage: refused where they begin, or told where they ended."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import spacy
from spacy.language import Language

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.pipeline.unreached_stages import refuse_in_pipeline
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, inline_pipeline, step

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
CALLBACK = {"@callbacks": "spacy-latent.RefuseUnreachedStages.v1"}
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
    message = f"textcat: training.max_steps is 2, and {names}.*after 2 updates.*Lower {setting}"
    with pytest.raises(LatentError, match=message):
        initialized(with_callback(2, **options))
    for max_steps in (3, 0):
        initialized(with_callback(max_steps, **options))
    # It is the callback that refuses.
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
    """What is said when the pipeline is loaded again."""
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
    # Without any update nothing is trained, and nobody thinks so.
    assert told(nlp, options) == []
    for updates in (1, 2):
        step(nlp, examples(nlp), optimizer)
        (message,) = told(nlp, options)
        assert f"saved after {updates} updates" in message and f"lower {setting}" in message
        assert re.search(names, message) and "untrained" in message
    step(nlp, examples(nlp), optimizer)
    assert told(nlp, options) == []


def test_saving_says_nothing(tmp_path: Any) -> None:
    """Training saves at each evaluation, and goes on."""
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


@pytest.mark.parametrize("component", ["latent_encoder", "latent_textcat"])
@pytest.mark.parametrize("options, names, setting", STAGED)
def test_components_of_this_package_refuse_without_a_callback(
    component: str, options: dict[str, Any], names: str, setting: str
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(component, config={"model": {"tok2vec": TOK2VEC, **options}})
    nlp.config["training"]["max_steps"] = 2
    with pytest.raises(LatentError, match=f"{component}: .*{names}.*Lower {setting}"):
        initialized(nlp)
    nlp.config["training"]["max_steps"] = 3
    initialized(nlp)
