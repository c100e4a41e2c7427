"""Annotations are written on a Doc, and are read back as ``doc._.latent``."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from base64 import b64encode
from copy import deepcopy

import numpy as np
import pytest
import spacy
import srsly
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_model_from_config

from spacy_latent import annotations
from spacy_latent.annotations import Arc, Bracket, Cell, Entity, Item, SpanStructure
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.pipeline.latent_encoder import inspect_docs
from spacy_latent.visualize import render
from spacy_latent.visualize.terminal import format_annotation
from tests.pipeline.small_pipelines import (
    TOK2VEC,
    examples,
    initialized,
    inline_pipeline,
    latent_pipeline,
)

vocab = spacy.blank("en").vocab


def tree(start, heads, **options):
    decoded = np.array(heads, dtype="int32")
    return SpanStructure(start, start + len(heads), "SpanningTree", "heads", decoded, **options)


@pytest.fixture
def doc():
    doc = Doc(vocab, words=["a", "b", "c", "d", "e"])
    parts = np.array([[0, 1], [2, 1], [0, 2]])
    soft = {"parts": parts, "probabilities": np.array([0.25, 0.75, 1.0])}
    other = [(np.array([0, 1]), 0.4)]
    annotations.write(doc, "x", [tree(0, [2, 0], alternatives=other, **soft), tree(2, [2, 0, 0])])
    return doc


def test_heads_are_token_indices(doc):
    assert doc._.latent["x"].heads.tolist() == [1, 1, 3, 3, 4]


def test_arcs_in_the_doc(doc):
    latent = doc._.latent["x"]
    assert latent.arcs()[:2] == [Arc(1, 0, 0.75), Arc(None, 1, 1.0)]
    assert latent.arcs()[2:] == [Arc(3, 2, None), Arc(None, 3, None), Arc(None, 4, None)]
    assert latent.arcs(alternative=0) == [Arc(None, 0, 0.25), Arc(0, 1, 0.0)]
    with pytest.raises(LatentError, match='annotate = "probabilities"'):
        latent.arcs(threshold=0.5)


def test_drawing(doc):
    first, second = doc._.latent["x"].to_displacy()
    assert [word["text"] for word in first["words"]] == ["a", "b"]
    assert [word["tag"] for word in first["words"]] == ["", "root"]
    assert first["arcs"] == [{"start": 0, "end": 1, "label": "0.75", "dir": "left"}]
    assert second["arcs"] == [{"start": 0, "end": 1, "label": "", "dir": "left"}]


def test_components_do_not_disturb_each_other(doc):
    annotations.write(doc, "y", [tree(0, [0, 1])])
    annotations.write(doc, "x", [tree(1, [0, 1, 1, 1])])
    assert set(doc._.latent) == {"x", "y"}
    assert doc._.latent["x"].heads.tolist() == [-1, 1, 1, 1, 1]
    assert doc._.latent["y"].heads.tolist() == [0, 0, -1, -1, -1]
    with pytest.raises(KeyError, match="'x', 'y'"):
        doc._.latent["z"]


def test_a_structure_of_tokens_that_are_gone_is_not_shown(doc):
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
    assert doc._.latent["x"].heads.tolist() == [-1, 2, 2, 3]


def test_as_many_tokens_at_other_places_have_no_structure():
    doc = Doc(vocab, words=["ab", "c", "d"])
    annotations.write(doc, "x", [tree(0, [0, 1, 1])])
    with doc.retokenize() as retokenizer:
        retokenizer.split(doc[0], ["a", "b"], heads=[(doc[0], 1), doc[1]])
        retokenizer.merge(doc[1:3])
    assert len(doc) == 3
    assert "x" not in doc._.latent


def test_the_error_tells_tokens_that_changed_from_a_structure_that_was_not_written():
    doc = Doc(vocab, words=["a", "b", "c"])
    annotations.write(doc, "x", [tree(0, [0, 1, 1])])
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
    with pytest.raises(KeyError) as changed:
        doc._.latent["x"]
    with pytest.raises(KeyError) as never_written:
        doc._.latent["y"]
    assert "merged" in str(changed.value) and "merged" not in str(never_written.value)


def test_an_extension_of_spans_of_the_same_name_is_another_thing(doc):
    Span.set_extension("latent", default=None)
    try:
        doc[0:2]._.latent = 5
        assert doc._.latent["x"].heads.tolist() == [1, 1, 3, 3, 4]
        assert doc[0:2]._.latent == 5
    finally:
        Span.remove_extension("latent")


def test_as_doc_keeps_the_structures_inside_the_span(doc):
    part = doc[1:].as_doc(copy_user_data=True)
    assert part._.latent["x"].heads.tolist() == [-1, 2, 2, 3]


def test_a_doc_without_tokens_has_an_annotation_without_spans():
    empty = Doc(vocab)
    annotations.write(empty, "x", [])
    annotations.write(empty, "y", [])
    stored = DocBin(store_user_data=True, docs=[empty]).to_bytes()
    for found in (empty, next(DocBin().from_bytes(stored).get_docs(vocab))):
        assert list(found._.latent) == ["x", "y"]
        assert found._.latent["x"].heads.shape == (0,)
        assert found._.latent["x"].to_displacy() == []
    with pytest.raises(KeyError, match="'x', 'y'"):
        empty._.latent["z"]


def test_further_roots_do_not_start_sentences(doc):
    annotations.set_heads(doc, [tree(0, [0, 0, 1]), tree(3, [2, 0])], "x")
    assert [token.head.i for token in doc] == [0, 0, 0, 4, 4]
    assert [token.dep_ for token in doc] == ["ROOT", "latent-root", "latent", "latent", "ROOT"]
    assert [sentence.start for sentence in doc.sents] == [0, 3]


def of_kind(kind, decoded, parts=None, start=0, end=5):
    span = SpanStructure(start, end, "Some", kind, np.array(decoded, dtype="int32"))
    if parts is not None:
        span.parts = np.array(list(parts), dtype="int32")
        span.probabilities = np.array(list(parts.values()), dtype="float32")
    return span


ITEMS = of_kind("items", [1, 3], {(1,): 0.75, (3,): 0.5, (4,): 0.25})
TAGS = of_kind("tags", [2, 0, 1], {(0, 2): 0.75, (0, 1): 0.25, (1, 0): 1.0, (2, 1): 0.5}, 2, 5)
SEGMENTS = of_kind("segments", [[0, 2, 5], [2, 3, 0]], {(0, 2, 5): 0.75, (2, 3, 0): 1.0}, 1, 4)
SPANS = of_kind("spans", [[0, 1], [0, 2]], {(0, 1): 0.75, (1, 2): 0.25, (0, 2): 1.0}, 1, 4)
CELLS = of_kind("cells", [[0, 1], [1, 0]], {(0, 1): 0.75, (1, 0): 0.5, (1, 1): 0.25}, 0, 2)
CELLS.other_start, CELLS.other_end = 3, 5
CELLS.alternatives = [(np.array([[0, 0]], dtype="int32"), 0.5)]


def test_parts_that_are_no_tree(doc):
    annotations.write(doc, "x", [of_kind("parts", [[1], [3]])])
    latent = doc._.latent["x"]
    assert latent.spans[0].decoded.tolist() == [[1], [3]]
    with pytest.raises(LatentError, match="tree"):
        _ = latent.heads
    for read in (latent.arcs, latent.items, latent.brackets, lambda: latent.tags):
        with pytest.raises(LatentError, match="'parts'"):
            read()
    with pytest.raises(LatentError, match=r"displaCy.*Some"):
        latent.to_displacy()


def test_the_error_says_where_it_is(doc):
    annotations.write(doc, "x", [ITEMS])
    with pytest.raises(LatentError, match=r"'items'.*items\(\)"):
        _ = doc._.latent["x"].tags


def test_items(doc):
    annotations.write(doc, "x", [ITEMS])
    latent = doc._.latent["x"]
    assert latent.items() == [Item(1, 0.75), Item(3, 0.5)]
    assert latent.items(threshold=0.2) == [Item(1, 0.75), Item(3, 0.5), Item(4, 0.25)]
    with pytest.raises(LatentError, match="alternatives"):
        latent.items(alternative=0)
    assert latent.displacy_style == "ent"
    (drawing,) = latent.to_displacy()
    assert drawing["text"].strip() == "a b c d e"
    assert [drawing["text"][e["start"] : e["end"]] for e in drawing["ents"]] == ["b", "d"]
    assert [e["label"] for e in drawing["ents"]] == ["0.75", "0.50"]


def test_tags(doc):
    annotations.write(doc, "x", [TAGS])
    latent = doc._.latent["x"]
    assert latent.tags.tolist() == [-1, -1, 2, 0, 1]
    assert latent.displacy_style == "span"
    (drawing,) = latent.to_displacy()
    assert drawing["tokens"] == ["c", "d", "e"]
    assert [(s["start_token"], s["end_token"], s["label"]) for s in drawing["spans"]] == [
        (0, 1, "2 0.75"),
        (1, 2, "0 1.00"),
        (2, 3, "1 0.50"),
    ]
    assert len(latent.to_displacy(threshold=0.2)[0]["spans"]) == 4


def test_brackets(doc):
    annotations.write(doc, "x", [SPANS])
    latent = doc._.latent["x"]
    assert latent.brackets() == [Bracket(1, 3, 0.75), Bracket(1, 4, 1.0)]
    assert Bracket(2, 4, 0.25) in latent.brackets(threshold=0.2)
    assert latent.displacy_style == "span"
    (drawing,) = latent.to_displacy()
    assert drawing["tokens"] == ["b", "c", "d"]
    assert [(s["start_token"], s["end_token"]) for s in drawing["spans"]] == [(0, 2), (0, 3)]


def test_segments(doc):
    annotations.write(doc, "x", [SEGMENTS])
    latent = doc._.latent["x"]
    assert latent.brackets() == [Bracket(1, 3, 0.75, 5), Bracket(3, 4, 1.0, 0)]
    (drawing,) = latent.to_displacy()
    assert [(s["start_token"], s["end_token"], s["label"]) for s in drawing["spans"]] == [
        (0, 2, "5 0.75"),
        (2, 3, "0 1.00"),
    ]


def test_words_are_no_brackets_of_a_drawing(doc):
    spans = [[0, 0], [0, 1], [1, 1]]
    annotations.write(doc, "x", [of_kind("spans", spans, end=2)])
    assert len(doc._.latent["x"].brackets()) == 3
    assert len(doc._.latent["x"].to_displacy()[0]["spans"]) == 1


def test_a_graph_has_arcs_but_no_heads(doc):
    annotations.write(doc, "x", [of_kind("arcs", [[0, 1], [3, 1], [1, 2]], start=1, end=4)])
    latent = doc._.latent["x"]
    assert latent.arcs() == [Arc(None, 1, None), Arc(3, 1, None), Arc(1, 2, None)]
    assert len(latent.to_displacy()[0]["arcs"]) == 2
    with pytest.raises(LatentError, match=r"arcs\(\)"):
        _ = latent.heads


def test_cells(doc):
    annotations.write(doc, "x", [CELLS])
    latent = doc._.latent["x"]
    assert latent.cells() == [Cell(0, 4, 0.75), Cell(1, 3, 0.5)]
    assert latent.cells(threshold=0.2) == [*latent.cells(), Cell(1, 4, 0.25)]
    assert latent.cells(alternative=0) == [Cell(0, 3, 0.0)]
    with pytest.raises(LatentError, match=r"'cells'.*cells\(\)"):
        latent.arcs()
    annotations.write(doc, "x", [of_kind("cells", [[0, 1]])])
    with pytest.raises(LatentError, match=r"other_start.*other_end"):
        doc._.latent["x"].cells()


def test_cells_go_with_both_texts(doc):
    annotations.write(doc, "x", [CELLS])
    together = Doc.from_docs([Doc(vocab, words=["y", "z"]), doc])
    assert together._.latent["x"].cells() == [Cell(2, 6, 0.75), Cell(3, 5, 0.5)]
    assert doc[:].as_doc(copy_user_data=True)._.latent["x"].cells() == doc._.latent["x"].cells()
    assert "x" not in doc[:4].as_doc(copy_user_data=True)._.latent
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[3:5])
    assert "x" not in doc._.latent


@pytest.mark.parametrize("alternative", [3, 7, -1, -9])
@pytest.mark.parametrize("accessor", ["arcs", "dependencies", "to_displacy"])
def test_an_alternative_that_does_not_exist_is_refused(doc, accessor, alternative):
    """The refusal replaces an empty result, a result for index -1, or an IndexError."""
    others = [(np.array([0, 1]), 0.5), (np.array([2, 0]), 0.25), (np.array([0, 0]), 0.25)]
    labels = np.array([0, 0])
    first = tree(0, [2, 0], alternatives=others, arc_labels=labels, labels=("x",))
    first.alternative_labels = [labels] * 3
    # A shorter sentence may have fewer alternatives. It has no arcs in the missing ones.
    second = tree(2, [0], alternatives=[(np.array([0]), 1.0)], arc_labels=labels[:1])
    second.labels, second.alternative_labels = ("x",), [labels[:1]]
    annotations.write(doc, "x", [first, second])
    read = getattr(doc._.latent["x"], accessor)
    with pytest.raises(LatentError, match=rf"alternative.*{alternative}.*'x'.*0 to 2"):
        read(alternative=alternative)
    assert len(read(alternative=2)) == 2 and len(read(alternative=0)) == len(read())


@pytest.mark.parametrize("threshold", [3, -0.1, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(doc, threshold):
    annotations.write(doc, "x", [ITEMS])
    for read in (doc._.latent["x"].items, doc._.latent["x"].to_displacy):
        with pytest.raises(LatentError, match="threshold"):
            read(threshold=threshold)
    assert len(doc._.latent["x"].items(threshold=0)) == 3


def test_an_alternative_that_does_not_exist_does_not_agree_with_the_first(doc):
    span = of_kind("tags", [0, 4], end=2)
    span.labels = ("O", "B-A", "I-A", "L-A", "U-A")
    span.alternatives = [(span.decoded, 0.5), (np.array([0, 0], dtype="int32"), 0.25)]
    annotations.write(doc, "x", [span])
    latent = doc._.latent["x"]
    assert latent.differences(1) == ([Entity(1, 2, "A", None)], [])
    for read in (latent.differences, latent.entities):
        with pytest.raises(LatentError, match="0 to 1"):
            read(5)


@pytest.mark.parametrize(
    ("kind", "decoded", "accessor"),
    [
        ("heads", [2, 0], "arcs"),
        ("items", [1], "items"),
        ("spans", [[0, 1]], "brackets"),
        ("cells", [[0, 1]], "cells"),
        ("tags", [0, 4], "entities"),
    ],
)
def test_what_was_not_stored_is_no_certainty(doc, kind, decoded, accessor):
    """A part has probability None if none is stored, as with ``annotate = "map"``.

    A probability of 1 would pass any threshold of a program that reads it.
    """
    span = of_kind(kind, decoded, end=2)
    span.other_start, span.other_end = (2, 5) if kind == "cells" else (None, None)
    span.labels = ("O", "B-A", "I-A", "L-A", "U-A") if kind == "tags" else None
    span.alternatives = [(span.decoded, 0.75)]
    annotations.write(doc, "x", [span])
    latent = doc._.latent["x"]
    for found in (getattr(latent, accessor)(), getattr(latent, accessor)(alternative=0)):
        assert found and {part.probability for part in found} == {None}
    made = srsly.json_loads(srsly.json_dumps(annotations.to_json(doc, ["x"])))["x"][accessor]
    assert all(part[-1] is None for part in made)
    assert "1.00" not in format_annotation(latent) and "None" not in format_annotation(latent)
    html = render(doc, jupyter=False)
    assert "1.00" not in html and "None" not in html


def test_a_doc_with_nothing_to_choose_from_has_an_annotation_without_spans(doc):
    annotations.write(doc, "x", [])
    assert doc._.latent["x"].spans == [] and doc._.latent["x"].cells() == []
    annotations.write(doc, "x", [CELLS])
    assert len(doc._.latent["x"].cells()) == 2


@pytest.mark.parametrize("span", [ITEMS, TAGS, SPANS, SEGMENTS, CELLS], ids=lambda span: span.kind)
def test_every_kind_survives_storage_and_goes_with_its_tokens(doc, span):
    annotations.write(doc, "x", [span])
    stored = DocBin(store_user_data=True, docs=[doc]).to_bytes()
    copies = [
        Doc(vocab).from_bytes(doc.to_bytes()),
        next(DocBin().from_bytes(stored).get_docs(vocab)),
    ]
    for copy in copies:
        (found,) = copy._.latent["x"].spans
        assert (found.start, found.end, found.kind) == (span.start, span.end, span.kind)
        assert np.array_equal(found.decoded, span.decoded)
        assert np.array_equal(found.parts, span.parts)
        assert np.array_equal(found.probabilities, span.probabilities)
        assert (found.other_start, found.other_end) == (span.other_start, span.other_end)
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[1:4])
    assert "x" not in doc._.latent


def test_segments_are_stored_as_they_are_decoded():
    names = {"structure": "SemiMarkov", "scorer": "SegmentScorer", "composer": "SegmentAttention"}
    blocks = {key: {"@misc": f"spacy-latent.{name}.v1"} for key, name in names.items()}
    options = {"annotate": "probabilities", "threshold": 0.0}
    nlp = latent_pipeline("textcat", encoder={"model": {"tok2vec": TOK2VEC, **blocks}, **options})
    initialized(nlp)
    latent = nlp("I like London a lot")._.latent["latent_encoder"]
    assert [b.start for b in latent.brackets()] == [0, *(b.end for b in latent.brackets())][:-1]
    assert all(b.probability > 0 for b in latent.brackets())
    inside = np.zeros(5)
    for bracket in latent.brackets(threshold=0.0):
        inside[bracket.start : bracket.end] += bracket.probability
    assert inside == pytest.approx(np.ones(5), abs=1e-5)


def test_probabilities_of_tags_are_summed_over_the_previous_ones():
    names = {"structure": "LinearChain", "scorer": "TransitionScorer", "composer": "TagEmbedding"}
    blocks = {key: {"@misc": f"spacy-latent.{name}.v1"} for key, name in names.items()}
    options = {"annotate": "probabilities", "alternatives": 2, "threshold": 0.0}
    nlp = latent_pipeline("textcat", encoder={"model": {"tok2vec": TOK2VEC, **blocks}, **options})
    initialized(nlp)
    doc = nlp("I like London a lot")
    (span,) = doc._.latent["latent_encoder"].spans
    assert (
        span.kind == "tags"
        and span.decoded.tolist() == doc._.latent["latent_encoder"].tags.tolist()
    )
    total = np.zeros(5)
    np.add.at(total, span.parts[:, 0], span.probabilities)
    assert span.parts.shape == (40, 2) and total == pytest.approx(np.ones(5), abs=1e-5)
    assert span.alternatives[0][0].tolist() == span.decoded.tolist()


def test_a_stored_doc_can_be_read_where_no_component_was_made(doc, tmp_path):
    path = tmp_path / "doc.bin"
    path.write_bytes(doc.to_bytes())
    script = (
        "import spacy; from spacy.tokens import Doc; nlp = spacy.blank('en');"
        f"doc = Doc(nlp.vocab).from_bytes(open({str(path)!r}, 'rb').read());"
        "assert doc._.latent['x'].heads.tolist() == [1, 1, 3, 3, 4]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.parametrize("level", ["none", "map", "probabilities"])
def test_levels(level):
    nlp = latent_pipeline("textcat", encoder={"annotate": level, "alternatives": 3})
    initialized(nlp)
    doc = nlp("I like London")
    if level == "none":
        assert not doc._.latent and not doc.user_data
        return
    (span,) = doc._.latent["latent_encoder"].spans
    assert (span.probabilities is None) == (level == "map")
    weights = [weight for _, weight in span.alternatives]
    assert weights == sorted(weights, reverse=True) and len(weights) == 3
    assert span.alternatives[0][0].tolist() == span.decoded.tolist()
    if level == "probabilities":
        total = np.zeros(4)
        np.add.at(total, span.parts[:, 1], span.probabilities)
        assert total[1:] == pytest.approx(np.ones(3), abs=0.05)


def test_the_support_of_sparsemap_is_stored():
    model = {"tok2vec": TOK2VEC, "estimator": {"@misc": "spacy-latent.SparseMAP.v1"}}
    options = {"annotate": "probabilities", "alternatives": 100, "threshold": 0.0}
    nlp = latent_pipeline("textcat", encoder={"model": model, **options})
    initialized(nlp)
    (span,) = nlp("I like London")._.latent["latent_encoder"].spans
    weights = [weight for _, weight in span.alternatives]
    assert sum(weights) == pytest.approx(1.0, abs=1e-5)
    mean = np.zeros((4, 4))
    for heads, weight in span.alternatives:
        mean[heads, [1, 2, 3]] += weight
    stored = np.zeros((4, 4))
    stored[span.parts[:, 0], span.parts[:, 1]] = span.probabilities
    assert stored == pytest.approx(mean, abs=1e-5)


def test_an_unknown_level_is_refused():
    with pytest.raises(LatentError, match="annotate"):
        latent_pipeline("textcat", encoder={"annotate": "all"})


def test_inline_structures_can_be_inspected():
    nlp = inline_pipeline("textcat", "tagger")
    initialized(nlp)
    docs = inspect_docs(nlp, [example.predicted for example in examples(nlp)], alternatives=1)
    for doc in docs:
        assert set(doc._.latent) == {"textcat", "tagger"}
        assert doc._.latent["tagger"].arcs(threshold=0.0)
    (doc,) = inspect_docs(nlp.get_pipe("tagger"), [nlp.make_doc("I like it")], annotate="map")
    assert set(doc._.latent) == {"tagger"}


def test_inline_structures_are_stored_under_the_name_that_their_config_gives(tmp_path):
    nlp = inline_pipeline("textcat", "tagger")
    config = nlp.config.copy()
    for name in ("textcat", "tagger"):
        block = config["components"][name]["model"]["tok2vec"]
        block["stored_as"] = name if name == "tagger" else None
    nlp = load_model_from_config(config)
    initialized(nlp)
    nlp.to_disk(tmp_path)
    for pipeline in (nlp, spacy.load(tmp_path)):
        empty, doc, second = pipeline.pipe(["", "I like it", "You do"], batch_size=2)
        assert set(doc._.latent) == set(empty._.latent) == {"tagger"}
        assert len(doc._.latent["tagger"].heads) == 3
        assert len(second._.latent["tagger"].heads) == 2


def test_only_tags_of_entities_make_entities():
    from spacy_latent.annotations import entities_of, names_entities

    names = ("O", "B-GPE", "I-GPE", "L-GPE", "U-GPE")
    assert entities_of(np.array([1, 2, 3, 0, 4]), names) == [(0, 3, "GPE"), (4, 5, "GPE")]
    assert names_entities(names) and not names_entities(None)
    for other in (("O", "NOUN"), ("NOUN", "VERB"), ("O", "B-")):
        assert not names_entities(other)
        with pytest.raises(LatentError, match="entities"):
            entities_of(np.array([1, 0]), other)


def test_docs_with_structures_are_json(doc):
    entities = SpanStructure(
        0,
        5,
        "TagSequence",
        "tags",
        np.array([0, 4, 0, 0, 0]),
        labels=("O", "B-X", "I-X", "L-X", "U-X"),
    )
    annotations.write(doc, "y", [entities])
    found = srsly.json_loads(srsly.json_dumps(doc.to_json(underscore=["latent"])))["_"]["latent"]
    assert found["x"]["heads"] == [1, 1, 3, 3, 4]
    assert found["y"]["entities"] == [[1, 2, "X", None]]
    assert set(found) == {"x", "y"}


def stored(doc):
    """Return all fields of all structures of a doc."""
    return {
        (name, i, field): np.asarray(value, dtype=object).tolist()
        for name, latent in doc._.latent.items()
        for i, span in enumerate(latent.spans)
        for field, value in vars(span).items()
    } | {name: len(latent.spans) for name, latent in doc._.latent.items()}


def through_json(doc):
    text = srsly.json_dumps(doc.to_json(underscore=["latent"]))
    return Doc(spacy.blank("en").vocab).from_json(srsly.json_loads(text), validate=True)


KEEPS = {
    "to_json": through_json,
    "to_json in memory": lambda doc: Doc(vocab).from_json(doc.to_json(underscore=["latent"])),
    "to_bytes": lambda doc: Doc(vocab).from_bytes(doc.to_bytes(exclude=["tensor"])),
    "to_dict": lambda doc: Doc(vocab).from_dict(doc.to_dict()),
    "copy": lambda doc: doc.copy(),
    "deepcopy": deepcopy,
    "pickle": lambda doc: pickle.loads(pickle.dumps(doc)),
    "DocBin": lambda doc: next(DocBin(docs=[doc], store_user_data=True).get_docs(vocab)),
    "from_docs": lambda doc: Doc.from_docs([doc]),
    "as_doc": lambda doc: doc[:].as_doc(copy_user_data=True),
}
DROPS = {
    "to_bytes": lambda doc: Doc(vocab).from_bytes(doc.to_bytes(exclude=["user_data"])),
    "DocBin": lambda doc: next(DocBin(docs=[doc]).get_docs(vocab)),
    "as_doc": lambda doc: doc[:].as_doc(),
    "to_json": lambda doc: Doc(vocab).from_json(doc.to_json()),
}


@pytest.mark.parametrize("way", KEEPS)
def test_structures_go_where_a_doc_goes(doc, way):
    probabilities = {"parts": np.zeros((0, 2), "int32"), "probabilities": np.zeros(0, "float32")}
    pair = SpanStructure(
        *(0, 2, "OneToOneAlignment", "cells", np.array([[0, 1]])),
        other_start=2,
        other_end=5,
        labels=("é", "日本"),
        entity_probabilities=np.array([np.nan, 1 / 3]),
        **probabilities,
    )
    annotations.write(doc, "pairs", [pair])
    annotations.write(doc, "empty", [])
    before = stored(doc)
    again = KEEPS[way](doc)
    assert str(stored(again)) == str(before) == str(stored(doc))
    # Later annotations of the copy do not change the original.
    annotations.write(again, "x", [])
    assert str(stored(doc)) == str(before)


@pytest.mark.parametrize("way", DROPS)
def test_what_spacy_is_told_to_drop_is_dropped(doc, way):
    assert not DROPS[way](doc)._.latent


def test_none_and_the_doc_cleaner_of_spacy_remove_all_structures(doc):
    doc.user_data["own"] = 1
    doc._.latent = None
    assert not doc._.latent and doc.user_data == {"own": 1}
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    nlp.add_pipe("doc_cleaner", config={"attrs": {"_.latent": None}})
    nlp.initialize()
    assert not nlp("I hate Paris")._.latent


def test_json_that_does_not_have_all_is_told(doc):
    found = srsly.json_loads(srsly.json_dumps(doc.to_json(underscore=["latent"])))
    del found["_"]["latent"]["x"]["stored"]
    with pytest.warns(LatentWarning, match="'x'"):
        assert not Doc(vocab).from_json(found)._.latent
    with pytest.warns(LatentWarning, match="tokens"):
        Doc(vocab, words=["other"])._.latent = doc._.latent
    records = ([[0, 3, {}]], [[0, 3, None]], [[0, 3, {"tokens": 2}]], [[{}, [], {}]])
    packed = [b64encode(srsly.msgpack_dumps(each)).decode() for each in records]
    for broken in ("!", "AAAA", "wA==", *packed):
        found["_"]["latent"]["x"]["stored"] = broken
        with pytest.raises(LatentError, match="'x'"):
            Doc(vocab).from_json(found)
        assert gc.isenabled()
        before = doc.copy()
        with pytest.raises(LatentError, match="'x'"):
            before._.latent = found["_"]["latent"]
        assert not before._.latent
    with pytest.raises(LatentError, match="doc"):
        doc._.latent = [1, 2]
