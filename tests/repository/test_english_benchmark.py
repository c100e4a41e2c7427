"""The program that compares pipelines for English runs. Measured figures are not tested."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from benchmarks import english
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.evaluation import entity_calibration
from spacy_latent.evaluation.entity_calibration import Measured


def annotated(vocab: spacy.vocab.Vocab) -> Doc:
    return Doc(
        vocab,
        words=["Ada", "met", "Bob", "."],
        spaces=[True, True, False, False],
        heads=[1, 1, 1, 1],
        deps=["nsubj", "ROOT", "obj", "punct"],
        ents=["B-PER", "O", "B-PER", "O"],
    )


def test_entities_get_the_labels_of_the_corpus_or_none() -> None:
    doc = Doc(spacy.blank("en").vocab, words=["Ada", "left", "Oslo", "on", "Monday"])
    labels = [(0, "PERSON"), (2, "GPE"), (4, "DATE")]
    doc.set_ents([Span(doc, start, start + 1, label) for start, label in labels])
    english.rename_entities(doc, frozenset({"PER", "LOC"}))
    assert [(one.text, one.label_) for one in doc.ents] == [("Ada", "PER"), ("Oslo", "LOC")]


def test_arcs_are_counted_if_their_label_is_known() -> None:
    vocab = spacy.blank("en").vocab
    reference = annotated(vocab)
    # The gold label "obj" is not among the predicted labels, and "." has another gold head.
    predicted = Doc(
        vocab,
        words=["Ada", "met", "Bob", "."],
        spaces=[True, True, False, False],
        heads=[1, 1, 1, 2],
        deps=["nsubj", "ROOT", "dobj", "punct"],
    )
    found = english.shared_arcs([Example(predicted, reference)])
    assert found["shared_labels"] == 3
    assert found["shared_uas"] == found["shared_las"] == pytest.approx(2 / 3)


def test_pipelines_with_other_components_share_a_table(tmp_path: Path) -> None:
    nlp, stock = spacy.blank("en"), spacy.blank("en")
    for name in ("latent_parser", "crf_ner"):
        nlp.add_pipe(name, config={"annotate": "probabilities"})
    stock.add_pipe("ner")
    corpus = tmp_path / "test.spacy"
    DocBin(docs=[annotated(nlp.vocab) for _ in range(3)]).to_disk(corpus)
    rows = {}
    for title, pipeline in (("ours", nlp), ("theirs", stock)):
        pipeline.initialize(partial(english.read_examples, pipeline, corpus))
        rows[title] = {**english.scores_of(pipeline, corpus), "megabytes": 1, "words a second": 2}
    assert 0 <= rows["ours"]["arc_error"] <= 1 and "dep_uas" not in rows["theirs"]
    assert all(speed > 0 for speed in english.speeds([nlp, stock], corpus))
    found = {"date": "day", "torch": "2", "words": 12, "corpus": "a", "pipelines": rows}
    lines = english.table(json.loads(json.dumps(found)))
    assert len({line.count("|") for line in lines[2:]}) == 1


def test_a_pipeline_that_finds_nothing_has_no_error_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp, corpus = spacy.blank("en"), tmp_path / "test.spacy"
    nlp.add_pipe("crf_ner", config={"annotate": "probabilities"})
    DocBin(docs=[annotated(nlp.vocab)]).to_disk(corpus)
    nlp.initialize(partial(english.read_examples, nlp, corpus))
    nothing = Measured(JudgedEntities(gold=2), None, math.nan)
    monkeypatch.setattr(entity_calibration, "measure", lambda *given: nothing)
    found = english.scores_of(nlp, corpus)
    assert "ents_error" not in found
    # JSON has no NaN, and spaCy does not read metadata that contain it.
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_metadata_get_the_scores(tmp_path: Path) -> None:
    template = tmp_path / "meta.json"
    template.write_text(json.dumps({"name": "a", "license": "b"}), encoding="utf8")
    english.write_meta(template, tmp_path / "new" / "meta.json", {"ents_f": 0.5})
    made = json.loads((tmp_path / "new" / "meta.json").read_text(encoding="utf8"))
    assert made == {"name": "a", "license": "b", "performance": {"ents_f": 0.5}}


def test_metadata_of_another_pipeline_say_what_differs(tmp_path: Path) -> None:
    base = {"name": "a", "license": "b", "sources": [{"name": "texts"}]}
    other = {"base": "meta.json", "name": "c", "sources": [{"name": "encoder"}]}
    for name, meta in (("meta.json", base), ("other.json", other)):
        (tmp_path / name).write_text(json.dumps(meta), encoding="utf8")
    assert english.read_meta(tmp_path / "other.json") == {
        "name": "c",
        "license": "b",
        "sources": [{"name": "texts"}, {"name": "encoder"}],
    }
