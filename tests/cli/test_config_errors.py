"""Commands say where in a config a mistake is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spacy.cli._util import app
from spacy.util import load_model_from_config, registry
from thinc.api import Config
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)
from spacy_latent.cli.config_errors import errors_with_blocks, unknown_names
from spacy_latent.errors import IncompatiblePair, LatentError
from tests.pipeline.small_pipelines import latent_pipeline

MODEL = "components.latent_encoder.model"


def changed(path: str, **settings: Any) -> Config:
    """The config of an encoder with a listener in which a block has other settings."""
    config = latent_pipeline("textcat").config.copy()
    block = config
    for key in path.split("."):
        block = block[key]
    if any(key.startswith("@") for key in settings):
        block.clear()
    block.update(settings)
    return config


def refused(config: Config) -> LatentError:
    with pytest.raises(LatentError) as raised, errors_with_blocks(config):
        load_model_from_config(config, auto_fill=True)
    return raised.value


@pytest.mark.parametrize("name", ["SpaningTree.v1", "SpanningTree", "spanning-tree"])
def test_an_unknown_name_is_told_with_its_block_and_the_nearest(name: str) -> None:
    place = f"{MODEL}.structure"
    said = str(refused(changed(place, **{"@misc": f"spacy-latent.{name}"})))
    assert said.startswith(f"[{place}] @misc: there is no structure 'spacy-latent.{name}'. ")
    assert "Did you mean spacy-latent.SpanningTree.v1?" in said and "ProjectiveTree" in said
    # Of the same registry, and of other kinds.
    assert "SparseMAP" not in said and "Biaffine" not in said and len(said) < 500


@pytest.mark.parametrize(
    ("place", "name", "near", "others"),
    [
        (f"{MODEL}.estimator", "SparseMap.v3", "SparseMAP.v", "ImplicitMLE"),
        (f"{MODEL}.scorer", "BiafineScorer.v1", "BiaffineScorer.v1", "ItemScorer"),
        (f"{MODEL}.composer", "GraphConvolutions.v1", "GraphConvolution.v1", "Selection"),
    ],
)
def test_names_of_that_kind_only(place: str, name: str, near: str, others: str) -> None:
    said = str(refused(changed(place, **{"@misc": f"spacy-latent.{name}"})))
    assert f"Did you mean spacy-latent.{near}" in said and others in said
    assert "SpanningTree" not in said


def test_of_other_registries_the_nearest_is_named() -> None:
    place = "components.textcat.model.tok2vec"
    said = str(refused(changed(place, **{"@architectures": "spacy-latent.LatentListner.v1"})))
    assert said.startswith(f"[{place}] @architectures: there is no function")
    assert said.endswith("Did you mean spacy-latent.LatentListener.v1?")


def test_what_is_registered_is_known() -> None:
    assert list(unknown_names(latent_pipeline("textcat").config)) == []


def test_an_error_of_a_value_begins_with_its_block() -> None:
    config = changed(f"{MODEL}.structure", **{"@misc": "spacy-latent.KOfN.v1", "k": -2})
    assert str(refused(config)).startswith(f"[{MODEL}.structure] KOfN: k is -2")
    config = changed(MODEL, temperature=-1.0)
    assert str(refused(config)).startswith(f"[{MODEL}] The temperature is -1.0")
    # Of the same class, for who catches it.
    config = changed(f"{MODEL}.composer", **{"@misc": "spacy-latent.Selection.v1"})
    error = refused(config)
    assert isinstance(error, IncompatiblePair) and str(error).startswith(f"[{MODEL}] Selection")


def test_of_settings_that_no_block_makes_no_block_is_named() -> None:
    said = str(refused(changed("components.latent_encoder", annotate="all")))
    assert said.startswith("latent_encoder: annotate is 'all'")


@pytest.mark.parametrize("command", ["debug", "init"])
def test_commands_say_so(command: str, tmp_path: Path) -> None:
    place = f"{MODEL}.structure"
    config = changed(place, **{"@misc": "spacy-latent.SpaningTree.v1"})
    config.to_disk(tmp_path / "wrong.cfg")
    more = ["-", "--estimator", "sparsemap"] if command == "init" else []
    result = CliRunner().invoke(app, ["latent", command, str(tmp_path / "wrong.cfg"), *more])
    assert result.exit_code == 1 and not result.stdout
    said = " ".join(result.stderr.split())
    assert f"[{place}]" in said and "Did you mean spacy-latent.SpanningTree.v1?" in said


def test_debug_says_so_of_training_too(tmp_path: Path) -> None:
    config = load_model_from_config(latent_pipeline("textcat").config, auto_fill=True).config.copy()
    config["training"]["batcher"]["@batchers"] = "spacy.batch_by_word.v1"
    config.to_disk(tmp_path / "wrong.cfg")
    result = CliRunner().invoke(app, ["latent", "debug", str(tmp_path / "wrong.cfg")])
    said = " ".join((result.stdout + result.stderr).split())
    assert (
        "[training.batcher] @batchers" in said and "Did you mean spacy.batch_by_words.v1?" in said
    )


def test_a_text_in_the_place_of_a_number_is_told_with_its_setting() -> None:
    """``1e-6x``, or a number in quotation marks: what compares it says nothing of the setting."""
    place = f"{MODEL}.estimator"
    said = str(refused(changed(place, **{"@misc": "spacy-latent.SparseMAP.v1", "tolerance": "x"})))
    assert said.startswith(f"[{place}] tolerance is 'x'; expected a number, such as 1e-06")


def test_an_error_of_a_function_of_ones_own_is_left_as_it_is() -> None:
    """Its settings are right, and the traceback is what tells where it fails."""
    name = "tests.FailingEstimator.v1"

    @registry.misc(name)
    def make(scale: float = 1.0) -> Any:
        raise TypeError("unsupported operand")

    config = changed(f"{MODEL}.estimator", **{"@misc": name, "scale": 2.0})
    with pytest.raises(TypeError, match=r"^unsupported operand$"), errors_with_blocks(config):
        load_model_from_config(config, auto_fill=True)
