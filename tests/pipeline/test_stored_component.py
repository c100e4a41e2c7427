"""Saved components: loading takes settings from the config, and restores learned values."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Config

from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import (
    TOK2VEC,
    examples,
    initialized,
    inline_pipeline,
    latent_pipeline,
    learn,
)

MODEL: dict[str, Any] = {"tok2vec": TOK2VEC}
# Settings to change after training. Their values are exact in JSON: srsly reads 0.3 as
# 0.30000000000000004.
CHANGED: dict[str, dict[str, Any]] = {
    "crf_ner": {"annotate": "probabilities", "threshold": 0.25, "loss": "quadratic"},
    "latent_encoder": {"annotate": "none", "threshold": 0.25, "supervision": 1.5},
    "latent_textcat": {"annotate": "probabilities", "threshold": 0.75, "alternatives": 2},
    "latent_textcat_multilabel": {"annotate": "none", "score_range": [-1.0, 2.0]},
    "tree_spancat": {"annotate": "none", "threshold": 0.25, "probability_threshold": 0.5},
}
WORDS = ["I", "like", "London", "a", "lot"]
ONE_SENTENCE = [True, False, False, False, False]
LABELLED = [name for name in CHANGED if name != "latent_encoder"]


def with_more_labels(nlp: Language) -> list[Example]:
    made = examples(nlp)
    for example in made:
        example.reference.cats["third"] = 0.0
        example.reference.set_ents([Span(example.reference, 0, 1, "OTHER")], default="unmodified")
        example.reference.spans["sc"].append(Span(example.reference, 0, 1, "OTHER"))
    return made


def pipeline(name: str, more: bool = False) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": MODEL})
    initialized(nlp, sample=with_more_labels(nlp) if more else None)
    return nlp


@pytest.fixture(scope="module")
def components() -> dict[str, Any]:
    return {name: pipeline(name).get_pipe(name) for name in CHANGED}


def settings(nlp: Language, name: str) -> dict[str, Any]:
    return nlp.get_pipe(name).cfg  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CHANGED)
def test_the_edited_config_counts(name: str, tmp_path: Path) -> None:
    nlp = pipeline(name)
    nlp.to_disk(tmp_path)
    config = Config().from_disk(tmp_path / "config.cfg", interpolate=False)
    config["components"][name].update(CHANGED[name])
    config.to_disk(tmp_path / "config.cfg")
    again = spacy.load(tmp_path)
    assert settings(again, name) == {**settings(nlp, name), **CHANGED[name]}
    from_bytes = spacy.blank("en").from_config(config).from_bytes(nlp.to_bytes())
    assert settings(from_bytes, name) == settings(again, name)


@pytest.mark.parametrize("name", CHANGED)
def test_load_takes_settings(name: str, tmp_path: Path) -> None:
    nlp = pipeline(name)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path, config={"components": {name: CHANGED[name]}})
    assert settings(again, name) == {**settings(nlp, name), **CHANGED[name]}


@pytest.mark.parametrize("bound", [True, False])
def test_load_takes_bounds_of_the_model_too(bound: bool, tmp_path: Path) -> None:
    """Bounds come from the config, although Thinc saves them with the weights."""
    nlp = spacy.blank("en")
    before, after = (None, 1) if bound else (1, None)
    nlp.add_pipe("latent_parser", config={"model": {**MODEL, "max_length": before or 512}})
    nlp.add_pipe("tree_spancat", config={"model": {**MODEL, "max_width": before}})
    for label in ("A", "B"):
        nlp.get_pipe("tree_spancat").add_label(label)  # type: ignore[union-attr]
    initialized(nlp)
    nlp.to_disk(tmp_path)
    bounds = {
        "components.latent_parser.model.max_length": after or 512,
        "components.tree_spancat.model.max_width": after,
        "components.tree_spancat.threshold": 0.0,
    }
    doc = spacy.load(tmp_path, config=bounds)(Doc(nlp.vocab, words=WORDS, sent_starts=ONE_SENTENCE))
    assert {len(span) for span in doc._.latent["latent_parser"].spans} == {after or len(WORDS)}
    assert all(len(span) == 1 for span in doc.spans["sc"]) == bound


def test_load_takes_a_temperature_and_leaves_a_schedule_where_it_was(tmp_path: Path) -> None:
    def heights(nlp: Language) -> list[float]:
        structure = nlp("I hate Paris")._.latent["latent_encoder"].spans[0]
        return structure.probabilities.tolist()

    falling = {"@schedules": "compounding.v1", "start": 8.0, "stop": 0.5, "compound": 0.5}
    for temperature in (1.0, falling):
        config = {"annotate": "probabilities", "threshold": 0.0}
        nlp = latent_pipeline("tagger", encoder=config)
        nlp.config["components"]["latent_encoder"]["model"]["temperature"] = temperature
        nlp = nlp.from_config(nlp.config)
        learn(nlp, examples(nlp), 6, initialized(nlp))
        nlp.to_disk(tmp_path)
        kept = heights(nlp)
        assert heights(spacy.load(tmp_path)) == kept
        path = "components.latent_encoder.model.temperature"
        if temperature == 1.0:
            hot = heights(spacy.load(tmp_path, config={path: 1000.0}))
            # At this temperature all trees of three words have nearly the same probability.
            assert max(hot) - min(hot) < 0.5 * (max(kept) - min(kept))


@pytest.mark.parametrize("name", [None, "other"])
def test_load_takes_the_name_of_an_inline_structure(name: str | None, tmp_path: Path) -> None:
    nlp = inline_pipeline("tagger", stored_as="syntax")
    initialized(nlp)
    nlp.to_disk(tmp_path)
    changed = {"components.tagger.model.tok2vec.stored_as": name}
    assert list(spacy.load(tmp_path)("I hate Paris")._.latent) == ["syntax"]
    found = spacy.load(tmp_path, config=changed)("I hate Paris")._.latent
    assert list(found) == ([name] if name else [])


@pytest.mark.parametrize("name", CHANGED)
def test_what_was_changed_in_python_is_saved_again_and_again(name: str, tmp_path: Path) -> None:
    nlp = pipeline(name)
    settings(nlp, name).update(CHANGED[name])
    for _ in range(2):
        nlp.to_disk(tmp_path)
        nlp = spacy.load(tmp_path)
        assert CHANGED[name].items() <= settings(nlp, name).items()
    from_bytes = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert settings(from_bytes, name) == settings(nlp, name)
    assert "changed" not in settings(nlp, name)


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("key", ["annotate", "threshold", "supervision", "score_range", "loss"])
def test_what_was_changed_in_python_to_what_cannot_be_is_not_saved(
    name: str, key: str, components: dict[str, Any]
) -> None:
    component = components[name]
    # The threshold of text classifiers is a setting of spaCy, which accepts any number.
    if key not in component.cfg or (key == "threshold" and "textcat" in name):
        return
    before = component.cfg[key]
    for wrong in ("probs", 7, -1.5, [1]):
        if key == "supervision" and wrong == 7:
            continue
        component.cfg[key] = wrong
        with pytest.raises(LatentError, match=rf"{name}.*{key}"):
            component.to_bytes()
    component.cfg[key] = before
    component.to_bytes()


@pytest.mark.parametrize("name", LABELLED)
def test_labels_are_saved_and_settings_are_not(name: str, tmp_path: Path) -> None:
    nlp = pipeline(name)
    nlp.to_disk(tmp_path)
    saved = srsly.read_json(tmp_path / name / "cfg")
    assert saved["labels"] == list(nlp.get_pipe(name).labels)  # type: ignore[union-attr]
    assert set(saved) <= {"labels", "label_sets", "positive_label", "sha256_of_model"}


def test_the_positive_label_comes_back(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_textcat", config={"model": MODEL})
    nlp.config["initialize"]["components"]["latent_textcat"] = {"positive_label": "good"}
    initialized(nlp)
    nlp.to_disk(tmp_path)
    assert settings(spacy.load(tmp_path), "latent_textcat")["positive_label"] == "good"


@pytest.mark.parametrize("name", LABELLED)
def test_a_directory_with_settings_in_it_is_read(name: str, tmp_path: Path) -> None:
    nlp = pipeline(name)
    nlp.to_disk(tmp_path)
    srsly.write_json(tmp_path / name / "cfg", {**settings(nlp, name), "annotate": "none"})
    assert settings(spacy.load(tmp_path), name) == settings(nlp, name)


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize("more", [False, True])
def test_other_labels_are_named(name: str, more: bool, tmp_path: Path) -> None:
    saved, nlp = pipeline(name, more=not more), pipeline(name, more=more)
    saved.to_disk(tmp_path)
    component: Any = nlp.get_pipe(name)
    before = component.labels
    new = "OTHER" if name in ("crf_ner", "tree_spancat") else "third"
    for load in (
        lambda: component.from_bytes(saved.get_pipe(name).to_bytes()),  # type: ignore[union-attr]
        lambda: component.from_disk(tmp_path / name),
    ):
        with pytest.raises(LatentError, match=f"{new}") as raised:
            load()
        assert all(label in str(raised.value) for label in before)
        assert component.labels == before


@pytest.mark.parametrize("name", CHANGED)
def test_an_incomplete_directory_says_so(name: str, tmp_path: Path) -> None:
    pipeline(name).to_disk(tmp_path)
    weights = tmp_path / name / "model"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(LatentError, match="cut short"):
        spacy.load(tmp_path)
    for file in ("model", "cfg"):
        (tmp_path / name / file).unlink()
        with pytest.raises(LatentError, match=f"{file}"):
            spacy.load(tmp_path)
        (tmp_path / name / file).touch()


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of saved pipelines, by the name of the component. Tests copy them."""
    found = {name: tmp_path_factory.mktemp(name) for name in LABELLED}
    for name, path in found.items():
        pipeline(name).to_disk(path)
    return found


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"labels": 5}, "labels 5"),
        ({"labels": ["A", 5]}, "a list of names"),
        ({"label_sets": 5}, "label_sets 5"),
        ({"label_sets": [["GPE"], ["GPF"]]}, "some of the labels"),
        ({"label_sets": [[]]}, "some of the labels"),
        ({"positive_label": "GPF"}, "one of the labels"),
        ({"changed": 5}, "settings by name"),
        ({"changed": {"annotate": 5}}, "annotate 5"),
        ({"changed": {"annotate": ["map"]}}, "expected something like"),
        ({"changed": {"annotate": "probs"}}, "annotate is 'probs'"),
    ],
)
def test_a_cfg_that_is_json_and_wrong_is_refused(
    name: str, saved: dict[str, Any], said: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(directories[name], tmp_path, dirs_exist_ok=True)
    path = tmp_path / name / "cfg"
    srsly.write_json(path, {**srsly.read_json(path), **saved})
    with pytest.raises(LatentError, match=re.escape(str(tmp_path / name))) as error:
        spacy.load(tmp_path)
    assert said in str(error.value) or "cannot be read" in str(error.value)


@pytest.mark.parametrize("width", [-1, 0, 10**9, True, "96", [16, -1]])
def test_a_width_that_no_weights_have_is_refused_before_memory_is_asked_for(width: Any) -> None:
    nlp = pipeline("latent_encoder")
    encoder: Any = nlp.get_pipe("latent_encoder")
    (shim,) = [shim for node in encoder.model.walk() for shim in node.shims]
    message = srsly.msgpack_loads(shim.to_bytes())
    message["config"]["width"] = width
    with pytest.raises(LatentError, match="features"):
        shim.from_bytes(srsly.msgpack_dumps(message))
