"""``spacy latent warm-up`` runs a pipeline, and fails if nothing could be stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from warnings import warn

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from typer.testing import CliRunner

from spacy_latent.cli.commands import latent_cli
from spacy_latent.errors import LatentWarning

SEEN: list[int] = []


@Language.component("latent_test_seen")
def seen(doc: Doc) -> Doc:
    SEEN.append(len(doc))
    return doc


@Language.component("latent_test_unstored")
def unstored(doc: Doc) -> Doc:
    warn("Kernels are compiled in each process, which takes long.", LatentWarning, stacklevel=2)
    return doc


def run(component: str, folder: Path, *arguments: str) -> Any:
    nlp = spacy.blank("en")
    nlp.add_pipe(component)
    nlp.to_disk(folder / "model")
    return CliRunner().invoke(latent_cli, ["warm-up", str(folder / "model"), *arguments])


def test_single_texts_and_batches_of_different_lengths_are_run(tmp_path: Path) -> None:
    SEEN.clear()
    assert run("latent_test_seen", tmp_path).exit_code == 0
    assert len(set(SEEN)) > 3 and len(SEEN) > 100
    SEEN.clear()
    (tmp_path / "texts.txt").write_text("one two\nthree\n")
    assert run("latent_test_seen", tmp_path, str(tmp_path / "texts.txt")).exit_code == 0
    assert set(SEEN) == {1, 2}


@pytest.mark.parametrize("corpus", [[], ["none.spacy"]])
def test_what_cannot_be_stored_or_read_fails(tmp_path: Path, corpus: list[str]) -> None:
    assert run("latent_test_unstored", tmp_path, *corpus).exit_code == 1
