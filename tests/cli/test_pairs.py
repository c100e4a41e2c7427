"""The report on classifiers of pairs, on a corpus small enough to count by hand."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import spacy
import srsly
import typer
from spacy.cli._util import app as spacy_app
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.util import load_config

from spacy_latent import annotations
from spacy_latent.annotations import SpanStructure
from spacy_latent.cli.pairs import main
from spacy_latent.corpora.text_pairs import FIRST, SECOND, make_pair_doc, read_docs
from tests.cli.commands import invoked, latent
from tests.models.pair_pipelines import NAME, PAIRS, docs, examples, pipeline, trained
from tests.pipeline.small_pipelines import initialized, latent_pipeline, save_small_transformer
from tests.repository.recipes import RECIPES
from tests.repository.test_recipes import OVER_A_PARSER

app = typer.Typer()
app.command()(main)
judge = partial(invoked, app)


@pytest.fixture
def model(tmp_path):
    nlp = trained(pipeline())
    (tmp_path / "mine").mkdir()
    nlp.to_disk(tmp_path / "mine" / "model-best")
    return nlp, tmp_path / "mine" / "model-best"


def save_aligned(nlp, path):
    """Save the pairs with their labels, and with the pipeline's own alignments of the like ones."""
    gold = DocBin(store_user_data=True)
    for found, (first, second, label) in zip(docs(nlp), PAIRS):
        doc = make_pair_doc(nlp, first, second)
        doc.cats = {name: float(name == label) for name in ("same", "other")}
        if label == "same":
            # The gold alignment is the model's own, so it is always right.
            cells = found._.latent[NAME].spans
            annotations.write(doc, "sure", cells)
        gold.add(doc)
    gold.to_disk(path)


def test_accuracy_and_alignments_beside_controls(model, tmp_path):
    nlp, path = model
    save_aligned(nlp, tmp_path / "dev.spacy")
    metrics = tmp_path / "metrics" / "pairs.json"
    result = judge(path, tmp_path / "dev.spacy", "--metrics", metrics)
    assert "mine" in result.output and "nearest same word" in result.output
    rows = srsly.read_json(metrics)
    assert rows["mine"]["accuracy"] == rows["mine"]["f1"] == 1.0
    assert rows["mine"]["error_rate"] == 0.0
    low, high = rows["mine"]["difference"]
    assert 0 <= low <= high <= 1 and "difference" not in rows["nearest same word"]
    result = judge(path, tmp_path / "dev.spacy", "--beside", "nothing", code=1)
    assert "--beside is 'nothing'" in result.output
    assert set(rows) == {"mine", "same word", "nearest same word", "diagonal"}


def test_links_of_a_pair_that_has_none_are_wrong(model, tmp_path):
    nlp, path = model
    save_aligned(nlp, tmp_path / "some.spacy")
    gold = DocBin(store_user_data=True)
    for doc in read_docs(nlp, tmp_path / "some.spacy"):
        if "sure" not in doc._.latent:
            first, second = (doc.spans[key][0] for key in (FIRST, SECOND))
            none = SpanStructure(0, len(first), "gold", "cells", np.zeros((0, 2), "int32"))
            none.other_start, none.other_end = second.start, second.end
            annotations.write(doc, "sure", [none])
        gold.add(doc)
    gold.to_disk(tmp_path / "dev.spacy")
    judge(path, tmp_path / "dev.spacy", "--metrics", tmp_path / "pairs.json")
    found = srsly.read_json(tmp_path / "pairs.json")["mine"]
    assert found["recall"] == 1.0 and found["precision"] < 1.0


def test_pairs_with_an_empty_text_may_have_alignments_without_links(model, tmp_path):
    nlp, path = model
    save_aligned(nlp, tmp_path / "some.spacy")
    gold = DocBin(docs=list(read_docs(nlp, tmp_path / "some.spacy")), store_user_data=True)
    for texts in (("a dog", ""), ("", "a dog")):
        doc = make_pair_doc(nlp, *texts)
        doc.cats = {"same": 0.0, "other": 1.0}
        annotations.write(doc, "sure", [])
        gold.add(doc)
    gold.to_disk(tmp_path / "all.spacy")
    rows = []
    for name in ("some", "all"):
        judge(path, tmp_path / f"{name}.spacy", "--metrics", tmp_path / f"{name}.json")
        rows.append(srsly.read_json(tmp_path / f"{name}.json"))
    some, every = rows
    # These pairs have no links, neither gold nor found.
    for name in ("mine", "same word", "nearest same word", "diagonal"):
        keys = ("precision", "recall", "f1", "error_rate")
        assert [every[name][key] for key in keys] == [some[name][key] for key in keys]
    assert every["mine"]["pairs"] == some["mine"]["pairs"] + 2


