"""Measures of trees, against counts by hand, and the scorer that reports them."""

from __future__ import annotations

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry

from spacy_latent import listops
from spacy_latent.analysis import (
    SCORES,
    TREE_MEASURES,
    bracket_counts,
    reference_tree,
    shares,
    tree_counts,
    tree_table,
    whole,
    without_words,
)
from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError

WORDS = "[MAX 2 [MIN 4 7 ] 3 ]".split()
GOLD = [0, 0, 0, 2, 2, 2, 0, 0]
# The head of each list is its ].
OTHER = [7, 7, 5, 5, 5, 7, 7, 7]
# The head of 7 is [MAX.
WRONG = [0, 0, 0, 2, 0, 2, 0, 0]
COUNTED = [word != "]" for word in WORDS]


def test_every_measure_of_a_tree_by_another_convention() -> None:
    found = tree_counts([GOLD, OTHER, WRONG], [GOLD] * 3, [COUNTED] * 3)
    assert set(found) == set(TREE_MEASURES)
    # Six tokens count, all except ]. One of them, [MAX, is the root and has no arc.
    assert found["attachment"].tolist() == [[6, 6], [0, 6], [5, 6]]
    assert found["whole trees"].tolist() == [[1, 1], [0, 1], [0, 1]]
    assert found["undirected"].tolist() == [[5, 5], [0, 5], [4, 5]]
    assert found["yields"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 1]]
    assert found["one arc"].tolist() == [[1, 1], [1, 1], [0, 1]]


def test_predictions_that_are_no_trees_are_counted_and_references_refused() -> None:
    # [MIN and 4 are heads of each other, which is a cycle. The other heads are right.
    loop = [0, 0, 3, 2, 2, 2, 0, 0]
    found = tree_counts([loop], [GOLD], [COUNTED])
    assert found["attachment"].tolist() == [[5, 6]]
    # [MIN is still the head of 7, and has no head itself.
    assert found["yields"].tolist() == [[0, 2, 1]] and found["one arc"].tolist() == [[0, 1]]
    with pytest.raises(LatentError, match="reference 0"):
        tree_counts([GOLD], [loop])


def test_whole_texts() -> None:
    counts = np.array([[2, 2], [1, 2], [0, 0], [0, 1]], dtype="float64")
    assert whole(counts).tolist() == [[1, 1], [0, 1], [0, 0], [0, 1]]
    assert whole(np.zeros((0, 2))).tolist() == []


def example(heads: list[int] | None, words: list[str] = WORDS) -> Example:
    vocab = spacy.blank("xx").vocab
    predicted = Doc(vocab, words=words)
    if heads is not None:
        decoded = np.array([0 if h == i else h + 1 for i, h in enumerate(heads)], dtype="int32")
        write(predicted, "t", [SpanStructure(0, len(words), "Tree", "heads", decoded)])
    gold = listops.gold_heads(words)
    deps = ["ROOT" if head == i else "arg" for i, head in enumerate(gold)]
    return Example(predicted, Doc(vocab, words=words, heads=gold, deps=deps))


def test_a_table_of_several_trees() -> None:
    references = [tree for _ in range(40) if (tree := reference_tree(example(None)))]
    trees = {"gold": [GOLD] * 40, "mixed": [GOLD] * 20 + [WRONG] * 20}
    counted = without_words(references, ["]"])
    table = tree_table(references, trees, counted)
    assert all(share == (1.0, 1 - 3 / 40, 1.0) for share in table["gold"].values())
    for measure, expected in {"attachment": 11 / 12, "yields": 0.5, "whole trees": 0.5}.items():
        share, low, high = table["mixed"][measure]
        assert share == pytest.approx(expected) and low < share < high
    assert table == tree_table(references, trees, counted)
    nothing = tree_table([], {"a": []}, [])
    assert all(np.isnan(share).all() for share in nothing["a"].values())


def test_shares_leave_out_what_there_is_not() -> None:
    counts = {("a", 1): {"attachment": np.ones((3, 2))}, ("b",): {}}
    assert shares(counts, TREE_MEASURES) == {("a", 1): {"attachment": (1.0, 0.0, 1.0)}, ("b",): {}}


