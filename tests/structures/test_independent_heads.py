"""Independent heads: tests beyond the contract, which test_contract.py checks."""

from __future__ import annotations

import pytest
import torch

from spacy_latent.structures import items, row_choices
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.results import SparseSolution
from spacy_latent.structures.spanning_tree import SpanningTree


def scores_for(sizes: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    torch.manual_seed(0)
    longest = max(sizes) + 1
    scores = scale * torch.randn(len(sizes), longest, longest, dtype=torch.float64)
    for own, n in zip(scores, sizes):
        own[n + 1 :], own[:, n + 1 :] = torch.nan, torch.nan
    return scores


def test_the_heads_are_those_of_the_best_graph() -> None:
    sizes = (3, 2, 0, 1)
    structure, scores, lengths = IndependentHeads(), scores_for(sizes), torch.tensor(sizes)
    heads, best = structure.best_heads(scores, lengths), structure.map(scores, lengths)
    for b, n in enumerate(sizes):
        assert torch.equal(heads[b, 1 : n + 1].long(), best[b, : n + 1, 1 : n + 1].argmax(0))
        assert (heads[b, n + 1 :] == -1).all() and heads[b, 0] == -1


def test_graphs_may_have_cycles_and_trees_are_among_them() -> None:
    scores = torch.full((1, 3, 3), -5.0)
    scores[0, 1, 2] = scores[0, 2, 1] = 5.0
    structure, lengths = IndependentHeads(), torch.tensor([2])
    assert structure.best_heads(scores, lengths).tolist() == [[-1, 2, 1]]
    assert structure.covers(SpanningTree()) and structure.covers(ProjectiveTree(True))
    assert SpanningTree().covers(structure) is False
    assert IndependentHeads("earlier").covers(structure) is False
    # If heads precede their words, no cycles are possible, so both sets have the same members.
    both = IndependentHeads("earlier"), SpanningTree(direction="earlier")
    sums = [each.log_partition(scores_for((4,)), torch.tensor([4])) for each in both]
    torch.testing.assert_close(*sums)


def test_no_item_and_no_word_have_structures_to_show() -> None:
    for batch, words in ((0, 3), (2, 0), (0, 0)):
        scores = torch.zeros(batch, words + 1, words + 1)
        found = IndependentHeads().sparsemap(scores, torch.zeros(batch, dtype=torch.int64))
        assert found.atoms.shape[1:] == scores.shape and not found.atoms.any()


def test_the_mean_alone_needs_no_structures(monkeypatch: pytest.MonkeyPatch) -> None:
    decomposed: list[torch.Size] = []

    def decompose(mean: torch.Tensor) -> SparseSolution:
        decomposed.append(mean.shape)
        return items.decompose(mean)

    monkeypatch.setattr(row_choices, "decompose", decompose)
    scores, lengths = torch.randn(2, 5, 5, requires_grad=True), torch.tensor([4, 3])
    solution = IndependentHeads().sparsemap(scores, lengths)
    solution.mean.square().sum().backward()
    assert not decomposed
    mixed = (solution.weights[:, :, None, None] * solution.atoms).sum(0)
    torch.testing.assert_close(mixed, solution.mean)
    assert solution.weights.dtype == solution.atoms.dtype == scores.dtype
    exact = solution.cast(torch.float64)
    torch.testing.assert_close(exact.weights, solution.weights.double(), atol=1e-6, rtol=0)
    assert len(decomposed) == 2


def test_weights_that_are_first_read_without_gradients_keep_theirs() -> None:
    scores, lengths = torch.randn(2, 5, 5, requires_grad=True), torch.tensor([4, 3])
    solution = IndependentHeads().sparsemap(scores, lengths)
    with torch.no_grad():
        assert len(solution.weights) > 1
    (gradient,) = torch.autograd.grad(solution.weights[0].sum(), scores)
    assert gradient.any()
