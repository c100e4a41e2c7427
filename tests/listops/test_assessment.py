"""Reports on ListOps have the right figures for pipelines whose predictions are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc

from spacy_latent import listops
from spacy_latent.analysis.figures import plain
from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError
from spacy_latent.listops.assessment import assess_listops, only_component
from spacy_latent.models.inspection import latent_models, latent_module
from tests.pipeline.small_pipelines import TOK2VEC

MARGINALS = {"@misc": "spacy-latent.Marginals.v1"}
FLAT, NESTED, DEEP = "[MAX 2 9 3 ]", "[MAX 2 [MIN 4 7 ] 3 ]", "[MAX 2 [MIN 4 [MED 7 8 ] ] ]"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "few.tsv"
    listops.write(path, [text.split() for text in (FLAT, NESTED, DEEP)])
    return path


class Written:
    """A component that writes given trees and values.

    Args:
        heads: function of the words of a doc that returns their heads.
        spans: function of the words of a doc that returns the spans of a binary tree.
        value: function of the words of a doc that returns its category.
    """

    def __init__(self, heads: Any = None, spans: Any = None, value: Any = listops.evaluate) -> None:
        self.heads, self.spans, self.value = heads, spans, value

    def __call__(self, doc: Doc) -> Doc:
        words = [token.text for token in doc]
        if self.heads is not None:
            heads = self.heads(words)
            decoded = [0 if head == i else head + 1 for i, head in enumerate(heads)]
            made = SpanStructure(0, len(doc), "Tree", "heads", np.array(decoded, dtype="int32"))
            write(doc, "tree", [made])
        if self.spans is not None:
            rows = np.array([(start, end - 1) for start, end in self.spans(words)])
            write(doc, "tree", [SpanStructure(0, len(doc), "Tree", "spans", rows)])
        if self.value is not None:
            doc.cats = {label: float(label == str(self.value(words))) for label in "0123456789"}
        return doc


def pipeline(**options: Any) -> Language:
    nlp = spacy.blank("xx")
    nlp._components.append(("written", Written(**options)))
    return nlp


def own(nlp: Language, corpus: Path, depth: str = "all") -> dict[str, Any]:
    figures = assess_listops({"it": nlp}, {"few": corpus}).figures
    found: dict[str, Any] = figures["corpora"]["few"]["by_depth"][depth]["models"]["it"]
    return {measure: share[0] for measure, share in found.items()}


def brackets_first(words: list[str]) -> list[int]:
    """Return gold heads, except that ``]`` is the head of each inner list."""
    heads = listops.gold_heads(words)
    ends = {heads[i]: i for i, word in enumerate(words) if word == "]" and heads[i]}
    moved = [ends.get(head, head) for head in heads]
    for op, end in ends.items():
        moved[op], moved[end] = end, ends.get(heads[op], heads[op])
    return moved


def test_gold_trees_and_those_of_another_convention(corpus: Path) -> None:
    found = own(pipeline(heads=listops.gold_heads), corpus)
    assert found == dict.fromkeys(found, 1.0) and len(found) == 7
    found = own(pipeline(heads=brackets_first, value=lambda words: 9), corpus)
    assert found["yields"] == found["one arc"] == 1.0
    # Only the flat list has its gold tree, and only its value is 9.
    assert found["whole trees"] == found["accuracy"] == pytest.approx(1 / 3)
    assert found["attachment"] == pytest.approx((4 + 3 + 2) / (4 + 6 + 7))


def test_depths_are_apart(corpus: Path) -> None:
    nlp = pipeline(heads=lambda words: [0] * len(words))
    shares = {depth: own(nlp, corpus, depth)["whole trees"] for depth in ("1", "2", "3", "all")}
    assert shares == {"1": 1.0, "2": 0.0, "3": 0.0, "all": pytest.approx(1 / 3)}
    figures = assess_listops({"it": nlp}, {"few": corpus}).figures
    part = figures["corpora"]["few"]
    assert (part["expressions"], part["tokens"], part["depths"]) == (3, [5, 10], [1, 2, 3])
    controls = part["by_depth"]["all"]["controls"]
    own_row = part["by_depth"]["all"]["models"]["it"]
    assert controls["flat"] == {m: s for m, s in own_row.items() if m != "accuracy"}
    # A flat list has no list inside of it, so that there is no yield to count.
    assert np.isnan(part["by_depth"]["1"]["controls"]["flat"]["yields"]).all()
    json.dumps(plain(figures), allow_nan=False)


def test_binary_trees_are_judged_by_their_spans(corpus: Path) -> None:
    found = own(pipeline(spans=listops.gold_brackets), corpus)
    assert found == {"accuracy": 1.0, "spans": 1.0, "whole trees": 1.0, "lists": 1.0}
    right = pipeline(spans=lambda words: [(i, len(words)) for i in range(len(words) - 1)])
    figures = assess_listops({"it": right}, {"few": corpus}).figures
    assert set(figures["brackets"]) == {
        *("tree", "left-branching", "right-branching", "balanced", "random merges")
    }
    assert figures["brackets"]["tree"] == figures["brackets"]["right-branching"] < 0.5
    assert "attachment" not in figures


def test_several_pipelines_of_which_one_has_no_trees(corpus: Path) -> None:
    models = {"heads": pipeline(heads=listops.gold_heads), "none": pipeline()}
    models["spans"] = pipeline(spans=listops.gold_brackets, value=None)
    found = assess_listops(models, {"few": corpus, "again": corpus})
    assert found.component == "tree" and found.kind == "heads" and len(found.examples) == 3
    part = found.figures["corpora"]["again"]["by_depth"]["all"]
    assert set(part["models"]["none"]) == {"accuracy"} and "accuracy" in part["models"]["heads"]
    assert set(part["models"]["spans"]) == {"spans", "whole trees", "lists"}
    assert {"flat", "left-branching"} <= set(part["controls"])
    assert found.figures["models"]["none"] == {"component": None, "kind": ""}


def test_heads_that_are_no_tree_count_what_is_right_in_them(corpus: Path) -> None:
    """Heads may form cycles if a model chooses the head of each token independently."""

    def loop(words: list[str]) -> list[int]:
        heads = listops.gold_heads(words)
        heads[0], heads[1] = 1, 0
        return heads

    found = own(pipeline(heads=loop), corpus)
    assert found["attachment"] == pytest.approx(14 / 17) and found["whole trees"] == 0.0


def test_what_cannot_be_judged_is_named(corpus: Path, tmp_path: Path) -> None:
    nlp = pipeline(heads=listops.gold_heads)
    with pytest.raises(LatentError, match="'other'"):
        assess_listops({"it": nlp}, {"few": corpus}, component="other")
    with pytest.raises(LatentError, match=r"other.tsv"):
        assess_listops({"it": nlp}, {"few": tmp_path / "other.tsv"})
    with pytest.raises(LatentError, match="corpus"):
        assess_listops({"it": nlp}, {})
    docs = [Doc(nlp.vocab, words=["a"]) for _ in range(2)]
    for name in ("a", "b"):
        write(docs[0], name, [SpanStructure(0, 1, "Tree", "heads", np.zeros(1, dtype="int32"))])
    with pytest.raises(LatentError, match=r"a, b.*--component"):
        only_component(docs)
    with pytest.raises(LatentError, match="component"):
        only_component(docs[1:])
    write(docs[0], "a", [])


# ---------------------------------------------------------------- a pipeline with a latent layer


@pytest.fixture(scope="module")
def random_model() -> Language:
    """An untrained pipeline, which predicts with marginals."""
    nlp = spacy.blank("xx")
    nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC, "estimator": MARGINALS}})
    for label in listops.CATEGORIES:
        nlp.get_pipe("latent_textcat").add_label(label)  # type: ignore[attr-defined]
    nlp.initialize()
    return nlp


def test_values_are_those_of_the_best_tree(random_model: Language, tmp_path: Path) -> None:
    nlp, path = random_model, tmp_path / "some.tsv"
    words = listops.generate([60], max_depth=4, min_length=8, max_length=20, seed=3)[0]
    listops.write(path, words)
    (node,) = latent_models(nlp.get_pipe("latent_textcat").model)  # type: ignore[attr-defined]
    layer = latent_module(node).latent
    found = assess_listops({"it": nlp}, {"some": path})
    row = found.figures["corpora"]["some"]["by_depth"]["all"]["models"]["it"]
    # Compute the expected figures with the MAP tree of the scores in place of the marginals.
    estimator = layer.estimator
    assert not estimator.hard_at_prediction
    layer.estimator = type(estimator)(prediction="map")
    try:
        best = list(nlp.pipe(Doc(nlp.vocab, words=tokens) for tokens in words))
    finally:
        layer.estimator = estimator
    values = [max(doc.cats, key=lambda label: doc.cats[label]) for doc in best]
    gold = [str(listops.evaluate(tokens)) for tokens in words]
    assert row["accuracy"][0] == np.mean([a == b for a, b in zip(values, gold)])
    for example, doc in zip(found.examples, best):
        theirs = doc._.latent["latent_textcat"].heads
        assert np.array_equal(example.predicted._.latent["latent_textcat"].heads, theirs)
    assert {"gold", "nearest operator", "flat", "random tree"} == set(row["accuracy_with"])
