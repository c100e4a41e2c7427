"""Attachment to reference heads, against counts by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import spacy
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry

from spacy_latent.analysis import (
    attachment,
    attachment_table,
    attachments,
    edge_precision,
    reference_tree,
    without_labels,
    without_words,
)
from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError, LatentWarning


def test_attachment_counts_only_what_is_asked_for():
    assert attachment([[0, 0, 1]], [[0, 0, 0]]) == pytest.approx(2 / 3)
    assert attachment([[0, 0, 1]], [[0, 0, 0]], [[True, True, False]]) == 1.0
    assert np.isnan(attachment([], []))
    with pytest.raises(LatentError, match="3 tokens"):
        attachment([[0, 0, 1]], [[0, 0]])


def test_directed_undirected_and_by_relation() -> None:
    predicted, gold = [[1, 1, 1, 3]], [[0, 0, 1, 2]]
    found = attachments(predicted, gold, relations=[["ROOT", "x", "y", "y"]])
    # Only the third token has its head; the arc of the second points the other way.
    assert found.directed.tolist() == [[1, 4]]
    assert found.undirected.tolist() == [[2, 3]]
    assert found.relations == {"ROOT": (1, 0, 0, 0), "x": (1, 0, 1, 1), "y": (2, 1, 2, 1)}
    masked = attachments(predicted, gold, counted=[[False, True, True, False]])
    assert masked.directed.tolist() == [[1, 2]] and masked.undirected.tolist() == [[2, 2]]
    assert attachments([[]], [[]]).directed.tolist() == [[0, 0]]
    with pytest.raises(LatentError, match="3 tokens"):
        attachments([[0, 0, 0]], [[0, 0]])


def test_a_head_that_is_not_known_is_not_counted() -> None:
    found = attachments([[0, 0]], [[-1, 0]], counted=[[False, True]])
    assert found.directed.tolist() == [[1, 1]] and found.undirected.tolist() == [[1, 1]]


def split_example() -> Example:
    """Return an example in which "don't" is one predicted token and two reference tokens."""
    vocab = spacy.blank("en").vocab
    words, heads, deps = ["We", "do", "n't", "like"], [3, 3, 1, 3], ["nsubj", "aux", "neg", "ROOT"]
    reference = Doc(vocab, words=words, heads=heads, deps=deps, spaces=[1, 0, 1, 0])
    return Example(Doc(vocab, words=["We", "don't", "like"], spaces=[1, 1, 0]), reference)


def test_heads_are_moved_to_the_tokens_of_the_reference() -> None:
    tree = reference_tree(split_example())
    assert tree is not None and tree.heads.tolist() == [3, 3, 1, 3]
    assert tree.moved([2, 2, 2]).tolist() == [3, -1, -1, 3]
    # One head is two tokens of the reference, and another head is unknown.
    assert tree.moved([1, 2, -1]).tolist() == [-1, -1, -1, -1]


def test_a_table_with_intervals() -> None:
    examples = [split_example() for _ in range(30)]
    references = [tree for example in examples if (tree := reference_tree(example))]
    trees = {"right": [[2, 2, 2]] * 30, "mixed": [[2, 2, 2]] * 15 + [[0, 2, 0]] * 15}
    ways = {
        "all": without_words(references, ()),
        "some": without_words(references, ["do", "n't"]),
        "labels": without_labels(references, ["AUX", "neg", "root"]),
    }
    table = attachment_table(references, trees, ways)
    # All texts are the same, so the interval is 3/30 wide on each side, by the rule of three.
    room = {"all": (0.5, 0.4, 0.6), "some": (1.0, 0.9, 1.0), "labels": (1.0, 0.9, 1.0)}
    assert table["right"] == {way: pytest.approx(share) for way, share in room.items()}
    share, low, high = table["mixed"]["some"]
    assert share == 0.5 and 0.2 < low < 0.5 < high < 0.8
    assert table == attachment_table(references, trees, ways)
    nothing = attachment_table([], {"a": []}, {"all": []})
    assert np.isnan(nothing["a"]["all"]).all()


def test_edges_are_arcs_between_tokens_and_a_mean_over_texts() -> None:
    gold = [[0, 0, 1, 0], [0, 0]]
    every = [[True] * 4, [True] * 2]
    assert edge_precision(gold, gold, every) == 1.0
    # The first text has two of three arcs. The only arc of the second has the wrong direction.
    assert edge_precision([[0, 0, 1, 1], [1, 1]], gold, every) == pytest.approx((2 / 3 + 0) / 2)
    # Attachment also counts roots, and is a mean over tokens.
    assert attachment([[0, 0, 1, 1], [1, 1]], gold) == pytest.approx(3 / 6)
    # The last token of the first text does not count, nor does any arc from or to it.
    some = [[True, True, True, False], [True, True]]
    assert edge_precision([[0, 0, 3, 1], [0, 0]], gold, some) == pytest.approx((1 + 1) / 2)
    # Predictions with more roots and fewer arcs, texts without arcs, and a missing head.
    assert edge_precision([[0, 0, 2, 3], [0, 1]], gold, every) == pytest.approx((1 + 0) / 2)
    assert edge_precision([[0]], [[0]], [[True]]) == 1.0
    assert edge_precision([[-1, 0]], [[0, 0]], [[True, True]]) == 1.0
    assert np.isnan(edge_precision([], [], []))


def test_no_heads_no_tree() -> None:
    bare = Doc(spacy.blank("en").vocab, words=["a"])
    assert reference_tree(Example(bare.copy(), bare)) is None
    empty = Doc(bare.vocab)
    assert reference_tree(Example(empty.copy(), empty)) is None


def test_the_scorer_reads_trees_and_leaves_out_what_it_is_told():
    nlp = spacy.blank("en")
    words = ["a", "b", "]"]
    predicted = Doc(nlp.vocab, words=words)
    tree = SpanStructure(0, 3, "SpanningTree", "heads", np.array([0, 1, 2], dtype="int32"))
    write(predicted, "latent_encoder", [tree])
    reference = Doc(nlp.vocab, words=words, heads=[0, 0, 0], deps=["ROOT", "x", "x"])
    scorer = registry.get("scorers", "spacy-latent.attachment_scorer.v1")(ignore=["]"])
    scores = scorer([Example(predicted, reference)])
    assert scores == {"latent_uas": pytest.approx(2 / 3), "latent_uas_part": 1.0}
    bare = Example(Doc(nlp.vocab, words=words), reference)
    assert scorer([bare]) == {}
    # spaCy gives a word without a head itself as its head.
    partly = Doc(nlp.vocab, words=words, heads=[0, 1, 0], deps=["ROOT", "", "x"])
    assert scorer([Example(predicted, partly)]) == {"latent_uas": 0.5, "latent_uas_part": 1.0}
    empty = Example(Doc(nlp.vocab), Doc(nlp.vocab))
    assert scorer([empty, Example(predicted, reference)]) == scores


def tree_of(words: list[str], heads: list[int]) -> Doc:
    doc = Doc(spacy.blank("en").vocab, words=words)
    tree = SpanStructure(0, len(words), "SpanningTree", "heads", np.array(heads, dtype="int32"))
    write(doc, "latent_encoder", [tree])
    return doc


def test_the_second_scorer_counts_as_spacys_own():
    scorer = registry.get("scorers", "spacy-latent.attachment_scorer.v2")
    words, gold = ["I", "like", "big", "trees", "."], [1, 1, 3, 1, 1]
    deps = ["nsubj", "ROOT", "amod", "obj", "punct"]
    reference = Doc(spacy.blank("en").vocab, words=words, heads=gold, deps=deps)
    # "big" and "." are wrong.
    example = Example(tree_of(words, [2, 0, 2, 2, 1]), reference)
    parsed = Doc(reference.vocab, words=words, heads=[1, 1, 1, 1, 0], deps=deps)
    theirs = Scorer.score_deps(
        [Example(parsed, reference)],
        "dep",
        getter=lambda token, attr: token.dep_,
        ignore_labels=["punct"],
    )
    assert scorer()([example]) == {"latent_uas": 0.75} == {"latent_uas": theirs["dep_uas"]}
    assert scorer(ignore_labels=[])([example]) == {"latent_uas": 0.6}
    assert scorer(ignore_labels=["PUNCT"])([example]) == {"latent_uas": 0.75}
    assert scorer(component="other")([example]) == {}
    assert scorer()([example, Example(Doc(reference.vocab), Doc(reference.vocab))]) == {
        "latent_uas": 0.75
    }


@pytest.mark.parametrize(
    "name",
    ["attachment_scorer.v1", "attachment_scorer.v2", "tree_scorer.v1", "alignment_scorer.v1"],
)
def test_a_scorer_of_a_component_that_is_not_there_warns(name: str) -> None:
    scorer = registry.get("scorers", f"spacy-latent.{name}")(component="latent_encodr")
    doc = tree_of(["I", "like", "trees"], [1, 1, 1])
    reference = Doc(doc.vocab, words=["I", "like", "trees"], heads=[1, 1, 1], deps=["x"] * 3)
    with pytest.warns(LatentWarning, match=r"'latent_encodr'.*'latent_encoder'"):
        scores = scorer((Example(doc, reference) for _ in range(1)), labels=[])
    assert not any(score.startswith("latent") for score in scores)
    # Docs without tokens have no annotation of any component.
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        scorer([Example(Doc(doc.vocab), Doc(doc.vocab))], labels=[])


def test_the_second_scorer_reads_what_references_have():
    scorer = registry.get("scorers", "spacy-latent.attachment_scorer.v2")()
    predicted = tree_of(["I", "like", "big", "trees"], [2, 0, 2, 2])
    partly = Example.from_dict(
        predicted, {"heads": [1, 1, None, 0], "deps": ["s", "ROOT", "", "x"]}
    )
    assert scorer([partly]) == {"latent_uas": pytest.approx(2 / 3)}
    # "don't" is one predicted token and two reference tokens, so arcs from or to it do not match.
    split = ["We", "do", "n't", "like", "trees"]
    heads, deps = [3, 3, 1, 3, 3], ["nsubj", "aux", "neg", "ROOT", "obj"]
    reference = Doc(predicted.vocab, words=split, heads=heads, deps=deps, spaces=[1, 0, 1, 1, 0])
    predicted = tree_of(["We", "don't", "like", "trees"], [3, 3, 0, 2])
    assert scorer([Example(predicted, reference)]) == {"latent_uas": pytest.approx(2 / 5)}
    bare = Example(predicted, Doc(predicted.vocab, words=split, spaces=[1, 0, 1, 1, 0]))
    assert scorer([bare]) == {}
