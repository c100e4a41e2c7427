"""The gradient of SparseMAP if structures tie, for example because words are equal.

It depends on the whole face that contains the solution, and not on the support alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.constraints import Constraint, LineBudget, TotalBudget
from spacy_latent.structures.factor_graph import FactorGraph
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.logic_factors import AtMostOne, LogicFactor
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.structures.polytopes import Solution, solve, solve_constrained

SIZES: list[tuple[Structure, tuple[int, ...], Any]] = [
    (OneOfN(), (4,), 4),
    (KOfN(2), (4,), 4),
    (Runs(2, 2), (5,), 5),
    (TagSequence(), (3, 3), 3),
    (LinearChain(), (3, 2, 2), 3),
    (ConstituencyTree(), (4, 4), 4),
    (ProjectiveTree(), (4, 4), 3),
    (ProjectiveTree(single_root=True), (4, 4), 3),
    (SpanningTree(), (4, 4), 3),
    (OneToOneAlignment(), (3, 3), [3, 3]),
    (MonotoneAlignment(), (3, 3), [3, 3]),
]

KINDS = ["all equal", "few values", "equal rows", "equal words"]


class NoNeighbours(Constraint):
    """A constraint that allows at most one of two neighbours."""

    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        known = parts[parts >= 0].tolist()
        return [AtMostOne(pair) for pair in zip(known, known[1:])]


@dataclass
class Constrained:
    """A structure under constraints, with the unconstrained structure for the reference.

    The averages of ``structure`` are the averages of ``of`` with at most ``limit`` parts in each
    line ``(*shape)`` of ``lines``.
    """

    structure: Structure
    of: Structure
    shape: tuple[int, ...]
    size: int
    lines: list[np.ndarray]
    limit: int

    def __str__(self) -> str:
        return repr(self.structure)[:40]


def line(shape: tuple[int, ...], *parts: Any) -> np.ndarray:
    """Return an array that is 1 at these parts."""
    result = np.zeros(shape)
    for part in parts:
        result[part] = 1.0
    return result


def budget_tree(n: int, projective: bool, single_root: bool) -> Constrained:
    structure = BudgetTree(1, projective, single_root)
    shape = (n + 1, n + 1)
    lines = [line(shape, word) for word in range(1, n + 1)]
    return Constrained(structure, structure.tree, shape, n, lines, 1)


def graph(
    of: Structure,
    constraint: Constraint,
    shape: tuple[int, ...],
    lines: list[np.ndarray],
    limit: int,
) -> Constrained:
    n = shape[0] - 1 if isinstance(of, ProjectiveTree) else shape[0]
    return Constrained(
        FactorGraph({"of": of}, {"constraint": constraint}), of, shape, n, lines, limit
    )


CONSTRAINED = [
    budget_tree(3, True, False),
    budget_tree(3, True, True),
    budget_tree(4, True, False),
    budget_tree(3, False, False),
    graph(Bits(), TotalBudget(2), (4,), [line((4,), slice(None))], 2),
    graph(Bits(), NoNeighbours(), (4,), [line((4,), i, i + 1) for i in range(3)], 1),
    graph(
        ProjectiveTree(),
        LineBudget(1, but_first=True),
        (4, 4),
        [line((4, 4), word) for word in range(1, 4)],
        1,
    ),
    graph(
        LinearChain(),
        LineBudget(1, axis=2, but_first=True),
        (3, 2, 2),
        [line((3, 2, 2), (..., 1))],
        1,
    ),
]


def scores_of_equal_words(shape: tuple[int, ...], kind: str) -> Tensor:
    """Return scores that are all equal, have few values, have equal rows, or depend only on the
    word.

    In the last kind, words are equal, too.
    """
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "all equal":
        return torch.full(shape, 0.7, dtype=torch.float64)
    if kind == "few values":
        return torch.randint(0, 2, shape, generator=generator).double() * 0.3
    if kind == "equal words":
        words = torch.tensor([0, 1, 1, 2, 1, 2])[: len(scores)]
        values = torch.tensor([0.14, 1.65, 1.04], dtype=torch.float64)
        return values[words].view(-1, *[1] * (scores.dim() - 1)).expand(shape).clone()
    scores[1:] = scores[:1]
    return scores


def structures_of(structure: Structure, shape: tuple[int, ...], lengths: Tensor) -> Tensor:
    """Return all structures ``(M, P)``, as the best ones of many random scores."""
    count = 3000
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn((count, *shape), generator=generator, dtype=torch.float64)
    many = lengths.expand(count, *lengths.shape[1:])
    return structure.map(scores, many).flatten(1).unique(dim=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("structure, shape, size", SIZES, ids=lambda given: str(given)[:40])
def test_the_jacobian_is_that_of_the_face(
    structure: Structure, shape: tuple[int, ...], size: Any, kind: str
) -> None:
    lengths = torch.tensor([size])
    scores = scores_of_equal_words(shape, kind).requires_grad_()
    exact = solve(
        structures_of(structure, shape, lengths).numpy(), scores.detach().flatten().numpy()
    )
    check_jacobian(structure, scores, lengths, exact)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", CONSTRAINED, ids=str)
def test_the_jacobian_is_that_of_the_face_within_constraints(given: Constrained, kind: str) -> None:
    lengths = torch.tensor([given.size])
    scores = scores_of_equal_words(given.shape, kind).requires_grad_()
    exact = solve_constrained(
        structures_of(given.of, given.shape, lengths).numpy(),
        scores.detach().flatten().numpy(),
        np.stack(given.lines).reshape(len(given.lines), -1),
        np.full(len(given.lines), float(given.limit)),
    )
    check_jacobian(given.structure, scores, lengths, exact)


@pytest.mark.parametrize("words", [[0, 1, 2, 2], [0, 2, 1, 1, 2]], ids=str)
def test_the_jacobian_where_prices_are_not_unique(words: list[int]) -> None:
    """Newton's method reaches the boundary of the optimal prices.

    Trees tie there that have no weight in the solution. The prices of one word, or of two equal
    words, are not unique.
    """
    if len(words) == 4:
        values = [[1.0, 2.0, 0.0], [1.0, 0.0, 2.0], [1.0, 0.0, 0.0]]
    else:
        values = [[0.79, -2.07, 2.37], [-1.07, -3.06, -1.34], [1.09, 1.77, -1.03]]
    place = torch.tensor(words)
    scores = torch.tensor(values, dtype=torch.float64)[place][:, place].requires_grad_()
    given = budget_tree(len(words) - 1, True, True)
    exact = solve_constrained(
        structures_of(given.of, given.shape, torch.tensor([given.size])).numpy(),
        scores.detach().flatten().numpy(),
        np.stack(given.lines).reshape(given.size, -1),
        np.ones(given.size),
    )
    assert not exact.has_kink
    check_jacobian(given.structure, scores, torch.tensor([given.size]), exact)


def check_jacobian(
    structure: Structure, scores: Tensor, lengths: Tensor, expected: Solution
) -> None:
    """Check the mean of SparseMAP on one item, and its Jacobian. The scores must be a leaf."""
    mean = structure.sparsemap(scores[None], lengths).mean[0].flatten()
    torch.testing.assert_close(mean.detach(), torch.from_numpy(expected.mean), rtol=0, atol=1e-6)
    rows = [
        torch.autograd.grad(mean[part], scores, retain_graph=True)[0].flatten()
        for part in range(len(mean))
    ]
    assert expected.accepts(torch.stack(rows).numpy(), 1e-6)


def test_a_gradient_that_the_support_does_not_have() -> None:
    """Two sequences have the mean of all four as their average, but span a smaller face."""
    scores = torch.zeros(1, 2, 2, dtype=torch.float64, requires_grad=True)
    wanted = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    mean = TagSequence().sparsemap(scores, torch.tensor([2])).mean
    (gradient,) = torch.autograd.grad((mean - wanted).square().sum(), scores)
    expected = torch.tensor([[[-1.0, 1.0], [1.0, -1.0]]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)
