"""Marginals of factor graphs by belief propagation, against sums over all members."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spacy import registry
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, InfeasibleError, LatentError, NotTractable
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constraints import Constraint, LineBudget, TotalBudget
from spacy_latent.structures.factor_graph import FactorGraph
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.logic_factors import (
    AtMostOne,
    Budget,
    Implication,
    LogicFactor,
    Or,
    OrOut,
    Xor,
)
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree


class TreeOfFactors(Constraint):
    """Factors of all kinds, in a chain in which neighbours share one part."""

    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        own = parts[parts >= 0].tolist()
        factors: list[LogicFactor] = [AtMostOne(own[:2])]
        if len(own) >= 7:
            factors += [Or(own[1:3], own[1:2]), Xor(own[2:4]), OrOut(own[3:5], own[5])]
            factors += [Budget(own[5:7], 1, own[5:6])]
        if len(own) >= 11:
            factors += [Implication(own[6:8], own[8]), OrOut(own[8:10], own[10], own[9:11])]
        return factors


class NotTheFirst(Constraint):
    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        return [Budget(parts[parts >= 0][:1].tolist(), 0)]


def listed(graph: FactorGraph, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the marginals and the log-partition, as sums over all 0/1 arrays that are members."""
    size = scores[0].numel()
    every = (torch.arange(2**size)[:, None] >> torch.arange(size)) & 1
    every = every.double().view(-1, *scores.shape[1:])
    means, sums = [], []
    for item, length in zip(scores, lengths):
        members = every[graph.contains(every, length.expand(len(every)))]
        totals = torch.where(members > 0, item, 0.0).flatten(1).sum(1)
        means.append(torch.einsum("k,k...->...", totals.softmax(0), members))
        sums.append(totals.logsumexp(0))
    return torch.stack(means), torch.stack(sums)


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


@pytest.mark.parametrize("scale", [0.3, 2.0, 30.0])
def test_a_tree_of_factors_is_exact(scale: float) -> None:
    graph = FactorGraph({"bits": Bits()}, {"row": TreeOfFactors()}, loopy_iterations=200)
    scores = normal(6, 11, scale=scale)
    scores[2, 4] = scores[3, 1] = -torch.inf
    lengths = torch.tensor([11, 7, 11, 9, 11, 2])
    found = graph.beliefs(scores, lengths)
    marginals, log_partition = listed(graph, scores, lengths)
    torch.testing.assert_close(found.marginals, marginals, atol=1e-8, rtol=0)
    torch.testing.assert_close(found.log_partition, log_partition, atol=1e-6, rtol=0)
    assert (found.residual < 1e-8).all()


def test_a_structure_beside_independent_bits_is_exact() -> None:
    structures = {"few": KOfN(2, exactly=False), "bits": Bits()}
    graph = FactorGraph(structures, {"not": NotTheFirst()}, loopy_iterations=100)
    scores, lengths = normal(4, 6), torch.tensor([6, 5, 2, 6])
    found = graph.beliefs(scores, lengths)
    marginals, log_partition = listed(graph, scores, lengths)
    torch.testing.assert_close(found.marginals, marginals, atol=1e-8, rtol=0)
    torch.testing.assert_close(found.log_partition, log_partition, atol=1e-6, rtol=0)


@pytest.mark.parametrize("tree", [ProjectiveTree(), SpanningTree()], ids=lambda tree: tree.name)
def test_trees_with_budgets_are_near(tree: Structure) -> None:
    """Loops cause an error that is less than half the error of marginals without the budget."""
    budget = {"few": LineBudget(1, but_first=True)}
    graph = FactorGraph({"tree": tree}, budget, loopy_iterations=200)
    scores, lengths = normal(8, 4, 4), torch.full((8,), 3)
    found = graph.beliefs(scores, lengths)
    marginals, _ = listed(graph, scores, lengths)
    error = (found.marginals - marginals).abs()
    without = (tree.marginals(scores, lengths) - marginals).abs()
    assert error.max() < 0.2 and error.mean() < 0.5 * without.mean()
    assert (found.residual < 1e-8).all()
    assert (found.marginals[:, 1:].sum(2) < 1 + 1e-8).all()
    torch.testing.assert_close(found.marginals[:, :, 1:].sum(1), torch.ones(8, 3).double())


def test_gradients_and_what_they_are_of() -> None:
    budget = {"few": LineBudget(1, but_first=True)}
    graph = FactorGraph({"tree": SpanningTree()}, budget, loopy_iterations=60)
    scores, lengths = normal(2, 4, 4), torch.tensor([3, 2])
    scores[0, 1, 2] = -torch.inf
    weights, finite = normal(2, 4, 4, seed=1), scores.isfinite()
    free = scores[finite].requires_grad_()

    def mean(values: Tensor) -> Tensor:
        return (graph.marginals(scores.masked_scatter(finite, values), lengths) * weights).sum()

    assert torch.autograd.gradcheck(mean, (free,))
    sums = graph.beliefs(scores.masked_scatter(finite, free), lengths).log_partition
    (slope,) = torch.autograd.grad(sums.sum(), free)
    torch.testing.assert_close(slope, graph.marginals(scores, lengths)[finite], atol=1e-5, rtol=0)


