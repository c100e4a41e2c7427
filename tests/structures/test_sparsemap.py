"""SparseMAP from a MAP oracle: optimality against enumeration, and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.active_set import solve_with_oracle
from spacy_latent.structures.base import SparseSolution, Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.structures.oracles import Listed, listed_subsets, listed_trees


def generic(
    structure: Structure, scores: torch.Tensor, lengths: torch.Tensor, tolerance: float = 1e-6
) -> SparseSolution:
    prepared, lengths = structure.masked(scores, lengths)
    return solve_with_oracle(structure, prepared, lengths, 500, tolerance)


def project_by_nnls(members: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the point of the hull of the rows of ``members`` that is nearest to ``scores``.

    Non-negative least squares find the weights. A row of large numbers makes them sum to 1.
    """
    heavy = 1e4
    rows = np.vstack([members.T, heavy * np.ones(len(members))])
    weights, _ = nnls(rows, np.append(scores, heavy), maxiter=20000)
    return weights / weights.sum() @ members


TREES = [
    (SpanningTree(), listed_trees()),
    (SpanningTree(single_root=True), listed_trees(single_root=True)),
    (listed_trees(projective=True), listed_trees(projective=True)),
]


@pytest.mark.parametrize("structure, listed", TREES)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_mean_against_projection_on_all_trees(structure: Structure, listed: Listed, n: int) -> None:
    torch.manual_seed(n)
    scores = torch.randn(3, n + 1, n + 1, dtype=torch.float64)
    solution = generic(structure, scores, torch.full((3,), n))
    members = listed.members(n).reshape(-1, (n + 1) ** 2)
    for b in range(3):
        own = np.where(members.any(0), scores[b].numpy().ravel(), 0.0)
        np.testing.assert_allclose(
            solution.mean[b].ravel(), project_by_nnls(members, own), atol=1e-6
        )


@pytest.mark.parametrize("structure, listed", TREES)
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("ties", [False, True])
def test_optimality_conditions(
    structure: Structure, listed: Listed, scale: float, ties: bool
) -> None:
    """The gradient s − μ gives all structures of the support the same score, and no structure a
    higher one.
    """
    torch.manual_seed(5)
    scores = torch.randn(4, 5, 5, dtype=torch.float64)
    if ties:
        scores = scores.round()
    scores = scores * scale
    scores[0, 2, 1] = -torch.inf
    lengths = torch.tensor([4, 4, 3, 2])
    solution = generic(structure, scores, lengths)
    assert (solution.gap <= 1e-6).all()
    torch.testing.assert_close(solution.weights.sum(0), torch.ones(4, dtype=torch.float64))
    assert (solution.weights >= 0).all()
    assert (solution.weights[:-1] >= solution.weights[1:]).all()
    weights = solution.weights[:, :, None, None]
    torch.testing.assert_close((weights * solution.atoms).sum(0), solution.mean)
    for b, n in enumerate(lengths.tolist()):
        members = listed.members(n).reshape(-1, (n + 1) ** 2)
        mean = solution.mean[b, : n + 1, : n + 1].numpy().ravel()
        own = scores[b, : n + 1, : n + 1].numpy().ravel()
        gradient = np.where(members > 0, own - mean, 0.0)
        values = gradient.sum(1)
        reached = np.where(mean > 0, own - mean, 0.0) @ mean
        assert values.max() - reached <= 2e-6
        for k in range(int((solution.weights[:, b] > 0).sum())):
            atom = solution.atoms[k, b, : n + 1, : n + 1].numpy().ravel()
            assert (members == atom).all(1).any()
            # Weights times this difference sum to the gap.
            assert abs(np.where(atom > 0, own - mean, 0.0).sum() - reached) <= 1e-5


