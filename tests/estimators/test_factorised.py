"""ReinMax and Rao-Blackwellized straight-through Gumbel.

The references are exact gradients by enumeration, and the estimators of which these are means.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.factorised import Factorised, FactorisedEstimator
from spacy_latent.estimators.gumbel_rao import GumbelRao
from spacy_latent.estimators.reinmax import ReinMax, second_order
from spacy_latent.estimators.relaxed_perturbation import RelaxedPerturbation
from spacy_latent.estimators.straight_through import GradientOf
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.testing import Problem, check_estimator

# Each case has one padded item, and the shape of its scores.
CASES: list[tuple[Any, Any, tuple[int, ...]]] = [
    (OneOfN(), 4, (5,)),
    (Bits(), 3, (4,)),
    (Bits("arcs"), 2, (4, 4)),
    (IndependentHeads(), 2, (4, 4)),
    (ManyToOneAlignment(), [2, 3], (3, 4)),
    (ManyToOneAlignment(unaligned=True), [2, 2], (3, 3)),
]
EACH = pytest.mark.parametrize("structure, length, shape", CASES, ids=lambda each: repr(each)[:24])


def scores_of(structure: Structure, length: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return scores with NaN as padding and one forbidden part, and lengths."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn((1, *shape), generator=generator, dtype=torch.float64)
    lengths = torch.tensor([length])
    inside = structure.part_mask(scores, lengths)
    scores[tuple(inside.nonzero()[-1])] = -torch.inf
    return scores.masked_fill(~inside, torch.nan).requires_grad_(), lengths


def listed(structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return all structures, ``(N, 1, *parts)``."""
    best = structure.top_k(scores.detach(), lengths, 200)
    z = best.z[~best.scores[:, 0].isneginf()]
    assert 1 < len(z) < 200
    return z


def quadratic(z: Tensor) -> Tensor:
    """Return a loss ``(N,)`` of structures ``(N, 1, *parts)`` with products of any two parts."""
    flat = z.flatten(1)
    generator = torch.Generator().manual_seed(7)
    matrix = torch.randn(flat.shape[1], flat.shape[1], generator=generator, dtype=z.dtype)
    return ((flat @ matrix) * flat).sum(1) + flat @ matrix[0]


@EACH
def test_reinmax_is_exact_for_quadratic_losses(
    structure: Factorised, length: Any, shape: tuple[int, ...]
) -> None:
    """Its expectation over all structures is exact. The expectation of straight-through is not."""
    scores, lengths = scores_of(structure, length, shape)
    z = listed(structure, scores, lengths)
    p = structure.log_prob(z, scores, lengths).exp()[:, 0]
    (exact,) = torch.autograd.grad((p * quadratic(z)).sum(), scores)
    p = p.detach()
    assert p.sum().item() == pytest.approx(1.0)
    drawn = second_order(structure, z, scores, lengths)
    assert torch.equal(drawn, z)
    (found,) = torch.autograd.grad((p * quadratic(drawn)).sum(), scores)
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-10)
    leaf = z.clone().requires_grad_()
    (slopes,) = torch.autograd.grad((p * quadratic(leaf)).sum(), leaf)
    straight = (structure.marginals(scores, lengths) * slopes.sum(0)).sum()
    (first_order,) = torch.autograd.grad(straight, scores)
    assert (first_order - exact).abs().max() > 1e-3


@EACH
def test_what_is_redrawn_has_the_sample_as_its_best_structure(
    structure: Factorised, length: Any, shape: tuple[int, ...]
) -> None:
    """The redrawn scores of samples also have the distribution of the noisy scores.

    Quantiles of 20,000 draws agree within 0.1.
    """
    scores, lengths = scores_of(structure, length, shape)
    many, sizes = scores.detach().repeat(20_000, *[1] * len(shape)), lengths.repeat(20_000, 1)
    sizes = sizes if sizes.shape[1] > 1 else sizes[:, 0]
    torch.manual_seed(0)
    z = structure.sample(many, sizes)[0]
    redrawn = structure.redraw(z, many, sizes)
    torch.testing.assert_close(structure.map(redrawn, sizes), z)
    noisy = structure.reparameterize(many, sizes).noisy
    parts = structure.part_mask(scores, lengths) & ~scores.isneginf()
    for one, other in zip(noisy[:, parts[0]].T, redrawn[:, parts[0]].T):
        spread = [values.sort().values[2000:18000:500] for values in (one, other)]
        torch.testing.assert_close(*spread, rtol=0, atol=0.1)


