"""The command that compares rationales with controls."""

from functools import partial

import srsly
import typer
from spacy.tokens import DocBin

from spacy_latent.cli.rationale import main, read_words
from tests.cli.commands import invoked
from tests.pipeline.rationale_pipelines import (
    rationale_examples,
    rationale_pipeline,
    trained_rationale,
)

app = typer.Typer()
app.command()(main)


run = partial(invoked, app)


def test_the_table_and_the_numbers(tmp_path):
    nlp = trained_rationale(rationale_pipeline(), steps=5)
    nlp.to_disk(tmp_path / "model")
    corpus, words, metrics = (tmp_path / name for name in ("c.spacy", "words.txt", "m/m.json"))
    DocBin(docs=[example.reference for example in rationale_examples(nlp)]).to_disk(corpus)
    words.write_text("; a comment\ngood\nBAD\n\n", encoding="utf8")
    assert read_words(words) == ["good", "bad"]
    result = run(tmp_path / "model", corpus, "--words", words, "--metrics", metrics)
    for name in ("rationale", "random words", "first words", "listed words", "compr.", "suff."):
        assert name in result.output
    found = srsly.read_json(metrics)
    assert 0 < found["rationale"]["rate"] < 1 and found["rationale"]["token_f"] is None
    assert found["random words"]["rate"] == found["rationale"]["rate"]


def test_figures_that_no_text_has_are_null(tmp_path):
    nlp = trained_rationale(rationale_pipeline(), steps=1)
    nlp.to_disk(tmp_path / "model")
    # Both words of each text are chosen, and without them no word is left.
    rows = [{"text": "good film", "cats": {"A": 1, "B": 0}}]
    srsly.write_jsonl(tmp_path / "c.jsonl", rows)
    run(tmp_path / "model", tmp_path / "c.jsonl", "--metrics", tmp_path / "m.json")
    found = srsly.read_json(tmp_path / "m.json")["rationale"]
    assert found["comprehensiveness"] is None and found["rate"] == 1.0


def test_labels_that_the_pipeline_does_not_know_are_told(tmp_path):
    nlp = trained_rationale(rationale_pipeline(), steps=1)
    nlp.to_disk(tmp_path / "model")
    rows = [{"text": "a good film of it", "cats": {"never seen": 1, "B": 0}}]
    srsly.write_jsonl(tmp_path / "c.jsonl", rows)
    result = run(tmp_path / "model", tmp_path / "c.jsonl")
    assert "never seen" in result.stderr


def test_what_is_missing_is_named(tmp_path):
    result = run(tmp_path / "model", tmp_path / "none.spacy", code=1)
    assert "none.spacy does not exist" in " ".join(result.output.split())
    nlp = trained_rationale(rationale_pipeline(config={"spans_key": None}), steps=1)
    nlp.to_disk(tmp_path / "model")
    corpus = tmp_path / "c.spacy"
    DocBin(docs=[example.reference for example in rationale_examples(nlp)]).to_disk(corpus)
    assert "spans_key" in run(tmp_path / "model", corpus, code=1).output
