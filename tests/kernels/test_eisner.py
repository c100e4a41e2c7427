from __future__ import annotations

import numpy as np
import pytest

from spacy_latent.kernels.simd.vector import LANES
from spacy_latent.kernels.spans.eisner import (
    best_projective_tree,
    float_workspace_size,
    integer_workspace_size,
)
from spacy_latent.kernels.spans.eisner_lanes import (
    best_trees_in_lanes,
    charts_of_trees,
    set_scores,
)
from tests.enumeration import dependency_trees, is_projective, is_tree


def solve(scores: np.ndarray, single_root: bool) -> tuple[bool, tuple[int, ...]]:
    n = len(scores) - 1
    heads = np.zeros(n + 1, dtype=np.int32)
    # Stale workspaces must not matter.
    integers = np.full(integer_workspace_size(n), 10**6, dtype=np.int32)
    floats = np.full(float_workspace_size(n), np.nan)
    feasible = best_projective_tree(scores, n, single_root, heads, integers, floats)
    assert heads[0] == -1
    return feasible, tuple(heads[1:].tolist())


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("n", range(6))
def test_is_the_best_of_all_trees(n: int, single_root: bool) -> None:
    trees = list(dependency_trees(n, projective=True, single_root=single_root))
    generator = np.random.default_rng(n)
    for forbidden in (0.0, 0.2, 0.4, 0.6) * 5:
        scores = generator.normal(size=(n + 1, n + 1))
        scores[generator.random(scores.shape) < forbidden] = -np.inf
        values = [sum(scores[h, m] for m, h in enumerate(heads, 1)) for heads in trees]
        feasible, heads = solve(scores, single_root)
        assert feasible == (max(values) > -np.inf)
        if feasible:
            assert heads == trees[int(np.argmax(values))]


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("n", [7, 8, 9, 16, 63, 130])
def test_long_sentences_across_whole_vectors(n: int, single_root: bool) -> None:
    generator = np.random.default_rng(n)
    scores = generator.normal(size=(n + 1, n + 1))
    feasible, heads = solve(scores, single_root)
    assert feasible and is_tree(heads) and is_projective(heads)
    assert not single_root or heads.count(0) == 1
    # If all arcs of a tree have far higher scores, this tree is the best.
    raised = scores.copy()
    raised[list(heads), range(1, n + 1)] += 100.0
    assert solve(raised, single_root) == (True, heads)


def test_ties_are_broken_the_same_way() -> None:
    first = solve(np.zeros((13, 13)), False)
    assert all(solve(np.zeros((13, 13)), False) == first for _ in range(3))


@pytest.mark.parametrize("single_root", [False, True])
def test_sentences_side_by_side_get_the_trees_that_each_gets_alone(single_root: bool) -> None:
    generator = np.random.default_rng(5)
    longest = 21
    charts = charts_of_trees(longest)
    heads = np.zeros((LANES, longest + 2), dtype=np.int32)
    found = np.zeros(LANES, dtype=np.bool_)
    # Longer and shorter sentences follow each other in the same lanes. Some are empty, and some
    # have no tree.
    for lengths in (
        [21, 0, 1, 2, 20, -1, 9, 5],
        [6, 5, 4, 3, 6, 6, -1, 1],
        [20, 3, 7, 0, 1, 8, 9, 20],
    ):
        items, matrices = [], np.full((LANES, (longest + 1) ** 2 + LANES), np.nan)
        for lane, n in enumerate(lengths):
            scores = generator.normal(size=(n + 1, n + 1)).round(lane % 3)
            scores[generator.random(scores.shape) < 0.15 * lane] = -np.inf
            scores[:, :1] = -np.inf
            np.fill_diagonal(scores, -np.inf)
            items.append(scores)
            if n >= 0:
                matrices[lane, : scores.size] = scores.ravel()
        rows = np.empty((2, LANES), dtype=np.int64)
        set_scores(charts, matrices, np.array(lengths), max(lengths), rows)
        stack = np.full(6 * (longest + 2), 10**6, dtype=np.int32)
        best_trees_in_lanes(
            np.array(lengths), max(lengths), single_root, charts, heads, stack, found
        )
        for lane, (n, scores) in enumerate(zip(lengths, items)):
            if n < 0:
                assert not found[lane]
                continue
            feasible, expected = solve(scores, single_root)
            assert found[lane] == feasible
            if feasible:
                assert tuple(heads[lane, 1 : n + 1].tolist()) == expected
