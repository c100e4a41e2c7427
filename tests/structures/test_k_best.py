"""The k best structures from a MAP oracle, against listing all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.base import Structure
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.structures.oracles import Listed, listed_subsets, listed_trees


def all_scores(listed: Listed, scores: torch.Tensor, n: int) -> np.ndarray:
    members = listed.members(n)
    window = tuple(slice(0, size) for size in members.shape[1:])
    own = scores[window].double().numpy()
    totals = np.where(members > 0, own, 0.0).reshape(len(members), -1).sum(1)
    return np.sort(totals[totals > -np.inf])[::-1]


CASES: list[tuple[Structure, Listed]] = [
    (SpanningTree(), listed_trees()),
    (SpanningTree(single_root=True), listed_trees(single_root=True)),
    (ProjectiveTree(), listed_trees(projective=True)),
    (listed_trees(projective=True), listed_trees(projective=True)),
    (listed_subsets(2, 2), listed_subsets(2, 2)),
    (listed_subsets(0, 3), listed_subsets(0, 3)),
]


@pytest.mark.parametrize("structure, listed", CASES)
@pytest.mark.parametrize("k", [1, 4, 40])
def test_top_k_against_enumeration(structure: Structure, listed: Listed, k: int) -> None:
    torch.manual_seed(k)
    size = 5 if structure.part_axes == 2 else 4
    scores = torch.randn(4, *[size] * structure.part_axes)
    if structure.part_axes == 2:
        scores[0, 1, 2] = -torch.inf
    lengths = torch.tensor([4, 3, 1, 0])
    best = structure.top_k(scores, lengths, k)
    assert best.z.shape == (k, *scores.shape) and best.scores.shape == (k, 4)
    for b, n in enumerate(lengths.tolist()):
        expected = all_scores(listed, scores[b], n)[:k]
        found = best.scores[: len(expected), b]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert torch.isneginf(best.scores[len(expected) :, b]).all()
        assert not best.z[len(expected) :, b].any()
        distinct = {tuple(z.flatten().tolist()) for z in best.z[: len(expected), b]}
        assert len(distinct) == len(expected)
        chosen = torch.where(best.z[: len(expected), b] > 0, scores[b], 0.0).flatten(1).sum(1)
        torch.testing.assert_close(chosen, found)


def test_ties_give_distinct_structures() -> None:
    best = SpanningTree().top_k(torch.zeros(1, 4, 4), torch.tensor([3]), 20)
    trees = {tuple(z.flatten().tolist()) for z in best.z[:16, 0]}
    assert len(trees) == 16
    assert torch.isneginf(best.scores[16:, 0]).all()


def test_refuses_k_below_one_and_infeasible_items() -> None:
    with pytest.raises(InvalidScores, match="k is 0"):
        SpanningTree().top_k(torch.zeros(1, 3, 3), torch.tensor([2]), 0)
    scores = torch.zeros(2, 3, 3)
    scores[1, :, 2] = -torch.inf
    with pytest.raises(InfeasibleError, match=r"item\(s\) 1 "):
        listed_trees().top_k(scores, torch.tensor([2, 2]), 2)
