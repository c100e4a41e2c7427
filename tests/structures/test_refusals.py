"""Errors for input of a wrong shape or type, and for structures that lack methods."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.cases import scores_for, structures
from spacy_latent.errors import IncompatiblePair, InfeasibleError, InvalidScores, LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.entmax import Entmax
from spacy_latent.estimators.gumbel_rao import GumbelRao
from spacy_latent.estimators.mixed_dirichlet import MixedDirichlet
from spacy_latent.estimators.reinmax import ReinMax
from spacy_latent.estimators.sinkhorn import Sinkhorn
from spacy_latent.models.supervision import _complete
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.fenchel_young import structured_loss
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.smoothed import (
    smoothed_expectation,
    smoothed_sample,
    smoothed_value,
)
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from spacy_latent.testing import structure_checks
from spacy_latent.testing.reports import first_failures

LENGTHS = torch.tensor([3, 2])
SUMS = frozenset({"log_partition", "marginals", "entropy", "log_prob"})


class Whole(Structure):
    """The set whose only member has all items."""

    part_axes = 1
    tractable = SUMS

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        self._log_partition(scores, lengths)
        return self.part_mask(scores, lengths).to(scores.dtype)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        inside = self.part_mask(scores, lengths)
        total = scores.masked_fill(~inside, 0.0).sum(1)
        if bool(total.isneginf().any()):
            self.raise_infeasible(total.isneginf().nonzero().flatten().tolist())
        return total


def test_a_set_of_one_keeps_the_contract() -> None:
    checks = structure_checks(Whole(), lambda n: [np.ones(n)], (3, 0, 1))
    names = {*SUMS, "gradients_by_differences", "cross_entropy_and_kl"}
    first_failures(check for check in checks if check.name in names)
    scores = torch.randn(2, 3, requires_grad=True)
    marginals = Whole().marginals(scores, LENGTHS)
    assert torch.equal(marginals, torch.tensor([[1.0, 1, 1], [1, 1, 0]]))
    (gradient,) = torch.autograd.grad(marginals.sum(), scores)
    assert not gradient.any()


class Pairs(Structure):
    """A structure whose log-partition adds −inf to masked scores, so its gradient there is NaN."""

    part_axes = 1
    tractable = SUMS

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return (scores > 0).to(scores.dtype)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        nothing = torch.full_like(scores[:, 0], -torch.inf)
        return torch.logaddexp(scores, nothing[:, None]).logsumexp(1)


def test_a_log_partition_without_a_gradient_is_named() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    for operation in ("marginals", "entropy"):
        with pytest.raises(LatentError, match=r"_log_partition.*\[1\]"):
            getattr(Pairs(), operation)(scores, LENGTHS)
    # NaN in the gradient of padding has no effect.
    Pairs().log_partition(scores, LENGTHS).sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
    forbidden = torch.tensor([[0.5, -torch.inf, 0.1], [1.0, 2.0, 0.0]], requires_grad=True)
    total = Pairs().log_partition(forbidden, LENGTHS)
    with pytest.raises(LatentError, match="NaN"):
        total.sum().backward()
    # NaN from the upstream gradient is not blamed on the structure.
    (gradient,) = torch.autograd.grad(
        Whole().log_partition(scores, LENGTHS), scores, torch.tensor([torch.nan, 1.0])
    )
    assert gradient[0].isnan().all() and gradient[1].isfinite().all()


def test_what_has_no_structure_is_infeasible_by_default() -> None:
    scores = torch.tensor([[0.5, 0.1, 0.2], [-torch.inf, -torch.inf, 0.0]])
    with pytest.raises(InfeasibleError) as caught:
        Pairs().marginals(scores, LENGTHS)
    assert caught.value.items == [1]


# ---------------------------------------------------------------- offsets that all structures have

SHARED = [
    SpanningTree(),
    ProjectiveTree(single_root=True),
    ConstituencyTree(),
    LinearChain(),
    TagSequence(),
    KOfN(2),
    Runs(3, 2),
    OneOfN(),
]


@pytest.mark.parametrize("structure", SHARED, ids=lambda structure: structure.name)
def test_entropy_and_divergence_are_without_what_all_structures_have(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 4, 2)
    # Rounded scores keep all digits beside the offset.
    p, q = ((8 * each).round().double() / 8 for each in (scores, 2 * scores.flip(0)))
    leaf = p.clone().requires_grad_()
    expected = structure.entropy(leaf, lengths)
    (slope,) = torch.autograd.grad(expected.sum(), leaf)
    for offset in (2.0**40, -(2.0**40)):
        moved = (p + offset).requires_grad_()
        found = structure.entropy(moved, lengths)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
        (gradient,) = torch.autograd.grad(found.sum(), moved)
        torch.testing.assert_close(gradient, slope, rtol=0, atol=1e-9)
        kl = structure.kl(p + offset, q - 2 * offset, lengths)
        torch.testing.assert_close(kl, structure.kl(p, q, lengths), rtol=0, atol=1e-8)
    counts = structure.log_count(p, lengths)
    for offset in (1e38, -1e307):
        torch.testing.assert_close(structure.entropy(0 * p + offset, lengths), counts)


def test_sums_that_overflow_are_not_infeasible() -> None:
    scores, lengths = torch.full((1, 4, 4), -1e308, dtype=torch.float64), torch.tensor([[4, 4]])
    with pytest.raises(InvalidScores, match=r"\[0\]"):
        MonotoneAlignment().marginals(scores, lengths)


# ---------------------------------------------------------------- shapes and types


@pytest.mark.parametrize("structure", structures(), ids=lambda structure: structure.name)
def test_what_is_no_tensor_is_refused(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 3, 2)
    calls: list[Callable[[Any, Any], object]] = [
        structure.map,
        structure.sparsemap,
        partial(structure.top_k, k=2),
    ]
    if "entropy" in structure.tractable:
        calls += [structure.log_partition, structure.entropy]
    if "smoothed" in structure.tractable:
        smoothed = (smoothed_value, smoothed_expectation, smoothed_sample)
        calls += [partial(function, structure) for function in smoothed]
    for call in calls:
        with pytest.raises(InvalidScores, match="list"):
            call(scores, lengths.tolist())
        with pytest.raises(InvalidScores, match=r"scores.*ndarray"):
            call(scores.numpy(), lengths)
        with pytest.raises(InvalidScores, match=r"scores.*int64"):
            call(scores.long(), lengths)
        with pytest.raises(InvalidScores, match=r"scores.*sparse_coo"):
            call(scores.to_sparse(), lengths)
        with pytest.raises(InvalidScores, match=r"lengths.*complex64"):
            call(scores, lengths.to(torch.complex64))


@pytest.mark.parametrize("structure", structures()[:3], ids=lambda structure: structure.name)
def test_scores_in_eight_bits_are_read(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 3, 2)
    small = scores.to(torch.float8_e4m3fn)
    assert torch.equal(structure.map(small, lengths).float(), structure.map(small.float(), lengths))


def test_a_mask_is_no_length() -> None:
    with pytest.raises(InvalidScores, match=r"torch.bool"):
        KOfN(2).map(torch.randn(2, 3), torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize("structure", [ShiftReduce(), MergeSequence()], ids=lambda s: s.name)
def test_structures_of_decisions_are_not_broadcast(structure: Structure) -> None:
    scores, lengths = torch.randn(3, 3, 3), torch.full((3,), 3 + (structure.parts == "merges"))
    z = structure.map(scores, lengths)
    assert structure.log_prob(z[None], scores, lengths).shape == (1, 3)
    for wrong in (z[:1], z[0], z[:, :2], z[None, :2], z[None, None]):
        with pytest.raises(InvalidScores, match=r"structures.*shape"):
            structure.log_prob(wrong, scores, lengths)


def test_what_else_is_no_tensor_is_refused() -> None:
    scores, lengths, structure = torch.randn(2, 4), torch.tensor([4, 3]), KOfN(2)
    wrong: Any = scores.numpy()
    with pytest.raises(InvalidScores, match=r"structures.*ndarray"):
        structure.log_prob(wrong, scores, lengths)
    with pytest.raises(InvalidScores, match=r"q.*ndarray"):
        structure.kl(scores, wrong, lengths)
    seed: Any = 42
    for draw in (structure.sample, structure.sample_trace):
        with pytest.raises(InvalidScores, match=r"generator.*42"):
            draw(scores, lengths, 2, seed)


@pytest.mark.parametrize("operation", ["log_prob", "log_potential"])
def test_structures_are_not_broadcast(operation: str) -> None:
    scores = torch.randn(3, 4)
    lengths = torch.full((3,), 4)
    call = getattr(KOfN(2), operation)
    z = KOfN(2).map(scores, lengths)
    assert call(z, scores, lengths).shape == (3,) and call(z[None], scores, lengths).shape == (1, 3)
    for wrong in (z[:1], z[0], z[:, :2], z[None, :2], z[None, None]):
        with pytest.raises(InvalidScores, match=r"structures.*shape"):
            call(wrong, scores, lengths)
    with pytest.raises(InvalidScores, match=r"\[1\]"):
        call(z, torch.where(torch.arange(3)[:, None] == 1, torch.nan, scores), lengths)


def test_scores_without_a_root_are_told_where_it_belongs() -> None:
    # The layout of torch-struct, with the scores of roots on the diagonal.
    for tree in (ProjectiveTree(), SpanningTree()):
        with pytest.raises(InvalidScores, match=r"lengths are 5.*0 to 4.*root.*from_diagonal"):
            tree.marginals(torch.randn(2, 5, 5), torch.tensor([5, 5]))
        with pytest.raises(InvalidScores, match=r"between 3 and 5.*0 to 4.*root"):
            tree.marginals(torch.randn(2, 5, 5), torch.tensor([3, 5]))
        with pytest.raises(InvalidScores, match=r"-1.*0 to 4\.$"):
            tree.marginals(torch.randn(2, 5, 5), torch.tensor([-1, 4]))
    with pytest.raises(InvalidScores, match=r"lengths are 5.*0 to 4\.$"):
        ConstituencyTree().marginals(torch.randn(1, 4, 4), torch.tensor([5]))


ALIGNMENTS = [MonotoneAlignment(), ManyToOneAlignment(), OneToOneAlignment()]


@pytest.mark.parametrize("structure", ALIGNMENTS, ids=lambda s: s.name)
def test_one_length_for_two_axes_is_told_of_the_other(structure: Structure) -> None:
    scores = torch.randn(2, 4, 3)
    with pytest.raises(InvalidScores, match=r"shape \(2,\).*expected \(B, 2\).*torch\.stack"):
        structure.map(scores, torch.tensor([4, 3]))
    with pytest.raises(InvalidScores, match=r"lengths\[:, 1\] lie between 2 and 4.*0 to 3\.$"):
        structure.map(scores, torch.tensor([[3, 4], [4, 2]]))
    # The length exceeds both axes, so a hint at a second length would not help.
    with pytest.raises(InvalidScores, match=r"lie between 3 and 5.*0 to 3\.$"):
        structure.map(scores, torch.tensor([5, 3]))
    assert structure.map(scores, torch.tensor([[4, 3], [3, 2]])).shape == scores.shape
    square = structure.map(scores, torch.tensor([3, 2]))
    assert torch.equal(square, structure.map(scores, torch.tensor([[3, 3], [2, 2]])))


@pytest.mark.parametrize("heads", [[-1, 0], [0, 3], [0], [0, 0, 0]])
def test_heads_that_no_token_has_are_not_encoded(heads: list[int]) -> None:
    for tree in (ProjectiveTree(), SpanningTree()):
        with pytest.raises(InvalidScores, match=r"heads.*0.*to 2"):
            tree.encode(np.array(heads), 2)
        assert tree.encode(np.array([], dtype="int32"), 0).shape == (1, 1)


@pytest.mark.parametrize(
    "name, instead",
    [("partition", "log_partition"), ("argmax", "map"), ("kmax", "top_k"), ("topk", "top_k")],
)
def test_names_of_other_libraries_are_told_those_of_the_methods(name: str, instead: str) -> None:
    for structure in (ProjectiveTree(), Whole(), pickle.loads(pickle.dumps(KOfN(2)))):
        assert not hasattr(structure, name) and hasattr(structure, instead)
        with pytest.raises(AttributeError, match=rf"{structure.name}.*{instead}\(scores"):
            getattr(structure, name)
        assert getattr(copy.deepcopy(structure), name, None) is None


class Broken(Whole):
    """A structure with a property that raises an ``AttributeError`` of its own."""

    @property
    def size(self) -> int:
        return self.missing  # type: ignore[attr-defined, no-any-return]


def test_an_attribute_that_is_missing_is_the_one_in_the_error() -> None:
    with pytest.raises(AttributeError) as caught:
        Broken().size  # noqa: B018
    assert caught.value.name == "missing"
    with pytest.raises(AttributeError) as caught:
        KOfN(2).nothing  # type: ignore[attr-defined]  # noqa: B018
    assert caught.value.name == "nothing"


class WithParameter(KOfN, torch.nn.Module):
    """A structure that is also a module of torch."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        KOfN.__init__(self, 2)
        self.weight = torch.nn.Parameter(torch.ones(3))


