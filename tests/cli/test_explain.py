"""``spacy latent explain`` on a classifier that hangs on one word."""

from __future__ import annotations

from typing import Any

import pytest
import spacy
import srsly
from spacy.cli._util import app
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401
from spacy_latent.cli.explain import _figures
from spacy_latent.pipeline.explanation import Faithfulness
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized
from tests.pipeline.test_explanation import BAD, PIPES, trained


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("explained")
    trained(PIPES["listener"]).to_disk(path)
    return path


def explain(*arguments: Any, lines: str | None = None) -> Any:
    return CliRunner().invoke(app, ["latent", "explain", *map(str, arguments)], input=lines)


def test_terminal_and_page(saved: Any, tmp_path: Any) -> None:
    page = tmp_path / "pages" / "page.html"
    result = explain(saved, BAD, "--html", page)
    assert result.exit_code == 0, result.output
    assert "[bad " in result.output
    for name in ("mask", "leave-one-out", "random", "compr. %", "suff. %"):
        assert name in result.output
    html = page.read_text(encoding="utf8")
    assert "<mark" in html and "textcat_multilabel · bad" in html and "leave-one-out" in html


def test_json_of_lines(saved: Any) -> None:
    result = explain(saved, "--json", "--steps", 20, lines=f"{BAD}\n\n")
    assert result.exit_code == 0, result.output
    full, empty = (srsly.json_loads(line) for line in result.stdout.splitlines())
    assert full.keys() == empty.keys()
    assert full["tokens"] == BAD.split() and full["label"] == "bad" and 2 in full["chosen"]
    assert len(full["weights"]) == len(full["leave_one_out"]) == len(full["tokens"])
    assert full["faithfulness"]["mask"]["sufficiency"] <= 0.1 + 1e-6
    assert empty["chosen"] == [] and empty["text"] == ""


def test_texts_without_an_entity_do_not_end_the_others(tmp_path: Any) -> None:
    nlp = spacy.blank("xx")
    own = {"annotate": "probabilities", "model": {"tok2vec": TOK2VEC}}
    nlp.add_pipe("crf_ner", config=own)
    text = "I like London a lot"
    optimizer = initialized(nlp)
    for _ in range(20):
        nlp.update(examples(nlp), sgd=optimizer)
    nlp.to_disk(tmp_path / "model")
    lines = f"{text}\n\nand so on\n{text}\n"
    asked = (tmp_path / "model", "--steps", 5, "--html", tmp_path / "page.html")
    result = explain(*asked, lines=lines)
    assert result.exit_code == 0, result.output
    assert result.output.count("There is no entity number 0") == 2
    assert result.output.count("crf_ner: London (GPE)") == 2
    assert "London (GPE)" in (tmp_path / "page.html").read_text(encoding="utf8")
    result = explain(*asked, "--json", lines=lines)
    rows = [srsly.json_loads(line) for line in result.stdout.splitlines()]
    assert [row["label"] for row in rows] == ["GPE", None, None, "GPE"]
    assert rows[2].keys() == rows[0].keys() and rows[2]["text"] == "and so on"
    # A text by itself, of which nothing else is said.
    result = explain(tmp_path / "model", "and so on")
    assert result.exit_code == 1 and "no entity number 0" in " ".join(result.output.split())


def test_why_it_cannot_be_explained(saved: Any, tmp_path: Any) -> None:
    result = explain(saved, BAD, "--label", "fine")
    assert result.exit_code == 1 and "no label 'fine'" in result.output
    spacy.blank("xx").to_disk(tmp_path)
    result = explain(tmp_path, BAD)
    assert result.exit_code == 1 and "nothing to explain" in result.output


def test_measures_are_in_percent_as_those_of_rationales_are() -> None:
    assert _figures(Faithfulness(0.634, -0.0001)) == ("63.4", "0.0")
