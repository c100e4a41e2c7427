"""The program that measures learning curves runs. Measured figures are not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import DocBin

from benchmarks import entity_curves, raw_results


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    docs = entity_curves.many_labels(spacy.blank("en").vocab, labels=2, texts=12)
    for part in ("train", "dev"):
        DocBin(docs=docs).to_disk(tmp_path / f"{part}.spacy")
    return tmp_path


def test_both_components_are_judged_after_each_number_of_steps(corpus: Path) -> None:
    found = entity_curves.curve("Small", corpus, 0, [1, 2])
    for component in entity_curves.COMPONENTS:
        scores = found["scores"][component]
        assert len(scores) == 2 and all(0 <= f1 <= 1 for f1 in scores)
    assert found["ratio"] > 0 and found["held_out"] == 12
    assert json.loads(json.dumps(found)) == found


def test_curves_are_kept_while_settings_and_steps_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "curves.jsonl"
    raw_results.add(path, {"digest": entity_curves.digest_of_settings(), "steps": [1, 2]})
    assert len(entity_curves.kept(path, [1, 2])) == 1
    assert entity_curves.kept(path, [1, 3]) == []
    monkeypatch.setattr(entity_curves, "DROPOUT", 0.3)
    assert entity_curves.kept(path, [1, 2]) == []


def row(seed: int, own: float, other: float, ratio: float) -> dict[str, Any]:
    scores = {"crf_ner": [own], "ner": [other]}
    told = {"date": "2000-01-01", "torch": "2", "spacy": "3"}
    return {"corpus": "Small", "seed": seed, "scores": scores, "ratio": ratio, **told}


def test_the_table_has_means_with_spreads_and_each_seed() -> None:
    rows = [row(1, 0.6, 0.3, 1.0), row(0, 0.1, 0.1, 9.0), row(0, 0.5, 0.4, 0.5)]
    *_, line = entity_curves.table_of_curves(rows, [100])
    assert line == (
        "| Small | 2 | 100 | 55.0 ± 14.1 | 35.0 ± 14.1 | +20.0 ± 20.0 | 50.0, 60.0 | 40.0, 30.0 | "
        "0.75 ± 0.71 |"
    )
    *_, line = entity_curves.table_of_curves(rows[:1], [100])
    assert line == "| Small | 1 | 100 | 60.0 | 30.0 | +30.0 | 60.0 | 30.0 | 1.00 |"


def test_batches_hold_all_texts_and_about_so_many_words() -> None:
    docs = entity_curves.many_labels(spacy.blank("en").vocab, labels=2, texts=120)
    found = entity_curves.batches(docs, 0)
    first = next(found)
    words = sum(map(len, first))
    assert 500 < words <= 1.2 * entity_curves.WORDS_OF_A_BATCH
    seen = set(map(id, first))
    while len(seen) < len(docs):
        seen |= set(map(id, next(found)))