def test_seeds_of_one_name_have_rows_of_their_own(model, tmp_path):
    paths = [model[1], tmp_path / "seed-1" / "mine" / "model-best"]
    shutil.copytree(*paths)
    corpus, metrics = tmp_path / "dev.jsonl", tmp_path / "pairs.json"
    rows = [{"text_a": a, "text_b": b, "label": label} for a, b, label in PAIRS]
    srsly.write_jsonl(corpus, rows)
    judge(*paths, corpus, "--metrics", metrics)
    assert list(srsly.read_json(metrics)) == list(map(str, paths))


def test_a_classifier_without_a_structure_has_no_alignments(model, tmp_path):
    save_aligned(model[0], tmp_path / "dev.spacy")
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat").add_label("same")
    nlp.get_pipe("textcat").add_label("other")
    nlp.initialize()
    nlp.to_disk(tmp_path / "stock")
    judge(tmp_path / "stock", tmp_path / "dev.spacy", "--metrics", tmp_path / "pairs.json")
    rows = srsly.read_json(tmp_path / "pairs.json")
    assert "accuracy" in rows["stock"] and "f1" not in rows["stock"]
    assert "f1" in rows["diagonal"]


def test_a_corpus_without_pairs_is_named(model, tmp_path):
    (tmp_path / "dev.jsonl").write_text("", encoding="utf8")
    assert "no pairs" in " ".join(judge(model[1], tmp_path / "dev.jsonl", code=1).output.split())


def test_a_corpus_without_alignments_has_accuracy_alone(model, tmp_path, monkeypatch):
    shown = []

    def progress(docs, stage, total, unit):
        shown.append((stage, total, unit))
        return docs

    monkeypatch.setattr("spacy_latent.cli.progress.progress", progress)
    rows = [{"text_a": a, "text_b": b, "label": "other"} for a, b, _ in PAIRS]
    srsly.write_jsonl(tmp_path / "dev.jsonl", rows)
    result = judge(model[1], tmp_path / "dev.jsonl")
    assert "50.0" in result.output and "same word" not in result.output
    assert shown == [("mine", len(PAIRS), "pair")]


@pytest.mark.parametrize(
    ("settings", "cats", "score"),
    [
        ({"score_range": [0.0, 5.0]}, {"likeness": 5.0}, "1 − mean absolute error"),
        ({}, {"same": 1.0, "formal": 1.0}, "F1 of the labels"),
    ],
)
def test_numbers_and_several_labels_have_no_accuracy(tmp_path, settings, cats, score):
    """The only number, or the likeliest label, was always right."""
    nlp = pipeline(multilabel=True, component=settings)
    made = examples(nlp)
    for one in made:
        one.reference.cats = {name: 0.0 for name in cats}
    nlp.initialize(lambda: made)
    nlp.to_disk(tmp_path / "model")
    pairs = [{"text_a": a, "text_b": b, "cats": cats} for a, b, _ in PAIRS]
    srsly.write_jsonl(tmp_path / "dev.jsonl", pairs)
    judge(tmp_path / "model", tmp_path / "dev.jsonl", "--metrics", tmp_path / "found.json")
    found = srsly.read_json(tmp_path / "found.json")["model"]
    assert found["pairs"] == len(PAIRS) and "accuracy" not in found
    # Untrained, it predicts the middle of a range, and both labels.
    assert found[score] == pytest.approx(0.5 if settings else 1.0)


@Language.component("always_same")
def always_same(doc):
    doc.cats = {"same": 0.8, "other": 0.2}
    return doc


def test_a_component_that_does_not_declare_its_categories_is_judged(tmp_path):
    nlp = spacy.blank("en")
    nlp.to_disk(tmp_path / "silent")
    nlp.add_pipe("always_same")
    nlp.to_disk(tmp_path / "own")
    rows = [{"text_a": a, "text_b": b, "label": label} for a, b, label in PAIRS]
    srsly.write_jsonl(tmp_path / "dev.jsonl", rows)
    judge(tmp_path / "own", tmp_path / "dev.jsonl", "--metrics", tmp_path / "pairs.json")
    share = sum(label == "same" for _, _, label in PAIRS) / len(PAIRS)
    assert srsly.read_json(tmp_path / "pairs.json")["own"]["accuracy"] == pytest.approx(share)
    shown = judge(tmp_path / "silent", tmp_path / "dev.jsonl", code=1).output
    assert "predicts none of the labels" in shown


def test_labels_that_no_prediction_can_have_are_an_error(model, tmp_path):
    rows = [{"text_a": a, "text_b": b, "cats": {"same": 0.0}} for a, b, _ in PAIRS]
    srsly.write_jsonl(tmp_path / "dev.jsonl", rows)
    assert "predicts none of the labels" in judge(model[1], tmp_path / "dev.jsonl", code=1).output


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    """A file of labelled pairs whose fields have other names, and one pair without a label."""
    rows = [{"premise": a, "claim": b, "gold": label} for a, b, label in PAIRS]
    srsly.write_jsonl(tmp_path / "other.jsonl", [*rows, {"premise": "a", "claim": "b"}])
    return tmp_path / "other.jsonl"


