"""Sets of words below heads, against counts by hand and by brute force."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from spacy_latent import listops
from spacy_latent.analysis import Yields, compare_yields, without_cycles
from spacy_latent.analysis.trees import random_tree
from spacy_latent.errors import LatentError

WORDS = "[MAX 2 [MIN 4 7 ] 3 ]".split()
GOLD = listops.gold_heads(WORDS)


def counts(found: Yields) -> tuple[list[list[float]], list[list[float]]]:
    return found.sets.tolist(), found.one_arc.tolist()


def compare(tree: list[int], reference: list[int] = GOLD, but: str = "") -> tuple[list, list]:
    counted = [[word != but for word in WORDS]]
    sets, arcs = counts(compare_yields([tree], [reference], counted))
    return sets[0], arcs[0]


def test_the_gold_tree_has_all_sets_but_that_of_everything() -> None:
    # The only inner list is [MIN 4 7 ].
    assert compare(GOLD) == ([1, 1, 1], [1, 1])


def test_a_bracket_may_head_its_list() -> None:
    #        [MAX 2  [MIN 4  7  ]  3  ]
    tree = [7, 7, 5, 5, 5, 7, 7, 7]
    assert compare(tree) == ([1, 1, 1], [1, 1])
    assert compare(tree, but="]") == ([1, 1, 1], [1, 1])


def test_an_argument_outside_of_its_list_is_wrong() -> None:
    # The head of 7 is [MAX, so the set below [MIN is {[MIN, 4, ]}.
    tree = [0, 0, 0, 2, 0, 2, 0, 0]
    assert compare(tree) == ([0, 1, 1], [0, 1])


def test_where_a_bracket_hangs_counts_only_if_it_is_to_count() -> None:
    # The head of the inner ] is [MAX.
    tree = [0, 0, 0, 2, 2, 0, 0, 0]
    assert compare(tree) == ([0, 1, 1], [0, 1])
    assert compare(tree, but="]") == ([1, 1, 1], [1, 1])


def test_a_chain_has_many_sets() -> None:
    chain = [0, 0, 1, 2, 3, 4, 5, 6]
    # Each word except the first and the last has a set of several words below it. The set of [MIN
    # reaches to the end.
    assert compare(chain) == ([0, 6, 1], [0, 1])
    # If ] does not count, the set of [MIN is no list either, since 3 is below it.
    assert compare(chain, but="]") == ([0, 4, 1], [0, 1])


def test_one_arc_has_no_direction() -> None:
    # The root is the word 7, inside of the inner list, and the head of [MAX is [MIN.
    #       [MAX 2  [MIN 4  7  ]  3  ]
    tree = [2, 0, 4, 4, 4, 4, 0, 0]
    # The set below [MIN is {[MIN, [MAX, 2, 3, ]}, and the set below [MAX is {[MAX, 2, 3, ]}.
    # Neither is a list, but only the arc from [MIN to [MAX joins the inner list to the rest.
    assert compare(tree) == ([0, 2, 1], [1, 1])


def test_two_arcs_to_the_rest_are_one_too_many() -> None:
    # The head of 3 is 7, so two arcs leave the inner list.
    tree = [0, 0, 0, 2, 2, 2, 4, 0]
    assert compare(tree) == ([0, 2, 1], [0, 1])


def test_a_single_list_has_nothing_to_find_and_a_digit_nothing_at_all() -> None:
    found = compare_yields([[0, 0, 1, 2], [0], []], [[0, 0, 0, 0], [0], []])
    # The two sets of the chain are no lists.
    assert counts(found) == ([[0, 2, 0], [0, 0, 0], [0, 0, 0]], [[0, 0]] * 3)
    assert counts(compare_yields([], [])) == ([], [])


def test_words_without_a_head() -> None:
    # The word 7 has no predicted head, so it is neither below [MIN nor below [MAX.
    assert compare([0, 0, 0, 2, -1, 2, 0, 0]) == ([0, 2, 1], [0, 1])
    assert compare([-1] * 8) == ([0, 0, 1], [0, 1])
    # The gold sets are unknown if a gold head is.
    assert compare(GOLD, [0, 0, 0, 2, -1, 2, 0, 0]) == ([0, 0, 0], [0, 0])


def test_several_roots() -> None:
    # The doc has two sentences. The sets of their roots do not count.
    gold = [1, 1, 1, 4, 4, 4]
    assert counts(compare_yields([gold], [gold])) == ([[0, 0, 0]], [[0, 0]])
    nested = [0, 0, 1, 3, 3, 4]
    assert counts(compare_yields([nested], [nested])) == ([[2, 2, 2]], [[2, 2]])
    # If [MIN is another root, no arc joins its list to the rest. The set of [MIN is right, and the
    # set of [MAX is no list.
    assert compare([0, 0, 2, 2, 2, 2, 0, 0]) == ([1, 2, 1], [0, 1])


def test_heads_that_are_no_trees_are_refused() -> None:
    with pytest.raises(LatentError, match="tree 1"):
        compare_yields([[0, 0], [1, 0]], [[0, 0], [0, 0]])
    with pytest.raises(LatentError, match="reference 0"):
        compare_yields([[0, 0, 0]], [[1, 2, 0]])
    with pytest.raises(LatentError, match="tree 0"):
        compare_yields([[0, 2]], [[0, 0]])
    with pytest.raises(LatentError, match="3 tokens"):
        compare_yields([[0, 0, 0]], [[0, 0]])
    with pytest.raises(ValueError):
        compare_yields([[0]], [])


def test_words_of_a_cycle_hang_on_nothing() -> None:
    # The heads 1 → 2 → 3 → 1 are a cycle. The head of 4 is in it, 5 is a root with 6 below it, and
    # 0 has no head.
    assert without_cycles([-1, 2, 3, 1, 2, 5, 5]).tolist() == [-1, -1, -1, -1, 2, 5, 5]
    assert without_cycles([]).tolist() == []
    heads = np.array([1, 0])
    without_cycles(heads)
    assert heads.tolist() == [1, 0]


# ---------------------------------------------------------------- against brute force


def under(heads: list[int], word: int) -> set[int]:
    found = set()
    for token in range(len(heads)):
        chain = [token]
        while 0 <= heads[chain[-1]] != chain[-1]:
            chain.append(heads[chain[-1]])
        if word in chain:
            found.add(token)
    return found


def reached(start: int, arcs: list[tuple[int, int]]) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        word = todo.pop()
        for arc in arcs:
            for one, other in (arc, arc[::-1]):
                if one == word and other not in seen:
                    seen.add(other)
                    todo.append(other)
    return seen


def slowly(tree: list[int], gold: list[int], counted: list[bool]) -> tuple[list, list]:
    known = {i for i, mark in enumerate(counted) if mark}
    whole = {frozenset(under(gold, i) & known) for i, head in enumerate(gold) if head == i}

    def sets(heads: list[int]) -> set[frozenset[int]]:
        found = {frozenset(under(heads, i) & known) for i in range(len(heads))}
        return {words for words in found if len(words) > 1} - whole

    arcs = [(head, i) for i, head in enumerate(tree) if 0 <= head != i]
    sides = set()
    for arc in arcs:
        rest = [other for other in arcs if other != arc]
        sides |= {frozenset(reached(end, rest) & known) for end in arc}
    ours, theirs = sets(tree), sets(gold)
    return [len(ours & theirs), len(ours), len(theirs)], [len(theirs & sides), len(theirs)]


@pytest.mark.parametrize("seed", range(6))
def test_random_forests_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    trees, golds, masks = [], [], []
    for _ in range(60):
        size = rng.randrange(9)
        gold, tree = random_tree(["x"] * size, rng), random_tree(["x"] * size, rng)
        if rng.random() < 0.4:
            tree = list(gold)
        for heads in (gold, tree):
            if rng.random() < 0.3:
                heads[:] = [i if rng.random() < 0.2 else head for i, head in enumerate(heads)]
        if size and rng.random() < 0.3:
            tree[rng.randrange(size)] = -1
        trees.append(tree)
        golds.append(gold)
        masks.append([rng.random() < 0.8 for _ in range(size)])
    sets, arcs = counts(compare_yields(trees, golds, masks))
    expected = [slowly(*each) for each in zip(trees, golds, masks)]
    assert sets == [each[0] for each in expected] and arcs == [each[1] for each in expected]


def headed_by_bracket(words: list[str], chosen: set[int]) -> list[int]:
    """Return the gold tree with ``]`` instead of the operator as the head of some lists.

    Args:
        chosen: Positions of the operators of these lists.
    """
    heads = listops.gold_heads(words)
    ends = {heads[i]: i for i, word in enumerate(words) if word == "]"}
    head_of = {op: ends[op] if op in chosen else op for op in ends}
    moved = []
    for i, head in enumerate(heads):
        op = head if words[i] == "]" else i
        if i in head_of.values() and op in ends:
            # A head of a list has the head of the outer list, or is the root.
            above = heads[op]
            moved.append(i if above == op else head_of[above])
        else:
            moved.append(head_of[op] if op in ends else head_of[head])
    return moved


@pytest.mark.parametrize("seed", range(3))
def test_another_head_of_a_list_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    words = listops.generate([150], max_depth=6, min_length=5, max_length=60, seed=seed)[0]
    golds = [listops.gold_heads(tokens) for tokens in words]
    trees = []
    for tokens in words:
        operators = [i for i, token in enumerate(tokens) if token.startswith("[")]
        trees.append(headed_by_bracket(tokens, {i for i in operators if rng.random() < 0.5}))
    assert sum(tree != gold for tree, gold in zip(trees, golds)) > 100
    for counted in (None, [[token != "]" for token in tokens] for tokens in words]):
        found = compare_yields(trees, golds, counted)
        right, ours, theirs = found.sets.sum(0)
        assert right == ours == theirs > 200
        assert found.one_arc.sum(0).tolist() == [right, right]


def test_ten_thousand_docs_take_seconds() -> None:
    rng = random.Random(0)
    trees = [random_tree(["x"] * 25, rng) for _ in range(10_000)]
    start = time.process_time()
    compare_yields(trees, trees[1:] + trees[:1])
    # This takes half a second on a slow core. Sets of words in Python would take minutes.
    assert time.process_time() - start < 10