def gradients(estimator: Estimator, structure: Structure, length: int, count: int) -> Tensor:
    """Return the gradients of a nonlinear loss, for many copies of one item."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    many = scores.repeat(count, 1).requires_grad_()
    torch.manual_seed(0)
    z = estimator(structure, many, torch.full((count,), length), True).z[0]
    costs = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    loss = ((z * costs).sum(1) - 0.7).square() + (z[:, 0] * z[:, 2] - z[:, 1]).exp()
    (found,) = torch.autograd.grad(loss.sum(), many)
    return found


class ByItsOwnNoise(FactorisedEstimator):
    """Straight-through Gumbel-softmax with the noise from which structures are sampled."""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        found = structure.reparameterize(scores, lengths)
        noise = (found.noisy - scores).detach()
        soft = structure.marginals((scores + noise) / 0.5, lengths)
        return Draw.equal(GradientOf.apply(soft, found.z.detach())[None])


@pytest.mark.parametrize("structure", [OneOfN(), Bits()], ids=repr)
def test_gumbel_rao_has_the_mean_of_straight_through_gumbel_and_less_variance(
    structure: Structure,
) -> None:
    """Both have 20,000 draws. The test allows five standard errors of the difference."""
    count = 20_000
    straight = gradients(ByItsOwnNoise(1), structure, 4, count)
    averaged = gradients(GumbelRao(0.5, 16), structure, 4, count)
    error = ((straight.var(0) + averaged.var(0)) / count).sqrt()
    assert ((straight.mean(0) - averaged.mean(0)).abs() < 5 * error).all()
    assert averaged.var(0).sum() < 0.8 * straight.var(0).sum()


def test_of_one_choice_that_is_the_relaxed_perturbation() -> None:
    relaxed = RelaxedPerturbation(temperature=0.5, straight_through=True)
    straight = gradients(relaxed, OneOfN(), 4, 20_000)
    own = gradients(ByItsOwnNoise(1), OneOfN(), 4, 20_000)
    error = ((straight.var(0) + own.var(0)) / 20_000).sqrt()
    assert ((straight.mean(0) - own.mean(0)).abs() < 5 * error).all()


def test_gumbel_rao_of_one_bit_by_integration() -> None:
    """The mean over the noise of a bit given z integrates the logistic density on one side of 0."""
    scores = torch.tensor([[0.4]], dtype=torch.float64, requires_grad=True)
    estimator, structure = GumbelRao(0.7, 40_000), Bits()
    for bit in (0.0, 1.0):
        z = torch.full((1, 1, 1), bit, dtype=torch.float64)
        torch.manual_seed(0)
        soft = estimator.relaxed(structure, z, scores, torch.tensor([1]))
        (found,) = torch.autograd.grad(soft.sum(), scores)
        grid = torch.linspace(-30, 30, 200_001, dtype=torch.float64)
        density = torch.sigmoid(grid - 0.4) * torch.sigmoid(0.4 - grid)
        density = density * ((grid > 0) == bool(bit))
        value = torch.sigmoid(grid / 0.7)
        expected = (density * value * (1 - value) / 0.7).sum() / density.sum()
        assert found.item() == pytest.approx(expected.item(), rel=0.02)


@pytest.mark.parametrize("estimator", [ReinMax(2), GumbelRao(num_samples=2)], ids=lambda e: e.name)
def test_the_contract_on_choices_of_rows(estimator: Estimator) -> None:
    check_estimator(
        estimator,
        [
            Problem(IndependentHeads(), (3, 0, 2, 1), (5, 5)),
            Problem(ManyToOneAlignment(), ((3, 3), (0, 2), (2, 3), (1, 1)), (4, 4)),
            Problem(ManyToOneAlignment(True), ((3, 3), (0, 2), (2, 3), (1, 1)), (4, 4)),
            # The kit lists the structures of the first item, so this item is small.
            Problem(Bits("arcs"), (2, 0, 3, 1), (5, 5)),
        ],
    )


@pytest.mark.parametrize("estimator", [ReinMax(), GumbelRao()], ids=lambda each: each.name)
@pytest.mark.parametrize(
    "structure", [SpanningTree(), KOfN(2), Bits(budget=2), LinearChain()], ids=repr
)
def test_choices_that_depend_on_each_other_are_refused(
    estimator: Estimator, structure: Structure
) -> None:
    with pytest.raises(IncompatiblePair) as caught:
        estimator.check(structure)
    for part in (estimator.name, structure.name, "independent choices", "SampledStraightThrough"):
        assert part in str(caught.value)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(LatentError, match=r"ReinMax.*num_samples"):
        ReinMax(0)
    with pytest.raises(LatentError, match=r"GumbelRao.*num_redrawn"):
        GumbelRao(num_redrawn=0)
    with pytest.raises(LatentError, match=r"GumbelRao.*temperature"):
        GumbelRao(0.0)
