"""LP-SparseMAP of graphs of structures and logic factors."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, minimize
from spacy import registry
from thinc.api import Config
from torch import Tensor

from spacy_latent.errors import (
    IncompatiblePair,
    InfeasibleError,
    InvalidScores,
    LatentError,
    NotTractable,
)
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures import admm, factor_graph
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.constraints import Constraint, LineBudget, TotalBudget
from spacy_latent.structures.factor_graph import (
    FactorGraph,
    ItemGraph,
    StructureFactor,
    solve_graphs,
)
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.logic_factors import AtMostOne, Budget, Implication, Or, OrOut, Xor
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.released import release
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests import enumeration
from tests.structures.oracles import listed_subsets, nearest_in_hull


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) * scale


def check_gradient(graph: ItemGraph, scores: Tensor) -> None:
    def mean(s: Tensor) -> Tensor:
        return graph.sparsemap(s, 5000, 1e-10).mean

    assert torch.autograd.gradcheck(mean, scores.clone().requires_grad_(), eps=1e-6, atol=1e-5)


def dense(vertices: np.ndarray, point: np.ndarray, at_least: np.ndarray, low: np.ndarray):
    """Return the point of the hull of the rows of ``vertices`` nearest to ``point``, with at_least
    · x ≥ low.
    """
    count = len(vertices)
    result = minimize(
        lambda w: 0.5 * ((vertices.T @ w - point) ** 2).sum(),
        np.full(count, 1.0 / count),
        jac=lambda w: vertices @ (vertices.T @ w - point),
        bounds=[(0, 1)] * count,
        constraints=[
            LinearConstraint(np.ones((1, count)), 1, 1),
            LinearConstraint(at_least @ vertices.T, low, np.inf),
        ],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return vertices.T @ result.x


def test_logic_against_a_quadratic_program() -> None:
    """The relaxation of these factors is not tight: a cycle of at-most-ones, an or, a budget,
    implications.
    """
    factors = [
        AtMostOne([0, 1]),
        AtMostOne([1, 2]),
        AtMostOne([0, 2]),
        Or([2, 3, 4], [3]),
        Budget([0, 1, 2, 3, 4, 5], 2),
        Implication([4, 5], 0),
        Xor([3, 5, 1]),
    ]
    graph = ItemGraph((6,), factors)
    rows = [
        [1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [0, 0, 1, -1, 1, 0],
        [1, 1, 1, 1, 1, 1],
        [-1, 0, 0, 0, 1, 1],
        [0, 1, 0, 1, 0, 1],
    ]
    # The rows as lower bounds: on −x, on x for the or, and on both for the xor.
    at_least = np.array(
        [*(np.array(rows) * [[-1], [-1], [-1], [1], [-1], [-1], [1]]), -np.array(rows[6])]
    )
    low = np.array([-1, -1, -1, 0, -2, -1, 1, -1])
    cube = np.array(list(product([0.0, 1.0], repeat=6)))
    torch.manual_seed(0)
    for scale in (0.3, 1.0, 3.0):
        for _ in range(5):
            scores = normal(6, scale=scale)
            solution = graph.sparsemap(scores)
            assert solution.residual <= 1e-6
            expected = dense(cube, scores.numpy(), at_least, low)
            np.testing.assert_allclose(solution.mean[0].numpy(), expected, atol=2e-5)
    check_gradient(graph, scores)


@pytest.mark.parametrize("tree", [SpanningTree(), ProjectiveTree(single_root=True)])
def test_one_structure_is_its_sparsemap(tree) -> None:
    torch.manual_seed(0)
    n = 5
    parts = np.arange(36).reshape(6, 6)
    parts[tree.part_mask(torch.zeros(1, 6, 6), torch.tensor([n]))[0].numpy() == 0] = -1
    graph = ItemGraph((6, 6), [StructureFactor(tree, parts, n)])
    scores = normal(6, 6).requires_grad_()
    ours = graph.sparsemap(scores)
    expected = tree.sparsemap(scores[None], torch.tensor([n]), tolerance=1e-12)
    torch.testing.assert_close(ours.mean, expected.mean, rtol=0, atol=1e-9)
    upstream = normal(1, 6, 6)
    (gradient,) = torch.autograd.grad(ours.mean, scores, upstream)
    (other,) = torch.autograd.grad(expected.mean, scores, upstream)
    torch.testing.assert_close(gradient, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tree, n", [(SpanningTree(), 12), (ProjectiveTree(), 20)])
def test_small_scores_of_one_structure_have_its_gradient(tree, n: int) -> None:
    """Hundreds of trees have weight, some of them little."""
    torch.manual_seed(0)
    scores = normal(1, n + 1, n + 1, scale=0.1).requires_grad_()
    lengths, upstream = torch.tensor([n]), normal(1, n + 1, n + 1)
    graph = FactorGraph({"tree": tree}).sparsemap(scores, lengths)
    expected = tree.sparsemap(scores, lengths, max_iter=2000, tolerance=1e-8)
    torch.testing.assert_close(graph.mean, expected.mean, rtol=0, atol=1e-8)
    (gradient,) = torch.autograd.grad(graph.mean, scores, upstream)
    (other,) = torch.autograd.grad(expected.mean, scores, upstream)
    # Without the structures of least weight the gradient is off by 1 or more.
    torch.testing.assert_close(gradient, other, rtol=0, atol=0.01)


def test_a_structure_that_is_given_up_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admm, "FINISHING_ROUNDS", 5)
    torch.manual_seed(0)
    graph = FactorGraph({"tree": ProjectiveTree()})
    scores, lengths = normal(1, 13, 13, scale=0.1), torch.tensor([12])
    early = graph.sparsemap(scores, lengths, max_iter=1)
    solved = graph.sparsemap(scores, lengths)
    assert solved.residual == 0.0
    assert early.residual >= (early.mean - solved.mean).norm() > 1e-3


def test_one_structure_may_stand_in_several_factors() -> None:
    """Two choices of two of three parts share one part. This factor graph is a forest, so it is
    tight.
    """
    pairs = listed_subsets(2, 2)
    graph = ItemGraph(
        (5,),
        [
            StructureFactor(pairs, np.array([0, 1, 2]), 3),
            StructureFactor(pairs, np.array([2, 3, 4]), 3),
        ],
    )
    members = [v for v in product([0.0, 1.0], repeat=5) if sum(v[:3]) == 2 and sum(v[2:]) == 2]
    torch.manual_seed(0)
    for scale in (0.2, 1.0):
        scores = normal(5, scale=scale)
        expected = nearest_in_hull(np.array(members), scores.numpy())
        mean = graph.sparsemap(scores).mean[0].numpy()
        np.testing.assert_allclose(mean, expected, atol=1e-6)
        check_gradient(graph, scores)


def test_parts_of_another_shape() -> None:
    """An alignment that contains exactly one of two cells."""
    rows, columns = 2, 3
    cells = np.arange(6).reshape(rows, columns)
    graph = ItemGraph(
        (rows, columns),
        [StructureFactor(OneToOneAlignment(), cells, (rows, columns)), Xor([0, 5])],
    )
    members = np.zeros((6, 2, 3))
    for z, (first, second) in zip(members, permutations(range(3), 2)):
        z[0, first] = z[1, second] = 1
    both = np.zeros((1, 6))
    both[0, [0, 5]] = 1.0
    torch.manual_seed(0)
    for scale in (0.3, 3.0):
        scores = normal(rows, columns, scale=scale)
        mean = graph.sparsemap(scores).mean[0].numpy().ravel()
        expected = dense(
            members.reshape(6, 6),
            scores.numpy().ravel(),
            np.concatenate([both, -both]),
            np.array([1.0, -1.0]),
        )
        np.testing.assert_allclose(mean, expected, atol=2e-5)
        check_gradient(graph, scores)


def test_a_chain_whose_second_tag_is_used_only_if_it_starts() -> None:
    n, k = 3, 2
    numbers = np.arange(n * k * k).reshape(n, k, k)
    chain = LinearChain()
    scores = normal(n, k, k)
    used = chain.part_mask(scores[None], torch.tensor([n])).expand(1, n, k, k)[0].numpy()
    parts = np.where(used, numbers, -1)
    starts = [int(p) for p in parts[0, :, 1] if p >= 0]
    later = [int(p) for p in parts[1:, :, 1].ravel() if p >= 0]
    factors = [StructureFactor(chain, parts, n)]
    factors += [Or([*starts, p], [p]) for p in later]
    # The reference satisfies the constraints in expectation, because the relaxation is not tight.
    at_least = np.zeros((len(later), n * k * k))
    at_least[:, starts] = 1.0
    at_least[range(len(later)), later] -= 1.0
    members = [enumeration.transitions(t, k).ravel() for t in enumeration.tag_sequences(n, k)]
    torch.manual_seed(1)
    graph = ItemGraph((n, k, k), factors)
    for scale in (0.3, 3.0):
        scores = normal(n, k, k, scale=scale)
        mean = graph.sparsemap(scores).mean[0].numpy().ravel()
        point = np.where(used, scores.numpy(), 0.0).ravel()
        expected = dense(np.array(members), point, at_least, np.zeros(len(later)))
        np.testing.assert_allclose(mean, expected, atol=2e-5)


@pytest.mark.parametrize("projective", [False, True])
def test_a_tree_with_budgets_against_a_quadratic_program(projective: bool) -> None:
    n = 3
    members = np.array(
        [enumeration.arcs(h).ravel() for h in enumeration.dependency_trees(n, projective)]
    )
    at_least = np.zeros((n, 4, 4))
    at_least[range(n), range(1, n + 1)] = -1.0
    torch.manual_seed(0)
    for scale in (0.3, 1.0, 3.0):
        scores = normal(4, 4, scale=scale)
        scores[1] += 2 * scale
        mean = BudgetTree(1, projective).sparsemap(scores[None], torch.tensor([n])).mean[0]
        point = np.where(members.any(0), scores.numpy().ravel(), 0.0)
        expected = dense(members, point, at_least.reshape(n, -1), -np.ones(n))
        np.testing.assert_allclose(mean.numpy().ravel(), expected, atol=2e-5)


def test_batches_and_padding_change_nothing() -> None:
    torch.manual_seed(0)
    graphs = [
        ItemGraph((4,), [Xor([0, 1, 2]), AtMostOne([1, 3])]),
        ItemGraph((2,), [Implication([0], 1)]),
        ItemGraph((0,), []),
        ItemGraph((3,), [OrOut([0, 1], 2), Budget([0, 2], 1)]),
    ]
    scores = torch.full((4, 5), torch.nan, dtype=torch.float64)
    for row, graph in zip(scores, graphs):
        row[: graph.shape[0]] = normal(graph.shape[0])
    scores.requires_grad_()
    solution = solve_graphs(graphs, scores)
    for row, graph, mean in zip(scores, graphs, solution.mean):
        size = graph.shape[0]
        alone = graph.sparsemap(row[:size].detach()).mean[0]
        torch.testing.assert_close(mean[:size], alone, rtol=0, atol=1e-9)
        assert not mean[size:].any()
    (gradient,) = torch.autograd.grad(solution.mean.square().sum(), scores)
    assert torch.isfinite(gradient).all()


def test_parts_without_a_factor_do_not_exist() -> None:
    scores = torch.tensor([0.7, torch.nan, 0.2], dtype=torch.float64, requires_grad=True)
    mean = ItemGraph((3,), [Budget([0], 1)]).sparsemap(scores).mean
    assert mean.tolist() == [[0.7, 0.0, 0.0]]


def test_ties_give_the_same_answer_every_time() -> None:
    n = 4
    parts = np.arange(25).reshape(5, 5)
    np.fill_diagonal(parts, -1)
    parts[:, 0] = -1
    factors = [StructureFactor(SpanningTree(), parts, n)]
    factors += [Budget([int(p) for p in parts[h] if p >= 0], 1) for h in range(1, n + 1)]
    graph = ItemGraph((5, 5), factors)
    for scores in (torch.zeros(5, 5), torch.ones(5, 5), torch.arange(25.0).view(5, 5) // 5):
        first = graph.sparsemap(scores)
        assert first.residual <= 1e-6
        assert torch.equal(first.mean, graph.sparsemap(scores.clone()).mean)


def test_what_cannot_be_solved() -> None:
    contradictory = ItemGraph((2,), [Xor([0, 1]), Budget([0, 1], 0)])
    with pytest.raises(InfeasibleError) as error:
        solve_graphs(
            [ItemGraph((2,), [Xor([0, 1])]), contradictory], torch.zeros(2, 2), name="Both"
        )
    assert error.value.items == [1] and "Both" in str(error.value)
    # Each factor can be satisfied, but not all of them together.
    cycle = [Xor([0, 1]), Xor([1, 2]), Xor([0, 2]), Or([0, 1, 2], [0, 1]), Budget([0, 1, 2], 1)]
    with pytest.raises(InfeasibleError):
        ItemGraph((3,), cycle).sparsemap(torch.zeros(3), 5000)
    xor = ItemGraph((2,), [Xor([0, 1])])
    with pytest.raises(InfeasibleError):
        xor.sparsemap(torch.full((2,), -torch.inf))
    for bad in (torch.nan, torch.inf):
        with pytest.raises(InvalidScores, match=r"\[0\]"):
            xor.sparsemap(torch.tensor([0.0, bad]))
    with pytest.raises(InvalidScores, match="dtype"):
        xor.sparsemap(torch.tensor([0, 1]))
    with pytest.raises(InvalidScores, match="hold"):
        xor.sparsemap(torch.zeros(1))
    for most in (0, 2.5):
        with pytest.raises(InvalidScores, match="max_iter"):
            xor.sparsemap(torch.zeros(2), max_iter=most)  # type: ignore[arg-type]
    whole = FactorGraph({"tree": ProjectiveTree()}, {"few": TotalBudget(2)})
    wrong: Any
    for wrong in (0, -1, 0.5, None):
        with pytest.raises(InvalidScores, match=rf"max_iter is {wrong} "):
            whole.sparsemap(torch.zeros(1, 3, 3), torch.tensor([2]), max_iter=wrong)
    with pytest.raises(InvalidScores, match=r"scores.*ndarray"):
        xor.sparsemap(np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(LatentError, match=r"StructureFactor.*LogicFactor"):
        ItemGraph((2,), [SpanningTree()])  # type: ignore[list-item]
    diagonal = StructureFactor(SpanningTree(), np.arange(9).reshape(3, 3), 2)
    with pytest.raises(LatentError, match=r"\(0, 0\).*SpanningTree"):
        ItemGraph((3, 3), [diagonal])
    with pytest.raises(LatentError, match="axes"):
        ItemGraph((3,), [StructureFactor(SpanningTree(), np.arange(3), 2)])
    with pytest.raises(NotTractable, match="mean"):
        _ = xor.sparsemap(torch.zeros(2)).atoms


def test_half_precision_and_an_early_end() -> None:
    graph = ItemGraph((3,), [AtMostOne([0, 1]), AtMostOne([1, 2]), Xor([0, 2])])
    scores = torch.tensor([0.3, 0.9, -0.2])
    half = graph.sparsemap(scores.bfloat16())
    assert half.mean.dtype == torch.bfloat16
    early = graph.sparsemap(scores, max_iter=1)
    assert early.iterations == 1 and early.residual > 1e-6


CONFIG = """
[structure]
@misc = "spacy-latent.FactorGraph.v1"

