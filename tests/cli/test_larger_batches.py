"""``spacy latent init --gpu``: batches are larger, and a training reads as many words."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from spacy.cli._util import app
from spacy.cli.init_config import init_config
from spacy.util import load_config, registry
from thinc.api import Config
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)
from spacy_latent.cli.added_structures import filled, loaded, with_structure
from spacy_latent.cli.larger_batches import with_larger_batches
from spacy_latent.errors import LatentError

STEPS = 1200


def settings(**changes: Any) -> Config:
    config = filled(init_config(lang="en", pipeline=["textcat"]))
    config["training"]["max_steps"] = STEPS
    config["training"].update(changes)
    return config


def words_read(config: Config) -> float:
    """Return the number of words that all steps of a training read."""
    size, steps = config["training"]["batcher"]["size"], config["training"]["max_steps"]
    if not isinstance(size, dict):
        return float(size * steps)
    return float(sum(islice(registry.resolve({"size": size})["size"], steps)))


@pytest.mark.parametrize("size", [1000, None])
def test_a_training_reads_as_many_words_in_fewer_steps(size: int | None) -> None:
    config = settings()
    if size is not None:
        config["training"]["batcher"]["size"] = size
    changed = with_larger_batches(config)
    assert changed["training"]["max_steps"] == STEPS // 6
    assert words_read(changed) == pytest.approx(words_read(config), rel=0.02)
    assert changed["training"]["optimizer"]["learn_rate"] == pytest.approx(0.0025)
    loaded(changed)
    # No limit stays none, and the config that was given stays as it is.
    assert with_larger_batches(settings(max_steps=0, patience=0))["training"]["max_steps"] == 0
    assert config["training"]["max_steps"] == STEPS


def test_a_warm_up_takes_as_many_words() -> None:
    config = settings()
    warm_up = {"warmup_steps": 60, "total_steps": STEPS, "initial_rate": 0.002}
    config["training"]["optimizer"]["learn_rate"] = {"@schedules": "warmup_linear.v1", **warm_up}
    rate = with_larger_batches(config)["training"]["optimizer"]["learn_rate"]
    assert (rate["warmup_steps"], rate["total_steps"]) == (10, STEPS // 6)
    assert rate["initial_rate"] == pytest.approx(0.005)


@pytest.mark.parametrize("value", ["${vars.rate}", {"@schedules": "cyclic_triangular.v1"}])
def test_other_learning_rates_are_refused(value: Any) -> None:
    config = settings()
    config["training"]["optimizer"]["learn_rate"] = value
    with pytest.raises(LatentError, match="learn_rate"):
        with_larger_batches(config)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"max_steps": "${vars.steps}"}, "max_steps"),
        ({"batcher": "${vars.batcher}"}, "size"),
        ({"batcher": {"@batchers": "own.batcher.v1"}}, "size"),
        ({"batcher": {"size": {"start": 1, "stop": 2, "compound": "${vars.c}"}}}, "compound"),
    ],
)
def test_what_is_no_number_is_named(changes: Any, name: str) -> None:
    with pytest.raises(LatentError, match=f"{name} is .*expects a number"):
        with_larger_batches(settings(**changes))


def test_a_transformer_keeps_its_batches() -> None:
    config = init_config(lang="en", pipeline=["textcat"], gpu=True)
    with pytest.raises(LatentError, match="transformer"):
        with_larger_batches(config)


def test_the_command_sets_them(tmp_path: Path) -> None:
    init_config(lang="en", pipeline=["ner"]).to_disk(tmp_path / "base.cfg")
    paths = [str(tmp_path / name) for name in ("base.cfg", "config.cfg")]
    result = CliRunner().invoke(app, ["latent", "init", *paths, "--for", "entities", "--gpu"])
    assert result.exit_code == 0
    changed = load_config(tmp_path / "config.cfg", interpolate=False)
    assert changed["components"]["ner"]["factory"] == "crf_ner"
    assert changed["training"]["batcher"]["size"]["stop"] == 6000
    # Without the option they stay.
    command = ["latent", "init", paths[0], paths[1], "--for", "entities", "--force"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert load_config(tmp_path / "config.cfg")["training"]["batcher"]["size"]["stop"] == 1000


def test_they_go_with_a_structure() -> None:
    config = with_structure(settings(), [])
    assert loaded(with_larger_batches(config)).config["training"]["batcher"]["size"]["start"] == 600
