"""Second derivatives and forward mode are right, or an error says which derivatives exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from benchmarks.cases import scores_for, structures
from spacy_latent.errors import NotDifferentiable
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.fenchel_young import structured_loss
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.smoothed import smoothed_expectation, smoothed_value

SUMMED = [structure for structure in structures() if "entropy" in structure.tractable]
LENGTHS = torch.tensor([3])


def trees(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 4, 4, dtype=dtype, generator=generator, requires_grad=True)


def case(structure: Structure, operation: str) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """Return a differentiable function of the scores of a batch, a point, and a direction."""
    single, lengths = scores_for(structure, 4, 2)
    given, generator = single.double(), torch.Generator().manual_seed(1)
    along, other = torch.randn(2, *given.shape, generator=generator, dtype=torch.float64)
    z = structure.map(given, lengths)

    def value(scores: Tensor) -> Tensor:
        if operation == "log_prob":
            return structure.log_prob(z, scores, lengths).sum()
        if operation == "kl":
            return structure.kl(scores, other, lengths).sum()
        found: Tensor = getattr(structure, operation)(scores, lengths)
        return (found * other).sum() if operation == "marginals" else found.sum()

    return value, given, along


def again(value: Tensor, scores: Tensor, along: Tensor) -> Tensor:
    """Return the product of the Hessian with ``along``."""
    (first,) = torch.autograd.grad(value, scores, create_graph=True)
    assert first.requires_grad
    (second,) = torch.autograd.grad((first * along).sum(), scores)
    return second


@pytest.mark.parametrize("operation", ["log_partition", "marginals", "entropy", "log_prob", "kl"])
@pytest.mark.parametrize("structure", SUMMED, ids=lambda structure: structure.name)
def test_second_derivatives_are_right_or_refused(structure: Structure, operation: str) -> None:
    value, given, along = case(structure, operation)
    scores = given.clone().requires_grad_()
    try:
        found = again(value(scores), scores, along)
    except NotDifferentiable as error:
        assert operation not in ("log_partition", "log_prob")
        assert str(error).startswith("marginals, and what is made of them")
        return
    step = 1e-5
    slopes = []
    for sign in (1, -1):
        moved = (given + sign * step * along).requires_grad_()
        slopes += torch.autograd.grad(value(moved), moved)
    torch.testing.assert_close(found, (slopes[0] - slopes[1]) / (2 * step), rtol=1e-4, atol=1e-6)


def test_a_hessian_of_the_entropy_is_refused() -> None:
    def entropy(scores: Tensor) -> Tensor:
        return ProjectiveTree().entropy(scores, LENGTHS).sum()

    with pytest.raises(NotDifferentiable, match=r"log_partition.*log_prob"):
        torch.autograd.functional.hessian(entropy, trees().detach())


@pytest.mark.parametrize(
    "structure", [ProjectiveTree(), BudgetTree(max_modifiers=1), BudgetTree(1, True)], ids=repr
)
def test_second_derivatives_of_sparsemap_are_refused(structure: Structure) -> None:
    scores = trees()
    with pytest.raises(NotDifferentiable, match="sparsemap"):
        again(structure.sparsemap(scores, LENGTHS).mean.square().sum(), scores, scores.detach())


def test_second_derivatives_of_losses_are_right_or_refused() -> None:
    tree, scores, sizes = ProjectiveTree(), trees(), torch.tensor([4])
    gold = tree.map(torch.zeros(1, 4, 4, dtype=torch.float64), LENGTHS)
    row, first = scores[0, :1], torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    alpha = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    losses: list[tuple[Tensor, Tensor]] = [
        (structured_loss(tree, scores, gold, LENGTHS, "sparsemap"), scores),
        (OneOfN().entmax_loss(row, first, sizes, alpha), scores),
        (OneOfN().entmax_loss(row, first, sizes, alpha), alpha),
    ]
    for loss, given in losses:
        (plain,) = torch.autograd.grad(loss.sum(), given, retain_graph=True)
        (recorded,) = torch.autograd.grad(loss.sum(), given, create_graph=True)
        assert torch.equal(plain, recorded) and plain.any()
        with pytest.raises(NotDifferentiable, match="once"):
            recorded.square().sum().backward()
    crf = structured_loss(tree, scores, gold, LENGTHS, "crf").sum()
    along = torch.ones_like(scores).detach()
    expected = again(tree.log_partition(scores, LENGTHS).sum(), scores, along)
    torch.testing.assert_close(again(crf, scores, along), expected)


@pytest.mark.parametrize(
    "structure",
    [OneOfN(), KOfN(2), Bits(), IndependentHeads(), ManyToOneAlignment()],
    ids=lambda structure: structure.name,
)
def test_independent_choices_have_all_derivatives_of_sparsemap(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 4, 2)

    def mean(given: Tensor) -> Tensor:
        return structure.sparsemap(given, lengths).mean.square()

    assert torch.autograd.gradgradcheck(mean, scores.double().requires_grad_())


@pytest.mark.parametrize(
    "attend",
    [
        lambda given, lengths: OneOfN().entmax(given, lengths, 1.5),
        lambda given, lengths: OneOfN().fusedmax(given, lengths, 0.3),
        lambda given, lengths: OneOfN().oscarmax(given, lengths, 0.2),
    ],
)
def test_attention_has_second_derivatives(attend: Callable[..., Tensor]) -> None:
    scores, lengths = scores_for(OneOfN(), 4, 2)
    given = scores.double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda scores: attend(scores, lengths).square(), given)
    single = scores.float().requires_grad_()
    assert again(attend(single, lengths).square().sum(), single, scores.float()).isfinite().all()


@pytest.mark.parametrize("operation", ["marginals", "sparsemap"])
def test_a_graph_of_the_gradient_alone_raises_nothing(operation: str) -> None:
    scores = trees()
    found = getattr(ProjectiveTree(), operation)(scores, LENGTHS)
    total = (found if operation == "marginals" else found.mean).square().sum()
    (plain,) = torch.autograd.grad(total, scores, retain_graph=True)
    (recorded,) = torch.autograd.grad(total, scores, create_graph=True)
    assert torch.equal(plain, recorded) and not plain.requires_grad


def test_scores_may_be_written_to_after_sparsemap() -> None:
    scores = trees()
    given = scores * 2.0
    mean = ProjectiveTree().sparsemap(given, LENGTHS).mean
    given.zero_()
    (gradient,) = torch.autograd.grad(mean.square().sum(), scores)
    assert gradient.any()


# ---------------------------------------------------------------- forward mode


@pytest.mark.parametrize("operation", ["log_partition", "marginals", "entropy", "log_prob", "kl"])
@pytest.mark.parametrize("structure", SUMMED, ids=lambda structure: structure.name)
def test_forward_mode_agrees_with_the_gradient(structure: Structure, operation: str) -> None:
    value, given, along = case(structure, operation)
    scores = given.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(scores), scores)
    expected = (gradient * along).sum()
    _, found = torch.func.jvp(value, (given,), (along,))
    torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        dual = value(forward_ad.make_dual(given, along))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)


@pytest.mark.parametrize("structure", [OneOfN(), KOfN(2), ProjectiveTree()], ids=repr)
def test_sparsemap_has_no_forward_mode(structure: Structure) -> None:
    scores, lengths = scores_for(structure, 4, 2)
    with (
        forward_ad.dual_level(),
        pytest.raises(NotDifferentiable, match="forward"),
    ):
        structure.sparsemap(forward_ad.make_dual(scores, scores), lengths)


def test_both_modes_at_once_are_refused() -> None:
    scores = trees()
    with forward_ad.dual_level(), pytest.raises(NotDifferentiable, match="tangent"):
        dual: Any = forward_ad.make_dual(scores, scores.detach())
        ProjectiveTree().log_partition(dual, LENGTHS)


@pytest.mark.parametrize("structure", structures(), ids=lambda each: each.name)
def test_a_batch_of_empty_texts_has_gradients(structure: Structure) -> None:
    single, full = scores_for(structure, 0, 2)
    if structure.parts == "segments":
        single = torch.zeros(2, 0, 3, 4)
    given, lengths = single.requires_grad_(), torch.zeros_like(full)
    found = [structure.sparsemap(given, lengths).mean]
    if "log_partition" in structure.tractable:
        operations = (structure.log_partition, structure.marginals, structure.entropy)
        found += [operation(given, lengths) for operation in operations]
    if "smoothed" in structure.tractable:
        found += [smoothed_value(structure, given, lengths, "quadratic")]
        found += [smoothed_expectation(structure, given, lengths, "quadratic")]
    for value in found:
        (gradient,) = torch.autograd.grad(value.sum(), given, retain_graph=True)
        assert gradient.shape == given.shape and not gradient.any()
    if "log_partition" in structure.tractable:
        (first,) = torch.autograd.grad(found[1].sum(), given, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), given)
        assert second.shape == given.shape and not second.any()
