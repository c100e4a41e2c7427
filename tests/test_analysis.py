"""Statistics of trees and their agreement with references."""

import random

import numpy as np
import pytest
import spacy
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry

from spacy_latent.analysis import (
    BINARY_CONTROLS,
    CONTROLS,
    attachment,
    bracketing_f1,
    confidence_interval,
    nearest_operator,
    tree_statistics,
)
from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError
from tests.enumeration import is_tree


def test_statistics_of_known_trees():
    chain = tree_statistics([0, 0, 1, 2])
    assert (chain.depth, chain.left_branching, chain.root_share) == (3, 0.0, 0.25)
    assert chain.arc_length == 1.0
    flat = tree_statistics([3, 3, 3, 3])
    assert (flat.depth, flat.left_branching, flat.arc_length) == (1, 1.0, 2.0)
    assert tree_statistics([0]).depth == 0
    assert tree_statistics([0, 1]).root_share == 1.0
    assert tree_statistics([]).depth == 0


def test_a_cycle_is_an_error():
    with pytest.raises(LatentError, match="cycle"):
        tree_statistics([1, 0])


def test_attachment_counts_only_what_is_asked_for():
    assert attachment([[0, 0, 1]], [[0, 0, 0]]) == pytest.approx(2 / 3)
    assert attachment([[0, 0, 1]], [[0, 0, 0]], [[True, True, False]]) == 1.0
    assert np.isnan(attachment([], []))
    with pytest.raises(LatentError, match="3 tokens"):
        attachment([[0, 0, 1]], [[0, 0]])


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_controls_are_trees(name, n):
    heads = CONTROLS[name](["x"] * n, random.Random(0))
    assert sum(head == i for i, head in enumerate(heads)) == 1
    assert is_tree(tuple(0 if head == i else head + 1 for i, head in enumerate(heads)))


def test_nearest_operator_stays_inside_the_inner_list():
    words = "[MAX 2 [MIN 4 7 ] 3 ]".split()
    assert nearest_operator(words, random.Random(0)) == [0, 0, 0, 2, 2, 2, 2, 2]


def test_interval_holds_the_share_and_narrows():
    low, high = confidence_interval(80, 100)
    assert 0.7 < low < 0.8 < high < 0.9
    assert confidence_interval(8000, 10000)[0] > low
    assert confidence_interval(0, 0) == (0.0, 1.0)


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


def test_the_second_scorer_reads_what_references_have():
    scorer = registry.get("scorers", "spacy-latent.attachment_scorer.v2")()
    predicted = tree_of(["I", "like", "big", "trees"], [2, 0, 2, 2])
    partly = Example.from_dict(
        predicted, {"heads": [1, 1, None, 0], "deps": ["s", "ROOT", "", "x"]}
    )
    assert scorer([partly]) == {"latent_uas": pytest.approx(2 / 3)}
    # "don't" is one token here and two there: its ends are not known, the others' are.
    split = ["We", "do", "n't", "like", "trees"]
    heads, deps = [3, 3, 1, 3, 3], ["nsubj", "aux", "neg", "ROOT", "obj"]
    reference = Doc(predicted.vocab, words=split, heads=heads, deps=deps, spaces=[1, 0, 1, 1, 0])
    predicted = tree_of(["We", "don't", "like", "trees"], [3, 3, 0, 2])
    assert scorer([Example(predicted, reference)]) == {"latent_uas": pytest.approx(2 / 5)}
    bare = Example(predicted, Doc(predicted.vocab, words=split, spaces=[1, 0, 1, 1, 0]))
    assert scorer([bare]) == {}


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("name", BINARY_CONTROLS)
def test_binary_controls_are_binary_trees(name, n):
    spans = BINARY_CONTROLS[name](["w"] * n, random.Random(1))
    assert len(spans) == len(set(spans)) == max(0, n - 1)
    known = {(i, i + 1) for i in range(n)} | set(spans)
    for start, end in spans:
        assert any((start, k) in known and (k, end) in known for k in range(start + 1, end))


def test_brackets_are_counted_over_all_sentences():
    gold = [[(0, 3), (0, 2), (0, 1)], [(0, 2)], []]
    assert bracketing_f1(gold, gold) == 1.0
    # Two of three spans are right, on both sides; single words do not count.
    assert bracketing_f1([[(0, 3), (1, 3), (0, 1)], [(0, 2)], []], gold) == pytest.approx(2 / 3)
    assert bracketing_f1([[], [], []], gold) == bracketing_f1([], []) == 0.0
    with pytest.raises(ValueError):
        bracketing_f1([], gold)
