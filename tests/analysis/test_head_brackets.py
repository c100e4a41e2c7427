"""Brackets of binary trees that are made from dependency trees."""

from __future__ import annotations

import random

import numpy as np

from spacy_latent import listops
from spacy_latent.analysis import brackets_of_heads
from spacy_latent.analysis.trees import random_tree


def test_gold_heads_give_the_published_brackets():
    (expressions,) = listops.generate([200], expansion=0.4, max_depth=6)
    for tokens in expressions:
        found = brackets_of_heads(listops.gold_heads(tokens))
        assert sorted(found) == sorted(listops.gold_brackets(tokens))


def test_modifiers_are_taken_one_by_one_first_those_behind():
    # Token 2 is the head of 0, 1, 3 and 5, and token 5 is the head of 4.
    assert brackets_of_heads([2, 2, 2, 2, 5, 2]) == [(4, 6), (2, 4), (2, 6), (1, 6), (0, 6)]
    assert brackets_of_heads(np.array([0])) == brackets_of_heads([]) == []


def test_what_has_gaps_is_left_out():
    # The arcs from 0 to 2 and from 1 to 3 cross. Token 0 is also the head of 1.
    assert brackets_of_heads([0, 0, 0, 1]) == [(0, 4)]


def test_words_without_a_head_and_cycles_are_taken_as_they_are():
    assert brackets_of_heads([-1, 0, -1, 2]) == [(2, 4), (0, 2)]
    assert brackets_of_heads([1, 0, 2, 2]) == [(2, 4)]


def test_a_projective_tree_gives_a_binary_tree_and_no_other_has_as_many_spans():
    rng = random.Random(0)
    projective = 0
    for _ in range(300):
        heads = random_tree(["x"] * 6, rng)
        spans = brackets_of_heads(heads)
        assert len(set(spans)) == len(spans) <= 5 and (0, 6) in spans
        yields = [{t for t in range(6) if i in ancestors(heads, t)} for i in range(6)]
        gapless = all(max(each) - min(each) + 1 == len(each) for each in yields)
        projective += gapless
        if gapless:
            assert len(spans) == 5
    assert 20 < projective < 280


def ancestors(heads, token):
    found = {token}
    while heads[token] != token:
        token = heads[token]
        found.add(token)
    return found