def test_padding_and_the_rest_of_the_batch_change_nothing() -> None:
    graph = FactorGraph({"tree": SpanningTree()}, {"few": TotalBudget(3)}, loopy_iterations=50)
    scores, lengths = normal(3, 5, 5), torch.tensor([3, 0, 4])
    padded = scores.clone()
    padded[0, 4] = padded[0, :, 4] = padded[1] = padded[:, :, 0] = torch.nan
    found = graph.marginals(padded, lengths)
    torch.testing.assert_close(found, graph.marginals(scores, lengths))
    for item in range(3):
        alone = graph.marginals(scores[item : item + 1], lengths[item : item + 1])
        torch.testing.assert_close(alone[0], found[item])
    assert graph.marginals(scores[:0], lengths[:0]).shape == (0, 5, 5)
    assert graph.marginals(scores.float(), lengths).dtype == torch.float32


def test_defaults_of_torch_change_nothing() -> None:
    graph = FactorGraph({"bits": Bits()}, {"row": TreeOfFactors()}, loopy_iterations=20)
    scores, lengths = normal(2, 11), torch.tensor([11, 9])
    expected = graph.beliefs(scores, lengths)
    with torch.device("meta"):
        found = graph.beliefs(scores, lengths)
    torch.testing.assert_close(found.marginals, expected.marginals)
    torch.testing.assert_close(found.log_partition, expected.log_partition)
    torch.testing.assert_close(found.residual, expected.residual)


class Given(Constraint):
    def __init__(self, *factors: LogicFactor) -> None:
        self.given = factors

    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        return list(self.given) if (parts >= 0).sum() == 5 else []


@pytest.mark.parametrize(
    "factors, forbidden",
    [
        ([Xor([0, 1])], [0, 1]),
        ([Xor([0, 1], [0, 1])], [0, 1]),
        ([Or([0, 1])], [0, 1]),
        ([Or([])], []),
        ([Xor([])], []),
        ([Budget([0, 1, 2], 1, [0, 1])], [0, 1]),
        ([Implication([0], 1, [0])], [0, 1]),
        ([OrOut([0, 1], 2, [2])], [0, 1, 2]),
        # One factor decides parts of the next.
        ([Xor([0, 1]), Implication([1], 2), OrOut([2, 3], 4), Budget([4], 0)], [0]),
        ([Xor([0, 1]), AtMostOne([1, 2]), OrOut([2, 3], 4), Or([4]), Budget([3], 0)], [0]),
    ],
    ids=repr,
)
def test_contradictions_of_certain_parts_are_errors(
    factors: list[LogicFactor], forbidden: list[int]
) -> None:
    graph = FactorGraph({"bits": Bits()}, {"own": Given(*factors)}, loopy_iterations=20)
    scores, lengths = normal(3, 5), torch.tensor([4, 5, 3])
    scores[:, forbidden] = -torch.inf
    for refused in (graph.marginals, graph.sparsemap):
        with pytest.raises(InfeasibleError) as error:
            refused(scores, lengths)
        assert error.value.items == [1]


def test_budgets_that_leave_no_tree_are_errors() -> None:
    none = FactorGraph({"tree": SpanningTree()}, {"none": LineBudget(0)}, loopy_iterations=20)
    scores, lengths = normal(3, 4, 4), torch.tensor([3, 0, 2])
    with pytest.raises(InfeasibleError) as error:
        none.marginals(scores, lengths)
    assert error.value.items == [0, 2]


def test_what_has_a_single_member_is_no_contradiction() -> None:
    """The factors decide all parts, and none contradicts another."""
    factors = [Xor([0, 1]), Implication([1], 2), OrOut([2, 3], 4), Budget([3], 0), Or([4])]
    graph = FactorGraph({"bits": Bits()}, {"own": Given(*factors)}, loopy_iterations=50)
    scores, lengths = normal(1, 5), torch.tensor([5])
    scores[0, 0] = -torch.inf
    expected = torch.tensor([[0.0, 1, 1, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(graph.marginals(scores, lengths), expected, atol=1e-6, rtol=0)


def test_a_layer_with_marginals_trains() -> None:
    torch.manual_seed(0)
    budget = {"few": LineBudget(1, but_first=True)}
    graph = FactorGraph({"tree": SpanningTree()}, budget, loopy_iterations=20)
    scorer = registry.misc.get("spacy-latent.BiaffineScorer.v1")()(6)
    composer = registry.misc.get("spacy-latent.GraphConvolution.v1")()(6)
    layer = LatentLayer(scorer, graph, Marginals(), composer)
    output = layer(torch.randn(2, 5, 6), torch.tensor([5, 3]))
    output.vectors.square().sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in layer.scorer.parameters())
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_estimators_of_marginals_alone_take_it() -> None:
    graph = FactorGraph({"tree": SpanningTree()}, loopy_iterations=5)
    Marginals().check(graph)
    with pytest.raises(IncompatiblePair):
        StraightThrough("marginals").check(graph)
    plain = FactorGraph({"tree": SpanningTree()})
    with pytest.raises(IncompatiblePair):
        Marginals().check(plain)
    with pytest.raises(NotTractable):
        plain.marginals(normal(1, 4, 4), torch.tensor([3]))
    with pytest.raises(IncompatiblePair, match=r"OneToOneAlignment"):
        FactorGraph({"pairs": OneToOneAlignment()}, loopy_iterations=5)
    with pytest.raises(LatentError, match=r"loopy_iterations"):
        FactorGraph({"tree": SpanningTree()}, loopy_iterations=-1)