def test_the_scorer_names_every_measure() -> None:
    scorer = registry.get("scorers", "spacy-latent.tree_scorer.v1")
    found = scorer("t", ignore=["]"])([example(GOLD), example(OTHER), example(WRONG)])
    assert found == {
        "latent_uas": pytest.approx(11 / 18),
        "latent_whole_trees": pytest.approx(1 / 3),
        "latent_undirected": pytest.approx(9 / 15),
        "latent_yield_f": pytest.approx(2 / 3),
        "latent_one_arc": pytest.approx(2 / 3),
    }
    assert set(found) == set(SCORES.values())
    every = scorer("t")([example(OTHER)])
    # The two arcs between an operator and its ] are there, with the other direction.
    assert every["latent_undirected"] == pytest.approx(2 / 7) and every["latent_yield_f"] == 1.0
    assert scorer("t", ignore_labels=["ARG"])([example(GOLD)]) == {
        "latent_uas": 1.0,
        "latent_whole_trees": 1.0,
    }


def test_the_scorer_on_texts_that_lack_something() -> None:
    scorer = registry.get("scorers", "spacy-latent.tree_scorer.v1")("t")
    vocab = spacy.blank("xx").vocab
    empty = Example(Doc(vocab), Doc(vocab))
    bare = Example(example(GOLD).predicted, Doc(vocab, words=WORDS))
    assert scorer([]) == scorer([empty, bare, example(None)]) == {}
    assert scorer([empty, bare, example(GOLD)])["latent_yield_f"] == 1.0
    # Without one gold head, the gold sets of words are unknown. The other heads still count.
    heads = [0, 0, 0, 2, None, 2, 0, 0]
    partly = Example.from_dict(
        example(GOLD).predicted, {"heads": heads, "deps": [*["x"] * 4, "", *["x"] * 3]}
    )
    assert scorer([partly]) == {
        "latent_uas": 1.0,
        "latent_whole_trees": 1.0,
        "latent_undirected": 1.0,
    }


def test_the_scorer_with_other_tokens() -> None:
    """Scores are right if "don't" is one predicted token and two reference tokens."""
    scorer = registry.get("scorers", "spacy-latent.tree_scorer.v1")("t")
    vocab = spacy.blank("en").vocab
    words = ["We", "do", "n't", "like", "big", "trees"]
    heads, deps = [3, 3, 1, 3, 5, 3], ["s", "aux", "neg", "ROOT", "amod", "obj"]
    reference = Doc(vocab, words=words, heads=heads, deps=deps, spaces=[1, 0, 1, 1, 1, 0])
    predicted = Doc(vocab, words=["We", "don't", "like", "big", "trees"])
    decoded = np.array([3, 3, 0, 5, 3], dtype="int32")
    write(predicted, "t", [SpanStructure(0, 5, "Tree", "heads", decoded)])
    found = scorer([Example(predicted, reference)])
    assert found["latent_uas"] == pytest.approx(4 / 6) and found["latent_whole_trees"] == 0.0
    # {big, trees} is found and {do, n't} is not. The predicted root does not have all words below
    # it.
    assert found["latent_yield_f"] == pytest.approx(2 * 1 / (2 + 2))
    assert found["latent_one_arc"] == 0.5


def test_binary_trees() -> None:
    gold = listops.gold_brackets(WORDS)
    lists = [(2, 6)]
    # The inner list is combined from its right end, and the rest as in the published files.
    other = [(4, 6), (3, 6), (2, 6), (0, 2), (0, 6), (0, 7), (0, 8)]
    # The inner list is combined without its ].
    without = [(2, 4), (2, 5), (0, 2), (0, 5), (0, 6), (0, 7), (0, 8)]
    apart = [(0, 3), (3, 5), (0, 2), (0, 5), (0, 6), (0, 7), (0, 8)]
    found = bracket_counts([gold, other, without, apart], [gold] * 4, [lists] * 4, [COUNTED] * 4)
    assert found["spans"].tolist() == [[7, 7, 7], [5, 7, 7], [6, 7, 7], [4, 7, 7]]
    assert found["whole trees"].tolist() == [[1, 1], [0, 1], [0, 1], [0, 1]]
    assert found["lists"].tolist() == [[1, 1], [1, 1], [1, 1], [0, 1]]
    one = bracket_counts([[]], [[]], [[]], [[True]])
    assert one["spans"].tolist() == [[0, 0, 0]] and one["whole trees"].tolist() == [[0, 0]]
