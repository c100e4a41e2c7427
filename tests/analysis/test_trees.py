"""Statistics of trees, and control trees."""

import random

import pytest

from spacy_latent.analysis import (
    BINARY_CONTROLS,
    CONTROLS,
    bracketing_f1,
    nearest_operator,
    random_earlier_operator,
    tree_statistics,
)
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


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_controls_are_trees(name, n):
    heads = CONTROLS[name](["x"] * n, random.Random(0))
    assert sum(head == i for i, head in enumerate(heads)) == 1
    assert is_tree(tuple(0 if head == i else head + 1 for i, head in enumerate(heads)))


def test_nearest_operator_stays_inside_the_inner_list():
    words = "[MAX 2 [MIN 4 7 ] 3 ]".split()
    assert nearest_operator(words, random.Random(0)) == [0, 0, 0, 2, 2, 2, 2, 2]


def test_random_earlier_operators_are_operators():
    words = "[MAX 2 [MIN 4 7 ] 3 ]".split()
    drawn = [random_earlier_operator(words, random.Random(seed)) for seed in range(30)]
    assert all(heads[:3] == [0, 0, 0] for heads in drawn)
    assert {head for heads in drawn for head in heads[3:]} == {0, 2}
    assert random_earlier_operator(["1", "2"], random.Random(0)) == [0, 0]
    assert random_earlier_operator([], random.Random(0)) == []


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
    # Two of the three predicted spans and of the three gold spans match. Single words do not count.
    assert bracketing_f1([[(0, 3), (1, 3), (0, 1)], [(0, 2)], []], gold) == pytest.approx(2 / 3)
    assert bracketing_f1([[], [], []], gold) == bracketing_f1([], []) == 0.0
    with pytest.raises(ValueError):
        bracketing_f1([], gold)
