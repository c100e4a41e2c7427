"""Bars of progress of the commands that may take longer than five seconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from spacy.cli._util import app
from spacy.tokens import DocBin, Span
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401
from spacy_latent.cli.progress import progress
from tests.pipeline.rationale_pipelines import rationale_pipeline
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a pipeline, and texts with references."""
    path = tmp_path_factory.mktemp("place")
    nlp = rationale_pipeline()
    nlp.add_pipe("latent_parser", config={"model": {"tok2vec": TOK2VEC}})
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}})
    initialized(nlp)
    nlp.to_disk(path / "model")
    docs = [example.reference for example in examples(nlp)]
    for doc in docs:
        doc.spans["rationale"] = [Span(doc, 0, 1, label="rationale")]
    DocBin(docs=docs).to_disk(path / "texts.spacy")
    return path


@pytest.mark.parametrize(
    ("command", "stages"),
    [
        ("calibrate {model} {texts} {out} -c crf_ner", {"Entities": 3, "Scores": 3}),
        ("attachment {model} {texts}", {"Trees": 3}),
        ("rationale {model} {texts}", {"Rationales": 3}),
        ("debug {model} --corpus {texts} --steps 2", {"Training steps": 2}),
        ("explain {model} 'I like London' -c latent_textcat --steps 5", {"Hiding words": 5}),
    ],
)
def test_long_stages_are_shown(
    command: str, stages: dict[str, int], place: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    shown: dict[str, int] = {}

    def counted(each: Iterable[Any], stage: str, total: int, unit: str = "doc") -> Iterable[Any]:
        seen = 0
        for one in each:
            seen += 1
            yield one
        assert seen == total
        shown[stage] = total

    monkeypatch.setattr("spacy_latent.cli.progress.progress", counted)
    filled = command.format(
        model=place / "model", texts=place / "texts.spacy", out=tmp_path / "calibrated"
    )
    result = CliRunner().invoke(app, f"latent {filled}")
    assert result.exit_code == 0, result.output
    assert stages.items() <= shown.items()


def test_no_bar_is_drawn_where_nobody_looks(place: Path, capfd: Any) -> None:
    assert list(progress("abc", "Letters", 3)) == ["a", "b", "c"]
    result = CliRunner().invoke(
        app, ["latent", "generate", "listops", str(place / "a.tsv"), "--sizes", "20"]
    )
    assert result.exit_code == 0
    printed = capfd.readouterr()
    assert "Letters" not in printed.err and "%|" not in printed.err + result.output
