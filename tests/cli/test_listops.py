"""The demo's commands on a small corpus: generate, train, report, show."""

import json
from pathlib import Path

import numpy as np
import pytest
import spacy
import srsly
from spacy.cli._util import app
from spacy.cli.train import train
from spacy.tokens import Doc
from spacy.training import Example
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)
from spacy_latent.annotations import SpanStructure, write
from spacy_latent.cli.listops import app as listops_app
from spacy_latent.cli.listops import measure, only_component
from spacy_latent.errors import LatentError

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo")
    options = ["--sizes", "60,20,20", "--operators", "MIN,MAX", "--max-length", "12"]
    result = CliRunner().invoke(app, ["latent", "generate", "listops", str(path), *options])
    assert result.exit_code == 0, result.output
    overrides = {
        "paths.train": str(path / "train.tsv"),
        "paths.dev": str(path / "dev.tsv"),
        "training.max_epochs": 1,
        "training.eval_frequency": 1,
    }
    train(CONFIGS / "demo.cfg", path / "out", overrides=overrides)
    return path


def test_report_counts_hard_trees_beside_controls(trained):
    arguments = [str(trained / "out" / "model-last"), str(trained / "test.tsv")]
    options = ["--metrics", str(trained / "m.json"), "--html", str(trained / "page.html")]
    result = CliRunner().invoke(listops_app, ["report", *arguments, *options])
    assert result.exit_code == 0, result.output
    figures = srsly.read_json(trained / "m.json")
    assert {"latent_encoder", "nearest operator", "flat"} <= set(figures["attachment"])
    assert 0 <= figures["accuracy"] <= 1
    page = (trained / "page.html").read_text()
    assert page.count("<svg") == 12 and "gold" in page
    assert "page.html" in result.output


def binary_tree(nlp, component, spans):
    doc = Doc(nlp.vocab, words=["[MAX", "2", "9", "]"])
    decoded = np.array(spans, dtype="int32")
    write(doc, component, [SpanStructure(0, 4, "ConstituencyTree", "spans", decoded)])
    doc.cats = {"9": 1.0, "2": 0.0}
    reference = Doc(nlp.vocab, words=["[MAX", "2", "9", "]"])
    reference.cats = {"9": 1.0, "2": 0.0}
    return Example(doc, reference)


def test_binary_trees_are_judged_by_their_spans():
    nlp = spacy.blank("xx")
    gold = binary_tree(nlp, "a", [(0, 1), (0, 2), (0, 3)])
    other = binary_tree(nlp, "a", [(0, 1), (2, 3), (0, 3)])
    figures = measure([gold, other], "a")
    assert figures["accuracy"] == 1.0 and "attachment" not in figures
    assert figures["brackets"]["a"] == pytest.approx(5 / 6)
    assert figures["brackets"]["left-branching"] == 1.0
    assert figures["brackets"]["right-branching"] == pytest.approx(1 / 3)
    assert only_component([gold, other]) == "a"
    with pytest.raises(LatentError, match=r"a, b put trees.*--component"):
        only_component([gold, binary_tree(nlp, "b", [(0, 3)])])
    with pytest.raises(LatentError, match="no tree of 'b'"):
        measure([gold], "b")


def test_show_prints_draws_and_speaks_json(trained):
    model, text = str(trained / "out" / "model-last"), "[MAX 2 [MIN 4 7 ] <b> ]"
    result = CliRunner().invoke(app, ["latent", "show", model, text])
    assert result.exit_code == 0, result.output
    assert "[MIN" in result.output and "latent_encoder" in result.output
    page = trained / "show.html"
    result = CliRunner().invoke(app, ["latent", "show", model, text, "--html", str(page)])
    assert result.exit_code == 0 and "<b>" not in page.read_text().replace("<br", "")
    result = CliRunner().invoke(app, ["latent", "show", model, text, "--json"])
    shown = json.loads(result.output)
    assert shown["tokens"] == text.split()
    assert len(shown["latent"]["latent_encoder"]["heads"]) == 8


def test_the_report_equals_what_the_pipeline_annotates(trained):
    nlp = spacy.load(trained / "out" / "model-last")
    doc = nlp("[MAX 2 9 ]")
    heads = doc._.latent["latent_encoder"].heads.tolist()
    assert heads[0] == 0 and all(head < i for i, head in enumerate(heads) if i)


def said(result):
    """The output on one line: messages are wrapped to the width of the terminal."""
    return " ".join(result.output.split())


def test_bad_input_says_what_to_do(trained, tmp_path):
    result = CliRunner().invoke(app, ["latent", "show", str(tmp_path / "none"), "x"])
    assert result.exit_code == 1 and "cannot be loaded" in said(result)
    spacy.blank("en").to_disk(tmp_path / "blank")
    result = CliRunner().invoke(app, ["latent", "show", str(tmp_path / "blank"), "x"])
    assert result.exit_code == 1 and "no latent structure" in said(result)
    model = str(trained / "out" / "model-last")
    result = CliRunner().invoke(app, ["latent", "show", model, "x", "--component", "ner"])
    assert result.exit_code == 1 and "'ner'" in said(result)
    result = CliRunner().invoke(app, ["latent", "show", model, "x", "--gpu-id", "0"])
    assert result.exit_code == 1 and "GPU 0" in said(result)
    result = CliRunner().invoke(
        app, ["latent", "generate", "listops", str(tmp_path), "--sizes", "1"]
    )
    assert result.exit_code == 1 and "three numbers" in said(result)