@pytest.mark.parametrize(
    "structure", [SpanningTree(), listed_trees(projective=True), listed_subsets(1, 3)]
)
def test_gradients_of_mean_and_weights(structure: Structure) -> None:
    # The face of the solution is a simplex here, so the weights are unique.
    torch.manual_seed(1)
    scores = torch.randn(4, *[5] * structure.part_axes, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 3, 1, 0])

    def outputs(s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        solution = generic(structure, s, lengths, 1e-12)
        return solution.mean, solution.weights

    assert torch.autograd.gradcheck(outputs, (scores,), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("n, scale", [(8, 0.1), (12, 0.1), (12, 0.3), (20, 0.3), (20, 1.0)])
def test_gradient_of_small_scores_at_the_default_tolerance(n: int, scale: float) -> None:
    """A hundred or more trees have weight, the least of them 1e-7. Without any one of them the
    gradient is wrong.
    """
    torch.manual_seed(n)
    shape, lengths = (1, n + 1, n + 1), torch.tensor([n])
    scores = scale * torch.randn(*shape, dtype=torch.float64)
    weight, direction = torch.randn(2, *shape, dtype=torch.float64)

    def seen(s: torch.Tensor) -> torch.Tensor:
        return (SpanningTree().sparsemap(s, lengths, 3000).mean * weight).sum()

    def slope(step: float) -> float:
        return float(seen(scores + step * direction) - seen(scores - step * direction)) / 2 / step

    (gradient,) = torch.autograd.grad(seen(scores.requires_grad_()), scores)
    with torch.no_grad():
        differences = [slope(step) for step in (1e-5, 1e-6)]
    # If the two differ, trees enter or leave the support between them.
    assert differences[0] == pytest.approx(differences[1], abs=0.05)
    assert float((gradient * direction).sum()) == pytest.approx(differences[1], abs=0.05)


def test_gradient_is_zero_on_padding_and_forbidden_parts() -> None:
    scores = torch.randn(2, 4, 4, dtype=torch.float64)
    scores[0, 1, 2] = -torch.inf
    scores[1, 3, :] = torch.nan
    scores[1, :, 3] = torch.nan
    scores.requires_grad_()
    solution = SpanningTree().sparsemap(scores, torch.tensor([3, 2]))
    (solution.mean * torch.arange(32.0).view(2, 4, 4)).sum().backward()
    assert torch.isfinite(solution.mean).all() and scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0, 1, 2] == 0 and (scores.grad[1, 3] == 0).all()
    assert scores.grad[0].any()


def test_backward_refuses_to_be_differentiated_again() -> None:
    scores = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    mean = generic(SpanningTree(), scores, torch.tensor([3])).mean
    (first,) = torch.autograd.grad((mean**2).sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="sparsemap"):
        first.sum().backward()


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (0, 3)])
def test_subsets_against_projection(sizes: tuple[int, int]) -> None:
    torch.manual_seed(1)
    structure = listed_subsets(*sizes)
    scores = torch.randn(3, 5, dtype=torch.float64)
    solution = generic(structure, scores, torch.tensor([5, 4, 1]))
    for b, n in enumerate([5, 4, 1]):
        expected = project_by_nnls(structure.members(n), scores[b, :n].numpy())
        np.testing.assert_allclose(solution.mean[b, :n], expected, atol=1e-6)


def test_empty_batch_and_dtype() -> None:
    solution = SpanningTree().sparsemap(torch.zeros(0, 3, 3), torch.zeros(0, dtype=torch.int64))
    assert solution.mean.shape == (0, 3, 3) and solution.atoms.shape[1:] == (0, 3, 3)
    solution = SpanningTree().sparsemap(torch.zeros(1, 3, 3), torch.tensor([2]))
    assert solution.mean.dtype == solution.weights.dtype == solution.atoms.dtype == torch.float32


