"""The programs that measure recipes for incomplete annotation run.

The figures that they measure are not tested.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span

from benchmarks import accept_reject, added_label, raw_results
from benchmarks.added_label import BOTH, NEW, OLD
from benchmarks.entity_curves import digest_of_settings
from spacy_latent.annotations import annotated_labels

VOCAB = spacy.blank("en").vocab
TOLD = {"date": "2000-01-01", "torch": "2", "spacy": "3", "held_out": 9}


def text(*labels: str) -> Doc:
    """Return a doc with an entity of each label, and a word outside after each entity."""
    words = [word for label in labels for word in (f"one-{label}", "and")]
    doc = Doc(VOCAB, words=words)
    doc.ents = [Span(doc, 2 * i, 2 * i + 1, label=label) for i, label in enumerate(labels)]
    return doc


def entities(doc: Doc) -> set[tuple[int, int, str]]:
    return {(span.start, span.end, span.label_) for span in doc.ents}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for part in ("train", "dev"):
        docs = [text(*labels) for labels in ((OLD, NEW), (NEW,), (OLD,), (NEW, OLD))] * 3
        DocBin(docs=docs).to_disk(tmp_path / f"{part}.spacy")
    return tmp_path


@pytest.mark.filterwarnings("ignore::spacy_latent.errors.LatentWarning")
@pytest.mark.parametrize("component", added_label.COMPONENTS)
def test_a_label_is_added_in_every_way(component: str, corpus: Path) -> None:
    found = added_label.measured(component, corpus, 0, added_label.Size(4, 2, 2, 2))
    ways = [way.title for way in added_label.WAYS if way.component == component]
    assert list(found["scores"]) == [added_label.BEFORE, *ways]
    assert all(0 <= f1 <= 1 for run in found["scores"].values() for f1 in run.values())
    assert found["scores"][added_label.BEFORE][NEW] == 0
    assert json.loads(json.dumps(found)) == found


def test_texts_have_the_label_that_they_were_annotated_for() -> None:
    whole = text(OLD, NEW)
    (kept,) = added_label.with_label([whole], OLD)
    (said,) = added_label.said([kept], OLD)
    assert entities(kept) == entities(said) == {(0, 1, OLD)}
    assert annotated_labels(said) == (OLD,)
    assert annotated_labels(kept) is None and len(whole.ents) == 2


def test_pseudo_labels_leave_the_annotation_alone() -> None:
    nlp = spacy.blank("en")
    ruler: Any = nlp.add_pipe("entity_ruler")
    words = [[{"ORTH": f"one-{label}"}] for label in (OLD, NEW)]
    ruler.add_patterns([{"label": OLD, "pattern": word} for word in words])
    (new,) = added_label.with_label([text(OLD, NEW)], NEW)
    (guessed,) = added_label.with_guesses(nlp, [new])
    assert entities(guessed) == {(0, 1, OLD), (2, 3, NEW)}
    assert entities(new) == {(2, 3, NEW)}


def test_rows_are_kept_while_settings_and_sizes_are_the_same(tmp_path: Path) -> None:
    path, size = tmp_path / "rows.jsonl", added_label.Size()
    raw_results.add(path, {"digest": digest_of_settings(), "size": asdict(size)})
    assert len(added_label.kept_rows(path, size)) == 1
    assert added_label.kept_rows(path, added_label.Size(texts=2)) == []


def test_the_table_of_added_labels_has_a_row_for_each_way() -> None:
    ways = [way.title for way in added_label.WAYS if way.component == "ner"]
    rows = [
        {
            "component": "ner",
            "seed": seed,
            "size": asdict(added_label.Size()),
            "scores": {
                title: {OLD: f1, NEW: 0.5, BOTH: f1} for title in (added_label.BEFORE, *ways)
            },
            **TOLD,
        }
        for seed, f1 in ((0, 0.9), (0, 0.5), (1, 0.7))
    ]
    *_, last = lines = added_label.table(rows)
    assert sum(line.startswith("| `ner` |") for line in lines) == 1 + len(ways)
    assert last.endswith("| 2 | 60.0 ± 28.3 | 50.0 ± 0.0 | 60.0 ± 28.3 |")


@pytest.mark.filterwarnings("ignore::spacy_latent.errors.LatentWarning")
def test_a_round_of_answers_is_learned(corpus: Path) -> None:
    found = accept_reject.measured(corpus, 0, accept_reject.Size(4, 8, 6, 10, 2))
    for asked in found["asked"].values():
        assert 0 <= asked["accepted"] <= asked["answers"] <= 6
    assert all(0 <= f1 <= 1 for run in found["scores"].values() for f1 in run.values())
    assert json.loads(json.dumps(found)) == found
    lines = accept_reject.table([found])
    assert len(lines) == 4 + len(found["scores"])


def test_a_first_model_that_finds_nothing_asks_nothing() -> None:
    names = (accept_reject.RANDOM, accept_reject.LEAST)
    whole = [f"{name}, {accept_reject.COMPLETE}" for name in names]
    scores = {
        name: {BOTH: 0.1} for name in (accept_reject.BEFORE, accept_reject.LONGER, *names, *whole)
    }
    nothing = {"texts": 0, "accepted": 0, "answers": 0}
    row = {
        "seed": 0,
        "size": asdict(accept_reject.Size()),
        "scores": scores,
        "asked": dict.fromkeys(names, nothing),
        **TOLD,
    }
    lines = accept_reject.table([row])
    assert any(line.startswith(f"| {accept_reject.LEAST} | 0 |") for line in lines)


def test_answers_accept_what_is_annotated_and_reject_the_rest() -> None:
    gold = [text(OLD), text(NEW, OLD)]
    asked = [
        accept_reject.Asked(1, (0, 1, NEW), 0.9),
        accept_reject.Asked(1, (2, 3, NEW), 0.6),
        accept_reject.Asked(1, (1, 2, OLD), 0.1),
    ]
    (doc,) = accept_reject.answered(asked, gold)
    assert entities(doc) == {(0, 1, NEW)}
    assert [token.ent_iob_ for token in doc][1:] == ["", "", ""]
    rejected = doc.spans[accept_reject.REJECTED]
    assert [(span.start, span.end, span.label_) for span in rejected] == [(2, 3, NEW), (1, 2, OLD)]
    assert accept_reject.least_sure(asked, 1) == [asked[1]]
