"""The program that measures calibration runs. The figures that it measures are not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from benchmarks import calibration
from spacy_latent.analysis.judged_entities import JudgedEntities


def test_both_halves_are_measured_and_what_is_kept_makes_the_table(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    # In some docs "Oslo" is not an entity, so that predictions can be wrong.
    docs = [
        Doc(nlp.vocab, words=["we", "saw", "Oslo"], ents=["O", "O", "B-A" if i % 7 > 1 else "O"])
        for i in range(80)
    ]
    path = tmp_path / "dev.spacy"
    DocBin(docs=docs).to_disk(path)
    component = nlp.add_pipe("crf_ner", config={"annotate": "probabilities"})
    examples = [Example(Doc(nlp.vocab, words=[token.text for token in doc]), doc) for doc in docs]
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(10):
        nlp.update(examples, drop=0.0, sgd=optimizer)
    rows = calibration.measured(nlp, calibration.trials(path), coverage=0.5, biases=False)
    rows = json.loads(json.dumps(rows, allow_nan=False))
    first, second, both = rows.values()
    assert both["found"] == first["found"] + second["found"] > 0
    assert both["gold"] == sum(len(doc.ents) for doc in docs)
    assert all(0 <= row[key] <= 1 for row in rows.values() for key in ("before", "after"))
    assert first["calibration"]["docs"] == second["calibration"]["docs"] == 40
    assert component.calibration.to_dict() == second["calibration"]  # type: ignore[attr-defined]
    found = {"rows": rows, "date": "day", "torch": "2", "model": "a", "coverage": 0.5}
    lines = calibration.table(found)
    assert [line.split(" | ")[0] for line in lines[-3:]] == [f"| {title}" for title in rows]
    assert len({line.count("|") for line in lines[2:]}) == 1
    # With a test corpus, all texts of the first corpus are calibrated on.
    few = tmp_path / "test.spacy"
    DocBin(docs=docs[:20]).to_disk(few)
    rows = calibration.measured(nlp, calibration.trials(path, few), coverage=0.5, biases=False)
    (row,) = rows.values()
    assert row["calibration"]["docs"] == 80
    assert row["gold"] == sum(len(doc.ents) for doc in docs[:20])


def test_figures_are_of_both_and_none_where_there_is_nothing() -> None:
    before = JudgedEntities([0.9, 0.9], [True, False], ["A", "A"], 4)
    after = JudgedEntities([0.96, 0.04], [True, False], ["A", "A"], 4)
    found = calibration.figures(before, after)
    assert (found["before"], found["after"]) == pytest.approx((0.4, 0.04))
    assert (found["sure"], found["precision"], found["recall"]) == (1, 1.0, 0.25)
    assert [count for *_, count in found["bins"]] == [1] + [0] * 8 + [1]
    nothing = calibration.figures(JudgedEntities(), JudgedEntities())
    assert nothing["after"] is None and nothing["precision"] is None
    assert calibration.percent(nothing["after"]) == "–"
