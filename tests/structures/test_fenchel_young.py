"""Losses against gold structures: definition by enumeration, gradients, and zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.structures.base import Structure
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.fenchel_young import (
    LOSSES,
    check_loss,
    check_loss_settings,
    structured_loss,
)
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.parser_tree import ParserTree
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.structures.oracles import listed_trees, nearest_in_hull


def case(structure: Structure, *parts: int, lengths: list[Any]) -> tuple[Structure, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(len(parts))
    shape = (len(lengths), *parts)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    return structure, scores, torch.tensor(lengths)


EACH = pytest.mark.parametrize(
    "structure, scores, lengths",
    [
        case(SpanningTree(), 5, 5, lengths=[4, 2, 0]),
        case(ProjectiveTree(single_root=True), 5, 5, lengths=[4, 1]),
        case(ConstituencyTree(), 4, 4, lengths=[4, 3]),
        case(LinearChain(), 4, 3, 3, lengths=[4, 2]),
        case(SemiMarkov(), 4, 3, 2, lengths=[4, 2]),
        case(KOfN(k=2), 5, lengths=[5, 3]),
        case(OneToOneAlignment(), 3, 3, lengths=[[3, 3], [2, 3]]),
        case(BudgetTree(max_modifiers=1), 4, 4, lengths=[3, 2]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)


def gold_of(structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    other = torch.randn(scores.shape, generator=generator, dtype=scores.dtype)
    return structure.map(other, lengths)


def noise_for(scores: Tensor, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn((count, *scores.shape), generator=generator, dtype=scores.dtype)


def able(structure: Structure) -> list[str]:
    found = []
    for loss in LOSSES:
        try:
            check_loss(structure, loss)
        except IncompatiblePair:
            continue
        found.append(loss)
    return found


@EACH
def test_the_gradient_is_the_structure_less_the_gold_one(
    structure: Structure, scores: Tensor, lengths: Tensor
) -> None:
    gold, noise = gold_of(structure, scores, lengths), noise_for(scores)
    argmax = {
        "crf": lambda s: structure.marginals(s, lengths),
        "sparsemap": lambda s: structure.sparsemap(s, lengths).mean,
        "perceptron": lambda s: structure.map(s, lengths),
        "perturbed": lambda s: sum(structure.map(s + one, lengths) for one in noise) / len(noise),
    }
    for loss in able(structure):
        given = scores.clone().requires_grad_()
        value = structured_loss(structure, given, gold, lengths, loss, noise=noise)
        assert value.shape == scores.shape[:1]
        assert (value >= -1e-9).all()
        (gradient,) = torch.autograd.grad(value.sum(), given)
        torch.testing.assert_close(gradient, argmax[loss](scores) - gold, rtol=0, atol=1e-5)
        assert torch.autograd.gradcheck(
            lambda s, loss=loss: structured_loss(  # type: ignore[misc]
                structure, s, gold, lengths, loss, noise=noise
            ),
            (given,),
            atol=1e-4,
        )


def test_bound_transitions_count() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(shape, dtype=torch.float64) for shape in [(3, 3), (3,), (3,)]]
    given = [weight.requires_grad_() for weight in weights]
    scores, lengths = torch.randn(2, 4, 3, dtype=torch.float64), torch.tensor([4, 3])
    gold = TagSequence().map(torch.randn_like(scores), lengths)
    noise = noise_for(scores)
    for loss in ("crf", "perceptron", "perturbed"):

        def value(scores: Tensor, *bound: Tensor, loss: str = loss) -> Tensor:
            chain = TagSequence().bind(*bound)
            return structured_loss(chain, scores, gold, lengths, loss, noise=noise)

        assert torch.autograd.gradcheck(value, (scores.requires_grad_(), *given))
        assert (value(scores, *given) > 0).all()
    # The SparseMAP loss is defined if the bound scores are only 0 or −inf.
    bound = (torch.zeros(3, 3), torch.zeros(3), torch.tensor([0.0, -torch.inf, 0.0]))
    structure = TagSequence().bind(*bound)
    gold = structure.map(torch.randn_like(scores), lengths)
    found = structured_loss(structure, scores, gold, lengths, "sparsemap")
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    torch.testing.assert_close(
        gradient, structure.sparsemap(scores.detach(), lengths).mean - gold, atol=1e-6, rtol=0
    )
    assert found.isfinite().all()


def test_what_structures_can_have() -> None:
    assert able(SpanningTree()) == able(LinearChain()) == list(LOSSES)
    assert able(OneToOneAlignment()) == ["sparsemap", "perceptron", "perturbed"]
    assert able(BudgetTree()) == ["sparsemap"]
    assert able(ShiftReduce()) == ["crf"]
    assert able(ParserTree()) == []
    with pytest.raises(IncompatiblePair, match=r"OneToOneAlignment.*log_prob.*'sparsemap'"):
        check_loss(OneToOneAlignment(), "crf")
    with pytest.raises(IncompatiblePair, match=r"decisions.*'crf'"):
        check_loss(ShiftReduce(), "perceptron")


@pytest.mark.parametrize("single_root", [False, True])
def test_values_by_listing_all_trees(single_root: bool) -> None:
    structure, listed = SpanningTree(single_root), listed_trees(single_root=single_root)
    torch.manual_seed(0)
    n, scores = 3, torch.randn(4, 4, 4, dtype=torch.float64)
    lengths = torch.full((4,), n)
    gold = gold_of(structure, scores, lengths)
    members = torch.from_numpy(listed.members(n)).double()
    totals = torch.einsum("bhm,khm->bk", scores, members)
    of_gold = (scores * gold).flatten(1).sum(1)
    wrong = n - torch.einsum("bhm,khm->bk", gold, members)
    expected = {
        ("crf", 0.0): totals.logsumexp(1) - of_gold,
        ("perceptron", 0.0): totals.max(1).values - of_gold,
        ("perceptron", 0.7): (totals + 0.7 * wrong).max(1).values - of_gold,
    }
    for (loss, margin), value in expected.items():
        found = structured_loss(structure, scores, gold, lengths, loss, margin)
        torch.testing.assert_close(found, value)
    vertices = members.flatten(1).numpy()
    used = vertices.any(0)
    for b in range(4):
        point = np.where(used, scores[b].numpy().ravel(), 0.0)
        mean = nearest_in_hull(vertices, point)
        objective = mean @ point - 0.5 * mean @ mean
        value = objective - of_gold[b].item() + 0.5 * n
        found = structured_loss(structure, scores, gold, lengths, "sparsemap")
        assert found[b].item() == pytest.approx(value, abs=1e-5)


def test_the_perturbed_loss_with_gumbel_noise_is_the_likelihood_of_one_choice() -> None:
    """E[max(s + ε)] is log Σ exp(s) plus Euler's constant, which is also the mean of the noise of
    gold.

    The gradient is the softmax's. The test uses 20,000 draws, and allows five standard errors.
    """
    scores = torch.tensor([[0.3, -1.0, 0.8, 0.0]], dtype=torch.float64, requires_grad=True)
    lengths, gold = torch.tensor([4]), torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(20_000, 1, 4, generator=generator, dtype=torch.float64)
    # Each draw is an item.
    many, noise = scores.expand(20_000, 4), -(-uniform.log()).log().transpose(0, 1)
    sizes, wanted = lengths.expand(20_000), gold.expand(20_000, 4)
    value = structured_loss(OneOfN(), many, wanted, sizes, "perturbed", noise=noise)
    likelihood = structured_loss(OneOfN(), scores, gold, lengths, "crf")
    assert abs(value.mean().item() - likelihood.item()) < 5 * value.std().item() / 141
    (found,) = torch.autograd.grad(value.mean(), scores)
    (expected,) = torch.autograd.grad(likelihood.sum(), scores)
    torch.testing.assert_close(found, expected, rtol=0, atol=5 * 0.5 / 141)


def test_the_perturbed_loss_of_two_choices_in_closed_form() -> None:
    """The reference is E[max] of two normal variables (Clark 1961), with noise of standard
    deviation 0.7.
    """
    scores, scale = torch.tensor([[0.5, -0.2]], dtype=torch.float64), 0.7
    gold = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    noise = scale * torch.randn(1, 20_000, 2, generator=generator, dtype=torch.float64)
    many = [value.expand(20_000, -1) for value in (scores, gold)]
    value = structured_loss(OneOfN(), *many, torch.full((20_000,), 2), "perturbed", noise=noise)
    normal, spread = torch.distributions.Normal(0.0, 1.0), scale * 2**0.5
    z = torch.tensor(0.7 / spread, dtype=torch.float64)
    mean = 0.5 * normal.cdf(z) - 0.2 * normal.cdf(-z) + spread * normal.log_prob(z).exp()
    assert abs(value.mean().item() - (mean.item() + 0.2)) < 5 * value.std().item() / 141


def test_where_the_margin_is_met_there_is_nothing_to_learn() -> None:
    structure, lengths = SpanningTree(), torch.tensor([4])
    gold = gold_of(structure, torch.zeros(1, 5, 5, dtype=torch.float64), lengths)

    def loss_and_gradient(height: float, loss: str, margin: float = 0.0) -> tuple[float, bool]:
        scores = (height * gold).requires_grad_()
        value = structured_loss(structure, scores, gold, lengths, loss, margin).sum()
        value.backward()
        assert scores.grad is not None
        return value.item(), bool((scores.grad.abs() > 1e-9).any())

    # The SparseMAP loss has a margin of 1 for each arc.
    assert loss_and_gradient(1.01, "sparsemap") == (pytest.approx(0.0, abs=1e-9), False)
    assert loss_and_gradient(0.9, "sparsemap")[1]
    assert loss_and_gradient(0.01, "perceptron") == (pytest.approx(0.0, abs=1e-12), False)
    assert loss_and_gradient(2.01, "perceptron", 2.0) == (pytest.approx(0.0, abs=1e-9), False)
    assert loss_and_gradient(1.9, "perceptron", 2.0)[1]
    # The CRF loss has a gradient at any margin.
    assert loss_and_gradient(5.0, "crf")[1]


@pytest.mark.parametrize("loss", LOSSES)
def test_forbidden_parts_and_padding(loss: str) -> None:
    structure, lengths = SpanningTree(), torch.tensor([2, 3])
    scores = torch.randn(2, 4, 4, dtype=torch.float64)
    gold, noise = gold_of(structure, scores, lengths), noise_for(scores)
    small = structured_loss(
        structure,
        scores[:1, :3, :3],
        gold[:1, :3, :3],
        lengths[:1],
        loss,
        noise=noise[:, :1, :3, :3],
    )
    scores[0, 3], scores[0, :, 3] = torch.nan, torch.inf
    forbidden = (gold[1] == 0).nonzero()
    head, modifier = next(part for part in forbidden.tolist() if 0 < part[1] != part[0])
    scores[1, head, modifier] = -torch.inf
    scores.requires_grad_()
    margin = 0.5 * (loss == "perceptron")
    value = structured_loss(structure, scores, gold, lengths, loss, margin, noise)
    value.sum().backward()
    assert value.isfinite().all() and scores.grad is not None and scores.grad.isfinite().all()
    assert not scores.grad[0, 3].any() and scores.grad[1, head, modifier] == 0
    if loss != "perceptron":
        torch.testing.assert_close(value[:1], small)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(LatentError, match=r"x: .*'hinge'"):
        check_loss_settings("x", "hinge", 0.0)
    with pytest.raises(LatentError, match=r"margin.*-1"):
        check_loss_settings("x", "perceptron", -1.0)
    with pytest.raises(LatentError, match=r"margin.*nan"):
        check_loss_settings("x", "perceptron", float("nan"))
    with pytest.raises(LatentError, match="perceptron"):
        check_loss_settings("x", "crf", 1.0)
    for noise, samples, setting in (
        (0.0, 1, "noise"),
        (float("nan"), 1, "noise"),
        (1.0, 0, "samples"),
    ):
        with pytest.raises(LatentError, match=rf"x: .*{setting}"):
            check_loss_settings("x", "perturbed", 0.0, noise, samples)
    scores, lengths = torch.zeros(1, 3), torch.tensor([3])
    with pytest.raises(LatentError, match=r"'perturbed'.*noise"):
        structured_loss(OneOfN(), scores, scores, lengths, "perturbed")


@pytest.mark.parametrize("loss", ["crf", "sparsemap", "perceptron", "perturbed"])
@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_values_hold_their_digits_beside_an_offset(loss: str, offset: float) -> None:
    torch.manual_seed(0)
    scores, lengths = torch.randn(2, 40, 3, 3) + offset, torch.tensor([40, 17])
    gold = LinearChain().map(torch.randn_like(scores), lengths)
    options: dict[str, Any] = {"margin": 0.5} if loss == "perceptron" else {}
    if loss == "perturbed":
        options["noise"] = torch.randn(2, *scores.shape)
    single = structured_loss(LinearChain(), scores, gold, lengths, loss, **options)
    exact = structured_loss(LinearChain(), scores.double(), gold, lengths, loss, **options)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, exact.float(), rtol=1e-6, atol=1e-5)