@pytest.mark.parametrize(
    "structure, shape, lengths",
    [
        (LinearChain(), (4, 3, 3), [4, 2, 0]),
        (SpanningTree(), (5, 5), [4, 2, 0]),
        (OneOfN(), (4,), [4, 2, 1]),
    ],
)
def test_structures_of_the_support_by_their_parts(
    structure: Structure, shape: tuple[int, ...], lengths: list[int]
) -> None:
    torch.manual_seed(0)
    solution = structure.sparsemap(torch.randn(3, *shape), torch.tensor(lengths))
    numbers = solution.part_numbers
    found = torch.zeros(*numbers.shape[:2], int(np.prod(shape)))
    for k, b, place in zip(*np.nonzero(numbers >= 0)):
        found[k, b, numbers[k, b, place]] += 1.0
    assert len(numbers) > 1 and torch.equal(found.view_as(solution.atoms), solution.atoms)
    assert ((numbers[:, :, :-1] >= 0) >= (numbers[:, :, 1:] >= 0)).all()
    if isinstance(structure, LinearChain):
        # Each position has one part, and the positions are in order.
        where = np.where(numbers < 0, np.arange(numbers.shape[2]), numbers // 9)
        assert (where == np.arange(numbers.shape[2])).all()


def test_parts_of_a_support_in_bfloat16() -> None:
    solution = Bits().sparsemap(
        torch.tensor([[0.5, 2.0, -1.0]], dtype=torch.bfloat16), torch.tensor([3])
    )
    chosen = [sorted(own[own >= 0].tolist()) for own in solution.part_numbers[:, 0]]
    assert sorted(chosen) == [[0, 1], [1]]


def test_the_best_chain_by_its_parts_is_that_of_map() -> None:
    torch.manual_seed(0)
    scores, lengths = torch.randn(4, 5, 3, 3, dtype=torch.float64), torch.tensor([5, 1, 0, 3])
    chain = LinearChain()
    found = chain._best_parts(scores, lengths)
    for own, expected in zip(found, Structure._best_parts(chain, scores, lengths)):
        np.testing.assert_array_equal(own, expected)


def test_refusals() -> None:
    for value in (torch.nan, torch.inf):
        bad = torch.zeros(2, 3, 3)
        bad[1, 0, 1] = value
        with pytest.raises(InvalidScores, match=r"\[1\]"):
            generic(SpanningTree(), bad, torch.tensor([2, 2]))
    with pytest.raises(InvalidScores, match="max_iter"):
        SpanningTree().sparsemap(torch.zeros(1, 3, 3), torch.tensor([2]), max_iter=0)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 7),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    projective=st.booleans(),
)
def test_trees_ignore_a_constant_added_to_a_column(
    seed: int, n: int, scale: float, projective: bool
) -> None:
    structure = listed_trees(projective=True) if projective and n < 5 else SpanningTree()
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(1, n + 1, n + 1, generator=generator, dtype=torch.float64)
    shift = scale * torch.randn(1, 1, n + 1, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([n])
    mean = structure.sparsemap(scores, lengths, tolerance=1e-10).mean
    shifted = structure.sparsemap(scores + shift, lengths, tolerance=1e-10).mean
    torch.testing.assert_close(mean, shifted, atol=1e-4, rtol=0)
    assert (mean >= 0).all() and (mean <= 1 + 1e-9).all()
    torch.testing.assert_close(mean[0, :, 1:].sum(0), torch.ones(n, dtype=torch.float64))
    # Arcs inside a set of m tokens form a forest, so there are at most m − 1.
    assert mean[0, 1:, 1:].sum() <= n - 1 + 1e-9


@pytest.mark.parametrize(
    "structure, shape",
    [
        (SpanningTree(), (6, 6)),
        (ProjectiveTree(), (6, 6)),
        (LinearChain(), (5, 3, 3)),
        (TagSequence(), (5, 3)),
    ],
)
def test_a_large_number_in_all_scores_costs_no_digits(
    structure: Structure, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    # These numbers keep all their digits beside the large one.
    scores = torch.randint(-2000, 2000, (3, *shape), dtype=torch.float64) / 1024
    lengths = torch.tensor([5, 4, 2])
    plain = structure.sparsemap(scores, lengths, tolerance=1e-12)
    moved = structure.sparsemap(scores + 1e9, lengths, tolerance=1e-12)
    torch.testing.assert_close(moved.mean, plain.mean, rtol=0, atol=1e-11)
    torch.testing.assert_close(moved.weights, plain.weights, rtol=0, atol=1e-11)
