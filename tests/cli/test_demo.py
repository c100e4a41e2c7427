"""``spacy latent demo``, and the pipeline that comes with the package for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import spacy
import srsly
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import load_config

from spacy_latent.cli import demo
from spacy_latent.cli.added_structures import filled
from tests import carried_pipeline
from tests.cli.commands import latent

CONFIG = Path(__file__).parents[2] / "configs" / "demo.cfg"


def test_the_pipeline_is_that_of_the_demo() -> None:
    """The command in tests/carried_pipeline.py made the pipeline, with the demo's config."""
    assert carried_pipeline.sums() == srsly.read_json(carried_pipeline.SUMS)
    size = sum(path.stat().st_size for path in carried_pipeline.CARRIED.rglob("*"))
    assert size < 1_000_000
    carried = load_config(carried_pipeline.CARRIED / "config.cfg")
    config = filled(load_config(CONFIG))
    assert carried["system"]["seed"] == config["system"]["seed"] == 0
    for section in ("components", "training", "initialize"):
        assert carried[section] == config[section]


def test_it_shows_trees_and_judges_them(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "demo.html"
    expression = "[MED [MAX 1 8 ] 5 [MIN 3 [MAX 0 7 ] ] ]"
    result = latent("demo", expression, "--html", page)
    assert "Its value: 5. Right is 5." in result.output
    (trained, deep) = (
        [float(cell) for cell in line.split("deep")[1].split()]
        for line in result.output.splitlines()
        if line.startswith(("up to 3 deep", "6 deep"))
    )
    for values, trees, control in (trained, deep):
        assert values > 95 and trees > 95 and control < 30
    html = page.read_text("utf8")
    assert "<svg" in html and "whole trees" in html
    # The given expression is drawn first.
    words = " ".join(re.findall(r">([^<>]+)</(?:text|tspan)>", html[html.index("<svg") :]))
    assert words.index("[MED") < words.index("[MAX") < words.index("[MIN")
    # As in the table, the heads of the four ] do not count, so 10 of 14 tokens do.
    assert "10 of 10 arcs as in gold" in html


@pytest.mark.parametrize("expression", ["", "[MAX 2", "[SM 1 2 ]", "they saw it", "[MAX 2 12 ]"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    assert "is no expression" in latent("demo", expression, code=1).stderr


def test_the_structures_of_a_sentence_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_parser", config={"annotate": "probabilities"})
    words = ["Ada", "met", "Bob"]
    reference = Doc(nlp.vocab, words, heads=[1, 1, 1], deps=["nsubj", "ROOT", "obj"])
    nlp.initialize(lambda: [Example(nlp.make_doc("Ada met Bob"), reference)])
    demo.show(nlp("Ada met Bob"))
    shown = capsys.readouterr().out
    assert "latent_parser" in shown and all(word in shown for word in words)


def test_it_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SIZES", {"train": 60, "dev": 10})
    short = tmp_path / "short"
    model = "components.latent_textcat.model"
    settings = {"training.max_steps": 2, "training.eval_frequency": 1}
    stages = {f"{model}.structure.release_at": 1, f"{model}.estimator.switch_at": 1}
    config = load_config(CONFIG, overrides=settings | stages)
    short.mkdir()
    config.to_disk(short / "config.cfg")
    best = demo.train_again(short, tmp_path / "trained", seed=3, gpu_id=-1)
    nlp = spacy.load(best)
    assert nlp.config["system"]["seed"] == 3
    assert (tmp_path / "trained" / "corpus" / "train.tsv").read_text().count("\n") >= 60
