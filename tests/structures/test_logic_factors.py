"""Projections on the hulls of logic factors, against quadratic programs over their vertices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentError, NotTractable
from spacy_latent.structures.factor_graph import ItemGraph
from spacy_latent.structures.logic_factors import (
    AtMostOne,
    Budget,
    Implication,
    LogicFactor,
    Or,
    OrOut,
    Xor,
)
from tests.structures.oracles import nearest_in_hull

# Each factor over parts 0 to 3, with a predicate on their values.
FACTORS = {
    "budget 0": (Budget([0, 1, 2, 3], 0), lambda v: v.sum() <= 0),
    "budget 2": (Budget([0, 1, 2, 3], 2), lambda v: v.sum() <= 2),
    "budget 9": (Budget([3, 2, 1, 0], 9), lambda v: True),
    "budget, negated": (Budget([0, 1, 2, 3], 2, [1]), lambda v: v[[0, 2, 3]].sum() + 1 - v[1] <= 2),
    "at most one": (AtMostOne([0, 1, 2, 3]), lambda v: v.sum() <= 1),
    "xor": (Xor([0, 1, 2, 3]), lambda v: v.sum() == 1),
    "xor, negated": (Xor([0, 1, 2, 3], [3]), lambda v: v[:3].sum() == v[3]),
    "or": (Or([0, 1, 2, 3]), lambda v: v.any()),
    "or, negated": (Or([0, 1, 2, 3], [0, 2]), lambda v: (v != [1, 0, 1, 0]).any()),
    "or with output": (OrOut([0, 1, 2], 3), lambda v: v[:3].any() == v[3]),
    "or with output, negated": (
        OrOut([0, 1, 2], 3, [1]),
        lambda v: (v[0] or not v[1] or v[2]) == v[3],
    ),
    "and": (OrOut([0, 1, 2], 3, [0, 1, 2, 3]), lambda v: v[:3].all() == v[3]),
    "implication": (Implication([0, 1, 2], 3), lambda v: v[3] or not v[:3].all()),
    "implication, negated": (Implication([0, 1, 2], 3, [1, 3]), lambda v: not v[3] or not (
        v[0] and not v[1] and v[2]
    )),
}  # fmt: skip


def vertices(name: str) -> np.ndarray:
    holds = FACTORS[name][1]
    return np.array([v for v in product([0.0, 1.0], repeat=4) if holds(np.array(v))])


def project(factor: LogicFactor, points: np.ndarray) -> np.ndarray:
    scores = torch.from_numpy(np.asarray(points, dtype=np.float64))
    solution = ItemGraph(scores.shape, [factor]).sparsemap(scores)
    assert solution.iterations <= 1
    return solution.mean.numpy()[0]


@pytest.mark.parametrize("name", FACTORS)
def test_projection_against_vertices(name: str) -> None:
    random = np.random.default_rng(0)
    corners = vertices(name)
    for scale in (0.1, 1.0, 5.0):
        for _ in range(20):
            point = random.normal(0.5, scale, size=4)
            expected = nearest_in_hull(corners, point)
            np.testing.assert_allclose(project(FACTORS[name][0], point), expected, atol=1e-7)


@pytest.mark.parametrize("name", FACTORS)
def test_forbidden_parts_are_zero(name: str) -> None:
    random = np.random.default_rng(1)
    corners = vertices(name)
    for forbidden in product([False, True], repeat=4):
        point = random.normal(0.5, 1.0, size=4)
        point[list(forbidden)] = -np.inf
        left = corners[(corners[:, list(forbidden)] == 0).all(1)]
        if len(left):
            expected = nearest_in_hull(left, np.where(forbidden, 0.0, point))
            np.testing.assert_allclose(project(FACTORS[name][0], point), expected, atol=1e-7)
        else:
            with pytest.raises(InfeasibleError):
                project(FACTORS[name][0], point)


@pytest.mark.parametrize("name", FACTORS)
def test_gradient(name: str) -> None:
    torch.manual_seed(0)
    graph = ItemGraph((4,), [FACTORS[name][0]])
    for scale in (0.3, 1.0):
        scores = (torch.randn(4, dtype=torch.float64) * scale + 0.5).requires_grad_()
        assert torch.autograd.gradcheck(lambda s: graph.sparsemap(s).mean, scores, eps=1e-7)


@pytest.mark.parametrize("name", FACTORS)
def test_the_best_values_of_one_factor_against_vertices(name: str) -> None:
    random = np.random.default_rng(2)
    corners, graph = vertices(name), ItemGraph((4,), [FACTORS[name][0]])
    for forbidden in product([False, True], repeat=4):
        left = corners[(corners[:, list(forbidden)] == 0).all(1)]
        for scale in (0.0, 1.0, 100.0):
            # Rounding gives many equal scores.
            scores = np.round(random.normal(0.0, 1.0, size=4)) * scale
            given = torch.from_numpy(np.where(forbidden, -np.inf, scores))
            if not len(left):
                with pytest.raises(InfeasibleError):
                    graph.map(given)
                continue
            best = graph.map(given).numpy()
            assert (left == best).all(1).any()
            assert best @ scores == (left @ scores).max()


def test_the_best_values_of_factors_without_a_part_in_common() -> None:
    scores = torch.tensor([[0.5, -1.0], [2.0, 3.0], [-0.5, 0.0]])
    best = ItemGraph((3, 2), [Xor([0, 1]), Budget([2, 3], 1)]).map(scores)
    assert best.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]] and best.dtype == torch.float32
    assert ItemGraph((1,), [OrOut([], 0)]).map(torch.ones(1)).tolist() == [0.0]
    assert ItemGraph((2,), []).map(torch.ones(2)).tolist() == [0.0, 0.0]
    with pytest.raises(NotTractable, match="sparsemap"):
        ItemGraph((2,), [Or([0, 1]), AtMostOne([0, 1])]).map(torch.ones(2))
    for wrong in (torch.ones(3), None, torch.tensor([torch.nan, 0.0])):
        with pytest.raises(InvalidScores):
            ItemGraph((2,), [Or([0, 1])]).map(wrong)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e27]),
)
def test_budget_meets_the_optimality_conditions(
    values: list[float], limit: int, scale: float
) -> None:
    """The solution is x = clip(w − t, 0, 1) with t ≥ 0, and x sums to the limit if t > 0."""
    point = np.array(values) * scale
    x = project(Budget(range(len(point)), limit), point)
    assert (x >= 0).all() and (x <= 1).all() and x.sum() <= limit + 1e-9
    if np.clip(point, 0, 1).sum() <= limit:
        np.testing.assert_allclose(x, np.clip(point, 0, 1), atol=1e-12)
    else:
        assert x.sum() == pytest.approx(min(limit, len(point)), abs=1e-9)
        order = np.argsort(-point)
        assert (np.diff(x[order]) <= 0).all()


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0, -3.0, 1e30])
def test_ties_share(value: float) -> None:
    x = project(Xor(range(4)), np.full(4, value))
    np.testing.assert_allclose(x, 0.25, atol=1e-15)


def test_what_is_wrong_with_a_factor() -> None:
    for factor, message in [
        (Budget([0, 1], -1), "limit.*-1"),
        (Budget([0, 1], 1.5), r"limit.*1\.5"),  # type: ignore[arg-type]
        (Budget([0, 1], np.nan), "limit.*nan"),  # type: ignore[arg-type]
        (Budget([0, 0], 1), r"parts.*\[0\]"),
        (Budget([-1, 0], 1), r"parts.*\[-1\]"),
        (Budget(np.array([False, True, True]), 1), "mask"),  # type: ignore[arg-type]
        (Budget([0, 1.7], 1), r"parts.*\[0, 1.7\]"),  # type: ignore[list-item]
        (Budget([(0, 1)], 1), r"parts.*\[\(0, 1\)\]"),  # type: ignore[list-item]
        (Xor([0, 1], 0), "negated.*0"),  # type: ignore[arg-type]
        (Or([0, 1], [2]), "negated"),
        (Implication([0], 1, [2]), "negated"),
        (Xor([0, 7]), "7"),
    ]:
        with pytest.raises(LatentError, match=message):
            ItemGraph((3,), [factor])
    with pytest.raises(InfeasibleError):
        project(Xor([]), np.zeros(1))


def test_parts_may_be_given_in_any_way() -> None:
    point = np.array([2.0, 1.0, -1.0])
    for premises, conclusion, negated in (
        (np.array([0, 1]), np.int64(2), np.array([1])),
        (torch.tensor([0, 1]), torch.tensor(2), torch.tensor([1])),
        ((i for i in (0, 1)), 2, (i for i in (1,))),
        ({0: "a", 1: "b"}, 2, {1}),
    ):
        factor = Implication(premises, conclusion, negated)  # type: ignore[arg-type]
        expected = project(Implication([0, 1], 2, [1]), point)
        np.testing.assert_array_equal(project(factor, point), expected)
    alike = Xor([0, 1], (part for part in (0,)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(project(alike, np.zeros(2)), np.zeros(2))
