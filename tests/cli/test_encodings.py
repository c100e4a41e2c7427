"""Commands whose streams are not in UTF-8, such as redirected output on Windows."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
import wasabi.util
from spacy.cli._util import app
from spacy.language import Language
from typer.main import get_command

import spacy_latent.cli.app  # noqa: F401
from spacy_latent.corpora.standard_streams import prepare_streams
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized

LABEL = "Łódź 日本"
TEXT = f"{LABEL} می\u200cخواهم 👩\u200d👧 é – \u202eevil \x1b[31mred"
ENCODINGS = ("utf-8", "cp1252", "ascii")
COMMAND = get_command(app)
Run = Callable[..., str]


@pytest.fixture(scope="module")
def nlp() -> Language:
    made = spacy.blank("en")
    pipes: list[Any] = [
        made.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}}),
        made.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC}}),
    ]
    for pipe in pipes:
        pipe.add_label(LABEL)
    initialized(made, sample=examples(made))
    return made


@pytest.fixture(scope="module")
def saved(nlp: Language, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("Łódź")
    nlp.to_disk(path / "model")
    row = {"text": TEXT, "entities": [[0, len(LABEL), LABEL]], "cats": {LABEL: 1.0, "bad": 0.0}}
    (path / "texts.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf8")
    return path


@pytest.fixture(params=ENCODINGS)
def run(request: pytest.FixtureRequest, nlp: Language, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs a command with standard streams of an encoding.

    It returns the output of both streams. It checks that they have the encoding, and no characters
    that control a terminal.
    """
    monkeypatch.setattr(spacy, "load", lambda name: nlp)
    # wasabi reads the encoding when it is imported.
    monkeypatch.setattr(wasabi.util, "ENCODING", request.param)

    def invoke(*arguments: Any, code: int = 0, stdin: bytes = b"", file: bool = False) -> str:
        printed = io.BytesIO()
        with monkeypatch.context() as patch:
            stream = io.TextIOWrapper(printed, encoding=request.param)
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            given = io.TextIOWrapper(io.BytesIO(stdin), encoding=request.param, newline="\n")
            patch.setattr(sys, "stdin", given)
            with pytest.raises(SystemExit) as ended:
                COMMAND.main(["latent", *map(str, arguments)])
            stream.flush()
        shown = printed.getvalue().decode("utf8" if file else request.param)
        assert (ended.value.code or 0) == code, shown
        assert "\u202e" not in shown and "\x1b[31m" not in shown
        return shown

    return invoke


@pytest.fixture
def label(request: pytest.FixtureRequest) -> str:
    encoding = request.node.callspec.params["run"]
    return LABEL.encode(encoding, "backslashreplace").decode(encoding)


def test_what_an_encoding_lacks_is_printed_as_escapes(run: Run, saved: Path, label: str) -> None:
    model = saved / "model"
    shown = run("show", model, TEXT)
    assert (
        label.split()[0] in shown and "Scores of categories: " in shown and "\\x1b[31mred" in shown
    )
    explained = run("explain", model, TEXT, "-c", "latent_textcat", "--steps", 1, "--label", LABEL)
    assert f"latent_textcat: {label}" in explained
    table = run("evaluate", "scores", model, saved / "texts.jsonl")
    assert "cats_micro_f" in table
    wrong = run("evaluate", "scores", model, saved / f"{LABEL}.jsonl", code=1)
    assert label.split()[1] in wrong and "does not exist" in " ".join(wrong.split())


def test_json_is_json_in_every_encoding(run: Run, saved: Path) -> None:
    found = json.loads(run("show", saved / "model", TEXT, "--json"))
    assert found["text"] == TEXT and LABEL in found["cats"]


@pytest.mark.parametrize("command", ["show", "render", "explain"])
def test_a_text_that_is_too_long_is_told(run: Run, saved: Path, command: str, nlp: Any) -> None:
    more = ["-c", "latent_textcat"] if command == "explain" else []
    text = b"I like London. " * 20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nlp, "max_length", 200)
        said = run(command, saved / "model", *more, stdin=text, code=1)
    assert "300 characters" in " ".join(said.split())


def test_pages_and_documents_are_in_utf_8(run: Run, saved: Path, tmp_path: Path) -> None:
    model, page = saved / "model", tmp_path / f"{LABEL}.html"
    run("render", model, saved / "texts.jsonl", page)
    drawn = run("render", model, saved / "texts.jsonl", file=True)
    for written in (page.read_text(encoding="utf8"), drawn):
        assert LABEL.split()[0] in written and "می\u200cخواهم" in written


def test_standard_input_is_in_utf_8_and_ends_its_lines_as_it_may(run: Run, saved: Path) -> None:
    for ends in ("\n", "\r\n", "\r"):
        stdin = f"\ufeff{TEXT}{ends}I like London{ends}".encode()
        shown = run("show", saved / "model", "--json", stdin=stdin)
        first, second = map(json.loads, shown.splitlines())
        assert first["text"] == TEXT and second["tokens"] == ["I", "like", "London"]
    shown = run("show", saved / "model", stdin="é".encode("latin1"), code=1)
    assert "line 1 has the byte E9" in " ".join(shown.split())


def test_streams_that_are_no_files_of_text_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams in memory, as in a notebook, and missing streams are not changed."""
    for stream in (io.StringIO(), None):
        for name in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        prepare_streams()
    monkeypatch.undo()
