"""The program of learning curves runs; what it measures is not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin

from benchmarks import entity_curves


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    docs = entity_curves.many_labels(spacy.blank("en").vocab, labels=2, texts=12)
    for part in ("train", "dev"):
        DocBin(docs=docs).to_disk(tmp_path / f"{part}.spacy")
    return tmp_path


def test_both_components_are_judged_after_each_number_of_steps(corpus: Path) -> None:
    found = entity_curves.curve("Small", corpus, 0, [1, 2], corpus / "runs")
    for component in entity_curves.COMPONENTS:
        assert len(found[component]) == 2 and all(0 <= f1 <= 1 for f1 in found[component])
    assert found["ratio"] > 0
    again = entity_curves.curve("Small", Path("nowhere"), 0, [1, 2], corpus / "runs")
    assert again == json.loads(json.dumps(found))


def test_the_table_has_each_seed_and_their_mean() -> None:
    runs = [
        {"crf_ner": [0.5], "ner": [0.4], "ratio": 0.5},
        {"crf_ner": [0.6], "ner": [0.3], "ratio": 1.0},
    ]
    *_, own, other = entity_curves.table_of_curves({"Small": runs}, [0, 1], [100])
    assert own == "| Small | crf_ner | 50.0, 60.0; mean 55.0 | 0.75 |"
    assert other == "| Small | ner | 40.0, 30.0; mean 35.0 | 1.00 |"


def test_batches_hold_all_texts_and_about_so_many_words() -> None:
    docs = entity_curves.many_labels(spacy.blank("en").vocab, labels=2, texts=120)
    found = entity_curves.batches(docs, 0)
    first = next(found)
    words = sum(map(len, first))
    assert 500 < words <= 1.2 * entity_curves.WORDS_OF_A_BATCH
    seen = set(map(id, first))
    while len(seen) < len(docs):
        seen |= set(map(id, next(found)))