def test_pairs_that_are_not_judged_and_unknown_labels_are_told(model, tmp_path):
    rows = [{"text_a": a, "text_b": b, "label": label} for a, b, label in PAIRS]
    rows[0]["label"] = "never seen"
    del rows[1]["label"]
    srsly.write_jsonl(tmp_path / "dev.jsonl", rows)
    result = judge(model[1], tmp_path / "dev.jsonl")
    said = " ".join((result.stdout + result.stderr).split())
    assert f"1 of {len(PAIRS)} pairs in" in said and "are left out of the score" in said
    assert "label that the pipeline does not know: never seen" in said
    assert f"mine {len(PAIRS) - 1} " in said


def test_fields_are_named_by_options_or_by_the_config(model, renamed):
    nlp, path = model
    options = ["--first", "premise", "--second", "claim", "--label", "gold"]
    # The pair without a label does not count.
    assert "100.0" in judge(path, renamed, *options).output
    names = {"first": "premise", "second": "claim", "label": "gold"}
    reader = {"@readers": "spacy-latent.TextPairs.v1", "path": None, "limit": 0}
    nlp.config["corpora"]["dev"] = {**reader, **names}
    nlp.to_disk(path)
    assert "100.0" in judge(path, renamed).output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "'text_a' is None, not a text; there is 'premise', 'claim', 'gold'"),
        (
            ["--first", "premise", "--second", "claim"],
            "has a label under 'label' (there is 'premise', 'claim', 'gold')",
        ),
    ],
)
def test_a_file_with_other_fields_is_told_with_those_that_it_has(model, renamed, options, said):
    result = judge(model[1], renamed, *options, code=1)
    assert isinstance(result.exception, SystemExit)
    printed = " ".join(result.stderr.split())
    assert said in printed and "the command line: --first, --second and --label." in printed


def test_what_is_not_there_is_named(tmp_path):
    result = judge(tmp_path, tmp_path / "none.spacy", code=1)
    assert "not exist" in " ".join(result.output.split())


show = partial(latent, "show")


def test_a_typed_pair_is_shown(model, tmp_path):
    first, second, _ = PAIRS[0]
    result = show(model[1], first, second, "--html", tmp_path / "page.html")
    (doc,) = model[0].pipe([make_pair_doc(model[0], first, second)])
    cells = doc._.latent[NAME].cells()
    assert cells
    for cell in cells:
        assert f"{doc[cell.source]} ~ {doc[cell.target]}" in result.output
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf8")
    best = max(doc.cats, key=doc.cats.get)
    assert f"Scores of categories: {best} {doc.cats[best]:.2f}, " in result.output
    shown = srsly.json_loads(show(model[1], first, second, "--json").stdout)
    found = shown["latent"][NAME]
    assert shown["cats"] == pytest.approx(doc.cats)
    assert [one[:2] for one in found["cells"]] == [[cell.source, cell.target] for cell in cells]


def test_one_text_for_a_pair_and_two_for_one_are_refused(model, tmp_path):
    result = show(model[1], "a dog", code=1)
    assert "Give both" in " ".join(result.stderr.split())
    initialized(single := latent_pipeline("textcat"))
    single.to_disk(tmp_path / "single")
    result = show(tmp_path / "single", "a", "dog", code=1)
    assert "two texts are given" in " ".join(result.stderr.split())


# Configs over a parser are tested in tests/pipeline/test_given_tree_recipes.py.
CONFIGS = [p for p in RECIPES if p.stem.startswith("pairs_") and p not in OVER_A_PARSER]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_train_and_apply(config, tmp_path):
    rows = [{"text_a": a, "text_b": b, "label": label} for a, b, label in PAIRS]
    srsly.write_jsonl(tmp_path / "pairs.jsonl", rows)
    nlp = spacy.blank("en")
    made = list(read_docs(nlp, tmp_path / "pairs.jsonl"))
    DocBin(docs=made).to_disk(tmp_path / "pairs.spacy")
    raw = load_config(config)
    given = raw["paths"]
    suffix = Path(given["train"]).suffix
    data = tmp_path / f"pairs{suffix}"
    overrides = [f"--paths.train={data}", f"--paths.dev={data}", "--training.max_steps=2"]
    if "encoder" in given:
        (tmp_path / "encoder").mkdir()
        save_small_transformer(tmp_path / "encoder")
        overrides.append(f"--paths.encoder={tmp_path / 'encoder'}")
    invoked(spacy_app, "train", config, "-o", tmp_path, *overrides, "--training.eval_frequency=2")
    paths = [tmp_path / name for name in ("model-last", "pairs.spacy", "out.spacy")]
    invoked(spacy_app, "apply", *paths)
    for doc in DocBin().from_disk(tmp_path / "out.spacy").get_docs(nlp.vocab):
        assert doc.cats
        # spaCy's textcat serves as a control and has no structure.
        if raw["components"].get(NAME, {"annotate": "none"})["annotate"] != "none":
            assert doc._.latent[NAME].spans
