"""Conversion of docs to columns of Parquet files, and back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.distributed.parquet import Row, read_annotated_v1, read_rows, schema, to_table
from spacy_latent.errors import LatentError

pq = pytest.importorskip("pyarrow.parquet")
VOCAB = spacy.blank("en").vocab


def ints(*values: Any) -> np.ndarray:
    return np.array(values, dtype="int32")


def reals(*values: Any) -> np.ndarray:
    return np.array(values, dtype="float32")


# Together these structures have a value in every field.
TREE = SpanStructure(
    0,
    3,
    "ProjectiveTree",
    "heads",
    ints(2, 0, 2),
    parts=ints([2, 1], [0, 2], [2, 3]),
    probabilities=reals(0.1, 0.7, 1 / 3),
    alternatives=[(ints(0, 1, 2), 0.3), (ints(3, 3, 0), 0.1)],
    labels=("subj", "obj", "ROOT"),
    counters=reals([1.5, 2.0], [0.25, -1.0], [0.0, 3.0]),
    arc_labels=ints(0, 2, 1),
    labelled_parts=ints([2, 1, 0]),
    labelled_probabilities=reals(0.2),
    alternative_labels=[ints(2, 0, 1), ints(1, 1, 2)],
)
TAGS = SpanStructure(
    0,
    2,
    "LinearChain",
    "tags",
    ints(1, 0),
    labels=("O", "U-PER"),
    entity_probabilities=reals(0.9),
    given=np.array([True]),
    alternatives=[(ints(0, 0), 0.05), (ints(1, 1), 0.01)],
    alternative_probabilities=[reals(), reals(0.3, 0.2)],
    possible=ints([0, 1, 1], [1, 2, 1]),
    possible_probabilities=reals(0.9, 0.2),
    min_confidence=0.95,
    entities_calibrated=True,
    whole_probability=0.25,
    labelled_whole_probability=0.125,
)
CELLS = SpanStructure(
    0, 2, "OneToOneAlignment", "cells", ints([0, 1], [1, 0]), other_start=2, other_end=4
)
EMPTY = SpanStructure(
    2,
    4,
    "KOfN",
    "items",
    ints(),
    parts=np.empty((0, 1), dtype="int32"),
    probabilities=reals(),
)
NO_CELLS = SpanStructure(
    2, 3, "ManyToOneAlignment", "cells", np.empty((0, 2), "int32"), other_start=0, other_end=1
)
WINDOWS = SpanStructure(3, 4, "Windows", "windows", np.zeros((1, 2, 3), dtype="int32"))


def docs() -> list[Doc]:
    words = ["Mary", "sees", "John", "."]
    annotated = Doc(
        VOCAB,
        words=words,
        spaces=[True, True, False, False],
        sent_starts=[True, False, True, False],
    )
    annotated.cats = {"good": 0.25, "bad": 1 / 3}
    annotated.ents = [Span(annotated, 0, 1, "PER"), Span(annotated, 2, 3, "PER")]
    write(annotated, "tagger", [TAGS])
    write(annotated, "aligner", [CELLS, NO_CELLS, WINDOWS])
    write(annotated, "chooser", [EMPTY])
    write(annotated, "silent", [])
    tree = Doc(VOCAB, words=[*words, " "], spaces=[False, True, True, True, True])
    write(tree, "encoder", [TREE])
    nothing_found = Doc(VOCAB, words=["\n", "é", "👍"], ents=["O", "O", "O"])
    return [annotated, tree, nothing_found, Doc(VOCAB, words=["one"]), Doc(VOCAB)]


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray):
        equal = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return equal and ours.tobytes() == theirs.tobytes()
    if isinstance(ours, (list, tuple)):
        together = type(ours) is type(theirs) and len(ours) == len(theirs)
        return together and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and ours == theirs


def check_same(doc: Doc, read: Doc) -> None:
    assert read.text == doc.text
    assert [(t.idx, t.text, t.whitespace_) for t in read] == [
        (t.idx, t.text, t.whitespace_) for t in doc
    ]
    assert read.cats == doc.cats
    assert read.has_annotation("ENT_IOB") == doc.has_annotation("ENT_IOB")
    assert [(e.start, e.end, e.label_) for e in read.ents] == [
        (e.start, e.end, e.label_) for e in doc.ents
    ]
    assert [t.is_sent_start for t in read][1:] == [t.is_sent_start for t in doc][1:]
    assert set(read._.latent) == set(doc._.latent)
    for name, annotation in doc._.latent.items():
        assert len(read._.latent[name].spans) == len(annotation.spans)
        for ours, theirs in zip(annotation.spans, read._.latent[name].spans):
            for field in fields(SpanStructure):
                pair = getattr(ours, field.name), getattr(theirs, field.name)
                assert same(*pair), (name, field.name, pair)


def test_the_examples_have_every_field() -> None:
    spans = [TREE, TAGS, CELLS]
    for field in fields(SpanStructure):
        values = [getattr(span, field.name) for span in spans]
        assert any(
            not (value is None or (isinstance(value, list) and not value)) for value in values
        ), field.name


def test_docs_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [Row(str(number), "", doc) for number, doc in enumerate(docs())]
    rows.insert(2, Row("failed", "What failed", error="ner: ValueError: no"))
    pq.write_table(to_table(rows, ("en_x", "1.0", "abc")), tmp_path / "made.parquet")
    read = list(read_rows(tmp_path / "made.parquet", spacy.blank("en").vocab))
    assert [row.id for row in read] == [row.id for row in rows]
    for row, again in zip(rows, read):
        assert again.error == row.error and (again.doc is None) == (row.doc is None)
        if row.doc is not None and again.doc is not None:
            assert again.text == row.doc.text
            check_same(row.doc, again.doc)
    assert read[2].text == "What failed"


def test_the_columns_are_plain() -> None:
    """Readers need neither spaCy nor this package."""
    first, second, nothing_found, *_ = to_table([Row("a", "", doc) for doc in docs()]).to_pylist()
    text = first["text"]
    assert [text[t["start"] : t["end"]] for t in first["tokens"]] == ["Mary", "sees", "John", "."]
    assert first["sent_starts"] == [0, 2] and second["sent_starts"] is None
    assert first["cats"][0] == {"label": "good", "score": 0.25}
    # The component was given one entity and did not predict the other: no probabilities.
    assert [ent["probability"] for ent in first["ents"]] == [None, None]
    assert second["ents"] is None and nothing_found["ents"] == []
    assert "silent" in first["components"]
    (tree,) = second["latent"]
    assert tree["decoded"] == [2, 0, 2] and tree["parts"][0] == [2, 1]
    assert tree["alternatives"][0]["weight"] == 0.3


def test_entities_have_the_probability_of_their_component() -> None:
    doc = Doc(VOCAB, words=["Mary", "sees"])
    doc.ents = [Span(doc, 0, 1, "PER")]
    own = {"labels": ("O", "U-PER"), "entity_probabilities": reals(0.75)}
    write(doc, "tagger", [SpanStructure(0, 2, "LinearChain", "tags", ints(1, 0), **own)])
    (row,) = to_table([Row("a", "", doc)]).to_pylist()
    assert row["ents"] == [{"start": 0, "end": 1, "label": "PER", "probability": 0.75}]


@pytest.mark.parametrize("rows", [[], [Row("a", "only failed", error="so")]])
def test_tables_without_docs_have_the_same_columns(rows: list[Row]) -> None:
    made = to_table(rows)
    assert made.schema.equals(schema()) and len(made) == len(rows)
    made.validate(full=True)


def test_spacy_trains_on_what_was_annotated(tmp_path: Path) -> None:
    rows = [Row(str(number), "", doc) for number, doc in enumerate(docs())]
    rows.insert(0, Row("failed", "What failed", error="no"))
    pq.write_table(to_table(rows), tmp_path / "made.parquet")
    nlp = spacy.blank("en")
    reader = spacy.registry.readers.get("spacy-latent.Annotated.v1")
    assert reader is read_annotated_v1
    found: list[Example] = list(reader(tmp_path)(nlp))
    assert len(found) == 5
    assert not found[0].predicted.cats and found[0].reference.cats == docs()[0].cats
    assert "tagger" in found[0].reference._.latent
    assert len(list(reader(tmp_path, limit=2)(nlp))) == 2
    assert len(list(reader(tmp_path, limit=-1)(nlp))) == 5


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(LatentError, match="latent"):
        list(read_rows(tmp_path, VOCAB))
    for path in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(LatentError, match=path.name):
            list(read_rows(path, VOCAB))