def test_a_structure_may_be_a_module() -> None:
    for made in (WithParameter(), copy.deepcopy(WithParameter())):
        assert made.weight.sum() == 3 and [*made.parameters()] == [made.weight]
        with pytest.raises(AttributeError, match="top_k"):
            made.kmax  # noqa: B018


def test_other_shapes_and_counts() -> None:
    scores, lengths = torch.randn(2, 4), torch.tensor([4, 3])
    for operation in (KOfN(2).kl, KOfN(2).cross_entropy):
        with pytest.raises(InvalidScores, match=r"\(2, 4\).*\(1, 4\)"):
            operation(scores, scores[:1], lengths)
    for structure in (KOfN(2), Runs(3, 2), Bits()):
        with pytest.raises(InvalidScores, match=r"contains.*\(4,\)"):
            structure.contains(scores[0], lengths)
        with pytest.raises(InvalidScores, match=r"\bk\b.*2.5"):
            structure.top_k(scores, lengths, 2.5)  # type: ignore[arg-type]
        with pytest.raises(InvalidScores, match="num_samples"):
            structure.sample(scores, lengths, 0)
        with pytest.raises(InvalidScores, match="max_iter"):
            structure.sparsemap(scores, lengths, max_iter=0)
        with pytest.raises(InvalidScores, match="tolerance"):
            structure.sparsemap(scores, lengths, tolerance=-1.0)


