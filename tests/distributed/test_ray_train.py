"""Trainings that Ray starts. Skipped if Ray is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import spacy

from spacy_latent.distributed.ray_train import _be_rank, ray_train
from spacy_latent.errors import LatentError
from tests.distributed.trainings import save_corpus, shared, write_config


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LatentError, match=r"spacy-latent\[ray\]"):
        ray_train(tmp_path / "config.cfg", tmp_path / "output", workers=2)


def test_paths_in_the_config_are_from_where_the_command_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_corpus(tmp_path / "train.spacy", count=4)
    config = write_config(tmp_path / "tagger.cfg", shared("tagger"), Path("train.spacy"))
    elsewhere, output = tmp_path / "elsewhere", tmp_path / "output"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    given = {"config_path": str(config), "output": str(output), "folder": str(tmp_path)}
    _be_rank({**given, "overrides": {"training.max_steps": 1}})
    assert spacy.load(output / "model-last").pipe_names == ["tok2vec", "tagger"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_two_workers_of_ray_train_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Ray is not imported before, so that the new cluster stays on this machine.
    save_corpus(tmp_path / "train.spacy")
    config = write_config(tmp_path / "tagger.cfg", shared("tagger"), Path("train.spacy"))
    output = tmp_path / "output"
    with pytest.raises(LatentError, match="number"):
        ray_train(config, output, workers=0)
    saved = ray_train(config, output, workers=2, overrides={"training.max_steps": 3})
    assert spacy.load(saved).pipe_names == ["tok2vec", "tagger"]
    with pytest.raises(LatentError, match="checkpoints"):
        ray_train(config, output, workers=2)
    steps = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert steps == ["step-1", "step-4"]