[structure.structures]

[structure.structures.tree]
@misc = "spacy-latent.ProjectiveTree.v1"

[structure.structures.near]
@misc = "spacy-latent.SpanningTree.v1"
max_arc_length = 2

[structure.constraints]

[structure.constraints.modifiers]
@misc = "spacy-latent.LineBudget.v1"
limit = 1
but_first = true
"""


def test_a_graph_from_a_config_trains_in_a_layer() -> None:
    made = registry.resolve(Config().from_str(CONFIG))["structure"]
    assert made.parts == "arcs" and made.annotation == "heads" and made.kind == "heads"
    torch.manual_seed(0)
    scorer = registry.misc.get("spacy-latent.BiaffineScorer.v1")()(6)
    composer = registry.misc.get("spacy-latent.GraphConvolution.v1")()(6)
    layer = LatentLayer(scorer, made, SparseMAP(), composer, temperature=5.0)
    vectors = torch.randn(2, 5, 6)
    output = layer(vectors, torch.tensor([5, 3]))
    output.vectors.square().sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in layer.scorer.parameters())
    mean = output.draw.z[0].detach()
    assert (mean[:, 1:].sum(2) <= 1 + 1e-4).all() and not mean[0, 1, 4]
    with pytest.raises(IncompatiblePair, match=r"StraightThrough.*FactorGraph"):
        LatentLayer(scorer, made, StraightThrough(), composer)
    best = made.map(output.scores.detach(), torch.tensor([5, 3]))
    assert made.contains(best, torch.tensor([5, 3])).all()


@pytest.mark.parametrize("kind", ["LinearChain", "TagSequence"])
def test_a_chain_of_two_tags_with_a_budget_chooses_few_words(kind: str) -> None:
    """The example of docs/factor_graphs.md: rationales of bounded size."""
    torch.manual_seed(0)
    n, limit = 6, 2
    chain: LinearChain | TagSequence = LinearChain() if kind == "LinearChain" else TagSequence()
    axis = 2 if kind == "LinearChain" else 1
    graph = FactorGraph({"chain": chain}, {"few": LineBudget(limit, axis, but_first=True)})
    scores = normal(4, n, *[2] * (chain.part_axes - 1), scale=2.0)
    lengths = torch.full((4,), n)
    allowed = np.array([tags for tags in product((0, 1), repeat=n) if sum(tags) <= limit])
    encoded = np.stack([np.asarray(chain.encode(tags, n, num_tags=2)) for tags in allowed])
    members = torch.as_tensor(encoded.reshape(len(allowed), *scores.shape[1:]), dtype=scores.dtype)
    values = members.flatten(1) @ scores.flatten(1).T
    best = graph.map(scores, lengths)
    torch.testing.assert_close((best * scores).flatten(1).sum(1), values.max(0).values)
    assert (best[..., 1].flatten(1).sum(1) <= limit).all()
    mean = graph.sparsemap(scores, lengths).mean
    assert (mean[..., 1].flatten(1).sum(1) <= limit + 1e-5).all()
    # The local polytope contains all members, so its best point is no worse than any of them.
    objective = (mean * scores - mean**2 / 2).flatten(1).sum(1)
    assert (objective >= (values - n / 2).max(0).values - 1e-6).all()
    # Without ``but_first`` each of the two tags may have only 2 of the 6 words.
    wrong = FactorGraph({"chain": chain}, {"few": LineBudget(limit, axis, but_first=False)})
    with pytest.raises(InfeasibleError):
        wrong.sparsemap(scores, lengths)


def test_a_best_member_far_down_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor_graph, "TRIED", (1, 2))
    graph = FactorGraph({"all": Bits()}, {"few": TotalBudget(1)})
    scores = torch.full((2, 4), 5.0)
    scores[0] = -1.0
    with pytest.raises(NotTractable, match=r"\[1\]"):
        graph.map(scores, torch.tensor([4, 4]))


def test_structures_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(IncompatiblePair, match=r"FactorGraph.*ConstituencyTree"):
        FactorGraph({"one": SpanningTree(), "two": ConstituencyTree()})
    with pytest.raises(IncompatiblePair, match=r"FactorGraph.*ShiftReduce"):
        FactorGraph({"one": ConstituencyTree(), "two": ShiftReduce()})
    # Inside of a graph, a released structure would never be restricted to its first set.
    released = release(Bits(budget=1), Bits(), 3)
    with pytest.raises(IncompatiblePair, match=r"FactorGraph.*Bits.*None.*Bits.*1"):
        FactorGraph({"all": released}, {"few": TotalBudget(1)})
    with pytest.raises(LatentError, match="structures"):
        FactorGraph({})
    with pytest.raises(LatentError, match=r"'few'.*Budget"):
        FactorGraph({"all": Bits()}, {"few": Budget([0], 1)})  # type: ignore[dict-item]
    for given in ([Bits()], Bits()):
        with pytest.raises(LatentError, match=r"structures.*dict"):
            FactorGraph(given)  # type: ignore[arg-type]
    for wrong in (
        lambda: LineBudget(-1),
        lambda: TotalBudget(True),
        lambda: LineBudget(1, -1),
        lambda: LineBudget(1, 0.5),  # type: ignore[arg-type]
        lambda: LineBudget(1, 0, "no"),  # type: ignore[arg-type]
    ):
        with pytest.raises(LatentError, match=r"limit|axis|but_first"):
            wrong()
    with pytest.raises(LatentError, match=r"1.*0"):
        FactorGraph({"all": Bits()}, {"lines": LineBudget(1, axis=1)})
    with pytest.raises(LatentError, match=r"1.*0"):
        LineBudget(1, axis=1).factors(np.arange(3))


@pytest.mark.parametrize(
    "structure, parts, length, message",
    [
        # Without the check a kernel would write beyond the end of its parts.
        (KOfN(1), np.arange(3), 10, "length 10"),
        (ProjectiveTree(), np.full((3, 3), -1), 8, "length 8"),
        (OneToOneAlignment(), np.arange(6).reshape(2, 3), (2, 4), "0 to 3"),
        (KOfN(1), np.arange(3), (3, 3), r"lengths.*\(1, 2\)"),
        (KOfN(1), np.arange(3), -1, "length.*-1"),
        (KOfN(1), np.arange(3), 3.0, r"length.*3\.0"),
        (KOfN(1), np.array([True, True, False]), 3, "bool"),
        (KOfN(1), np.array([0.0, 1.0, np.nan]), 3, "float64"),
        (KOfN, np.arange(3), 3, "KOfN"),
        (ShiftReduce(), np.full((3, 3), -1), 3, "ShiftReduce"),
        (FactorGraph({"all": Bits()}), np.arange(3), 3, "FactorGraph"),
    ],
)
def test_structures_that_cannot_stand_in_a_graph(structure, parts, length, message) -> None:
    with pytest.raises(LatentError, match=message):
        ItemGraph(parts.shape, [StructureFactor(structure, parts, length)])


def test_parts_of_a_structure_may_be_a_list() -> None:
    scores = torch.tensor([0.3, 0.1, 0.0], dtype=torch.float64)
    means = [
        ItemGraph((3,), [StructureFactor(KOfN(1), parts, 3)]).sparsemap(scores).mean
        for parts in ([2, 1, 0], np.array([2, 1, 0]))
    ]
    assert torch.equal(*means)


class Given(Constraint):
    """A constraint with the factors that it is given, right or wrong."""

    def __init__(self, given) -> None:
        self.given = given

    def factors(self, parts):
        return self.given


@pytest.mark.parametrize(
    "given, message",
    [
        (None, "'mine'.*NoneType"),
        (Budget([0], 1), "'mine'.*Budget"),
        (["no"], "'mine'.*str"),
        ([StructureFactor(Bits(), np.arange(3), 3)], "'mine'.*StructureFactor"),
        ([Budget([0, 9], 1)], "'mine'.*9.*3"),
    ],
)
def test_a_constraint_of_ones_own_that_is_wrong_is_named(given, message: str) -> None:
    graph, lengths = FactorGraph({"all": Bits()}, {"mine": Given(given)}), torch.tensor([3])
    scores = torch.zeros(1, 3)
    for ask in (graph.sparsemap, graph.map, graph.contains):
        with pytest.raises(LatentError, match=message):
            ask(scores, lengths)


def test_every_item_without_a_member_is_named() -> None:
    """All such items are named, even if the structure names one item at a time."""
    graph = FactorGraph({"one": listed_subsets(1, 1)}, {"few": TotalBudget(1)})
    scores = torch.zeros(5, 3)
    scores[[0, 3]] = -torch.inf
    for left, items in (([0, 1, 2, 3, 4], [0, 3]), ([3, 0], [0, 1])):
        with pytest.raises(InfeasibleError) as error:
            graph.map(scores[left], torch.tensor([3] * len(left)))
        assert error.value.items == items


def test_what_is_no_tensor_is_refused() -> None:
    graph, lengths = FactorGraph({"all": Bits()}), torch.tensor([3])
    for ask in (graph.map, graph.sparsemap, graph.contains, Bits().contains):
        with pytest.raises(InvalidScores, match="ndarray"):
            ask(np.zeros((1, 3)), lengths)


@pytest.mark.parametrize("offset", [-1e10, 1e8, 1e10])
def test_what_all_heads_of_a_word_have_in_common_is_not_cut(offset: float) -> None:
    graph = FactorGraph({"tree": SpanningTree()}, {"all": LineBudget(4, 0, True)})
    lengths = torch.tensor([4])
    scores = torch.randn(1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[:, :, 1] += offset
    found = graph.sparsemap(scores, lengths)
    assert found.residual <= 1e-6
    expected = SpanningTree().sparsemap(scores, lengths).mean
    torch.testing.assert_close(found.mean, expected, rtol=0, atol=1e-5)


def test_the_residual_tells_where_cuts_may_have_changed_the_point() -> None:
    """Exactly one of two items is chosen. If the cut of large scores loses their difference, the
    residual is large.
    """
    graph = ItemGraph((2,), [Xor([0, 1])])
    for scores, whole in (([1e10, 3e10], False), ([1e10, 0.0], True), ([0.0, -1e30], True)):
        found = graph.sparsemap(torch.tensor(scores, dtype=torch.float64))
        best = torch.tensor(scores).argmax()
        error = 1.0 - float(found.mean[0, best])
        assert (error < 1e-6) == whole
        assert found.residual >= error - 1e-6 and (found.residual <= 1e-6) == whole


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_members_in_half_precision(dtype: torch.dtype) -> None:
    graph = FactorGraph({"tree": ProjectiveTree()}, {"few": LineBudget(1, 0, True)})
    z = torch.stack([torch.from_numpy(enumeration.arcs(h)) for h in ((0, 1, 2), (0, 1, 1))])
    assert graph.contains(z.to(dtype), torch.tensor([3, 3])).tolist() == [True, False]


def test_the_best_of_a_graph_of_one_structure_is_that_structure() -> None:
    torch.manual_seed(0)
    scores = torch.randn(1, 4, 4, dtype=torch.float64)
    parts = np.arange(16).reshape(4, 4)
    parts[:, 0] = parts[range(4), range(4)] = -1
    graph = ItemGraph((4, 4), [StructureFactor(SpanningTree(), parts, 3)])
    expected = SpanningTree().map(scores, torch.tensor([3]))
    assert torch.equal(graph.map(scores[0]), expected[0])
    # LP-SparseMAP of large scores is the best structure.
    assert torch.equal(graph.sparsemap(1e4 * scores[0]).mean[0].round(), expected[0])
    # The structure has its own order of parts, and covers only some parts of the graph.
    cells = np.array([[5, 0], [3, 4]])
    graph = ItemGraph((6,), [StructureFactor(OneToOneAlignment(), cells, (2, 2)), Xor([1, 2])])
    best = graph.map(torch.tensor([2.0, -1.0, -3.0, 2.0, 0.0, 1.0]))
    assert best.tolist() == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_a_mean_may_be_written_to() -> None:
    graph = FactorGraph({"tree": ProjectiveTree()}, {"few": TotalBudget(2)})
    scores = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    mean = graph.sparsemap(scores, torch.tensor([2, 2])).mean
    mean.mul_(2.0)
    mean.sum().backward()
    assert scores.grad is not None