class NoneNamed(Whole):
    """A structure whose errors name no item. A loop that drops the named items would never end."""

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        self.raise_infeasible([])
        return scores


def test_an_error_that_names_no_item_ends_a_search() -> None:
    with pytest.raises(InfeasibleError):
        NoneNamed().contains(torch.ones(2, 3), LENGTHS)
    wanted = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3)
    with pytest.raises(InfeasibleError):
        _complete(NoneNamed(), *wanted, LENGTHS, torch.tensor([True, True]))


class OfAnotherShape(Whole):
    """A structure whose ``_map`` returns results of a wrong shape or type."""

    def __init__(self, given: Callable[[Tensor], Any]) -> None:
        self.given = given

    def _map(self, scores: Tensor, lengths: Tensor) -> Any:
        return self.given(torch.ones_like(scores))


@pytest.mark.parametrize(
    "given, message",
    [
        (lambda z: z[:, :-1], r"_map.*\(2, 2\).*\(2, 3\)"),
        (lambda z: z.numpy(), "_map.*ndarray"),
        (lambda z: None, "_map.*NoneType"),
    ],
)
def test_a_best_structure_of_another_shape_is_refused(given, message: str) -> None:
    for ask in (OfAnotherShape(given).map, OfAnotherShape(given).sparsemap):
        with pytest.raises(LatentError, match=message):
            ask(torch.zeros(2, 3), LENGTHS)


def test_settings_of_functions_of_scores_are_checked() -> None:
    trees, lengths = ProjectiveTree(), torch.tensor([2])
    scores = torch.zeros(1, 3, 3)
    with pytest.raises(LatentError, match="hinge"):
        structured_loss(trees, scores, trees.map(scores, lengths), lengths, "hinge")
    for operation in (OneOfN().fusedmax, OneOfN().oscarmax):
        for penalty in (-1.0, float("nan")):
            with pytest.raises(InvalidScores, match="penalty"):
                operation(torch.zeros(1, 2), lengths, penalty)
    zeros = [0.0, 0.0]
    for given in (np.array(zeros), zeros):
        with pytest.raises(InvalidScores, match="tensor"):
            TagSequence().bind(torch.zeros(2, 2), torch.zeros(2), given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "estimator", [Entmax(), MixedDirichlet(), GumbelRao(), ReinMax(), Sinkhorn()], ids=type
)
def test_an_estimator_without_a_model_names_the_structure_that_does_not_fit(
    estimator: Estimator,
) -> None:
    with pytest.raises(IncompatiblePair, match="ProjectiveTree"):
        estimator(ProjectiveTree(), torch.zeros(1, 3, 3), torch.tensor([2]), is_train=True)
