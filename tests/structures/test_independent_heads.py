"""Independent heads against enumeration: a softmax for each token, and no tree."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.active_set import solve_with_oracle
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.enumeration import arcs


def members(n: int, direction: str = "any", longest: int | None = None) -> np.ndarray:
    found = []
    for heads in itertools.product(range(n + 1), repeat=n):
        pairs = [(h, m) for m, h in enumerate(heads, 1)]
        inner = [(h, m) for h, m in pairs if h]
        if any(h == m for h, m in pairs):
            continue
        if direction == "earlier" and any(h > m for h, m in inner):
            continue
        if direction == "later" and any(h < m for h, m in inner):
            continue
        if longest is None or all(abs(h - m) <= longest for h, m in inner):
            found.append(arcs(heads))
    return np.array(found)


def scores_for(sizes: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    torch.manual_seed(0)
    longest = max(sizes) + 1
    scores = scale * torch.randn(len(sizes), longest, longest, dtype=torch.float64)
    for own, n in zip(scores, sizes):
        own[n + 1 :], own[:, n + 1 :] = torch.nan, torch.nan
    return scores


@pytest.mark.parametrize("direction", ["any", "earlier", "later"])
@pytest.mark.parametrize("longest", [None, 1])
def test_everything_against_enumeration(direction: Any, longest: int | None) -> None:
    sizes = (3, 2, 0, 1)
    structure = IndependentHeads(direction, longest)
    scores, lengths = scores_for(sizes), torch.tensor(sizes)
    other = scores.flip(0)[torch.tensor([3, 2, 1, 0])] * 0.5
    best, total = structure.map(scores, lengths), structure.log_partition(scores, lengths)
    marginals, nats = structure.marginals(scores, lengths), structure.entropy(scores, lengths)
    kl, count = structure.kl(scores, other, lengths), structure.log_count(scores, lengths)
    heads, top = structure.best_heads(scores, lengths), structure.top_k(scores, lengths, 3)
    for b, n in enumerate(sizes):
        all_z = members(n, direction, longest)
        own = scores[b, : n + 1, : n + 1].numpy()
        values = (all_z * np.nan_to_num(own)).sum((1, 2))
        log_z = np.logaddexp.reduce(values)
        p = np.exp(values - log_z)
        q_values = (all_z * np.nan_to_num(other[b, : n + 1, : n + 1].numpy())).sum((1, 2))
        log_q = q_values - np.logaddexp.reduce(q_values)
        inside = np.s_[b, : n + 1, : n + 1]
        np.testing.assert_array_equal(best[inside], all_z[values.argmax()])
        np.testing.assert_allclose(total[b], log_z, atol=1e-12)
        expected = np.einsum("z,zij->ij", p, all_z)
        np.testing.assert_allclose(marginals[inside], expected, atol=1e-12)
        np.testing.assert_allclose(nats[b], -(p * np.log(p)).sum(), atol=1e-12)
        np.testing.assert_allclose(kl[b], (p * (np.log(p) - log_q)).sum(), atol=1e-12)
        np.testing.assert_allclose(count[b], np.log(len(all_z)), atol=1e-12)
        np.testing.assert_array_equal(heads[b, 1 : n + 1], all_z[values.argmax()].argmax(0)[1:])
        assert (heads[b, n + 1 :] == -1).all() and heads[b, 0] == -1
        ranked = np.sort(values)[::-1][:3]
        np.testing.assert_allclose(top.scores[: len(ranked), b], ranked, atol=1e-12)
        assert not best[b, n + 1 :].any() and not marginals[b, :, n + 1 :].any()


def test_sparsemap_is_that_of_the_active_set_with_graphs_as_atoms() -> None:
    sizes = (4, 2)
    scores, lengths = scores_for(sizes), torch.tensor(sizes)
    structure = IndependentHeads()
    solution = structure.sparsemap(scores, lengths)
    prepared, checked = structure.prepare(scores, lengths)
    masked = torch.where(structure.part_mask(prepared, checked), prepared, -torch.inf)
    expected = solve_with_oracle(structure, masked, checked, 200, 1e-9)
    torch.testing.assert_close(solution.mean, expected.mean, atol=1e-5, rtol=0)
    again = (solution.weights[..., None, None] * solution.atoms).sum(0)
    torch.testing.assert_close(again, solution.mean)
    for b, n in enumerate(sizes):
        known = {z.tobytes() for z in members(n)}
        for atom, weight in zip(solution.atoms[:, b], solution.weights[:, b]):
            if weight > 0:
                assert atom[: n + 1, : n + 1].numpy().astype("float64").tobytes() in known


def test_samples_follow_the_marginals() -> None:
    scores, lengths = scores_for((4, 1)), torch.tensor([4, 1])
    structure = IndependentHeads("earlier")
    drawn = structure.sample(scores, lengths, 4000, torch.Generator().manual_seed(1))
    # Five standard deviations of a share of 4,000.
    torch.testing.assert_close(
        drawn.mean(0), structure.marginals(scores, lengths), atol=0.04, rtol=0
    )
    found = structure.reparameterize(scores, lengths)
    assert torch.equal(structure.map(found.redrawn.nan_to_num(neginf=-1e9), lengths), found.z)


def test_gradients() -> None:
    scores = scores_for((3, 2)).nan_to_num(0.0).requires_grad_()
    lengths = torch.tensor([3, 2])
    structure = IndependentHeads()
    assert gradcheck(lambda s: structure.log_partition(s, lengths), scores)
    assert gradcheck(lambda s: structure.marginals(s, lengths), scores)
    assert gradcheck(lambda s: structure.sparsemap(s, lengths).mean, scores)


def test_graphs_may_have_cycles_and_trees_are_among_them() -> None:
    scores = torch.full((1, 3, 3), -5.0)
    scores[0, 1, 2] = scores[0, 2, 1] = 5.0
    structure, lengths = IndependentHeads(), torch.tensor([2])
    assert structure.best_heads(scores, lengths).tolist() == [[-1, 2, 1]]
    assert structure.covers(SpanningTree()) and structure.covers(ProjectiveTree(True))
    assert SpanningTree().covers(structure) is False
    assert IndependentHeads("earlier").covers(structure) is False
    # With heads before their words, every graph is a tree, and this the set of all.
    both = IndependentHeads("earlier"), SpanningTree(direction="earlier")
    sums = [each.log_partition(scores_for((4,)), torch.tensor([4])) for each in both]
    torch.testing.assert_close(*sums)


def test_what_cannot_be_scored_is_refused_with_the_item() -> None:
    scores = torch.zeros(2, 3, 3)
    scores[1, :, 2] = -torch.inf
    with pytest.raises(InfeasibleError, match=r"IndependentHeads.*item\(s\) 1 "):
        IndependentHeads().marginals(scores, torch.tensor([2, 2]))
    scores[0, 0, 1] = torch.nan
    with pytest.raises(InvalidScores, match=r"item\(s\) \[0\]"):
        IndependentHeads().map(scores, torch.tensor([2, 2]))
