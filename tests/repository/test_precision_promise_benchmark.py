"""The program that measures how often a promised precision is kept, on simulated predictions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks import precision_promise as program
from spacy_latent.analysis.judged_entities import JudgedEntities


def test_promises_are_counted_in_both_ways_and_make_the_table() -> None:
    generator = np.random.default_rng(0)
    said = generator.uniform(0.5, 1.0, 400)
    right = generator.random(400) < said
    texts = np.sort(generator.integers(0, 200, 400))
    found = JudgedEntities(said.tolist(), right.tolist(), ["A"] * 400, 400, texts=texts.tolist())
    rows = program.measured(found, 200, times=4, precisions=(0.6, 0.99), confidences=(0.9,))
    rows = json.loads(json.dumps(rows, allow_nan=False))
    for way in (program.HALVES, program.DRAWS):
        assert set(rows[way]) == {"0.6 0.9", "0.6 point", "0.99 0.9", "0.99 point"}
        assert all(0 <= row["kept"] <= row["made"] <= 4 for row in rows[way].values())
        # All entities together have the lower precision. No threshold reaches the higher one with
        # this confidence.
        assert rows[way]["0.6 0.9"] == {"made": 4, "kept": 4, "share": 4.0}
        assert rows[way]["0.99 0.9"]["made"] == 0
    told = {"date": "day", "torch": "2", "model": "a", "texts": 200, "entities": 400, "times": 4}
    lines = program.table({**told, "precision": 0.75, "rows": rows})
    assert len({line.count("|") for line in lines[2:]}) == 1 and len(lines) == 8


def test_a_text_that_is_drawn_twice_counts_as_two() -> None:
    found = JudgedEntities([0.9, 0.8, 0.7], [True, False, True], list("ABA"), 3, texts=[0, 2, 2])
    drawn = program.Texts(found, 3).of([2, 1, 2])
    assert drawn.texts == [0, 0, 2, 2] and drawn.labels == ["B", "A", "B", "A"]


def test_the_precision_may_be_that_of_other_texts_and_draws_have_any_number() -> None:
    right = JudgedEntities([0.9] * 200, [True] * 200, ["A"] * 200, 200, texts=list(range(200)))
    wrong = JudgedEntities([0.9] * 9, [False] * 9, ["A"] * 9, 9, texts=list(range(9)))
    settings: Any = {"times": 3, "precisions": (0.9,), "confidences": (0.9,)}
    rows = program.measured(right, 200, **settings, test=wrong)
    for way in (program.HALVES, program.DRAWS):
        assert rows[way]["0.9 0.9"]["made"] == 3 and rows[way]["0.9 0.9"]["kept"] == 0
    rows = program.measured(right, 200, **settings, drawn=20)
    # Half of the texts support a promise, but 20 texts do not.
    assert rows[program.HALVES]["0.9 0.9"]["made"] == 3
    assert rows[program.DRAWS]["0.9 0.9"]["made"] == 0
