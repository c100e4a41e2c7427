"""The marginal likelihood with three estimators, against enumeration."""

from __future__ import annotations

import pytest
import torch

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator, negative_log_mixture
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.top_k_sparsemax import TopKSparsemax
from spacy_latent.models.evidence_bound import check_bound
from spacy_latent.models.latent_layer_model import check_needs_no_loss
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.one_of_n import OneOfN
from tests.estimators.test_expected_loss import FEATURES, STRUCTURES, loss_of, problem

DENSE = DenseMarginalization(4096, "marginal", "marginal_likelihood")
TOP_K = TopKSparsemax(200, "marginal", "marginal_likelihood")
SPARSEMAP = SparseMAP(marginalize=True, criterion="marginal_likelihood", tolerance=1e-12)
ALL = [DENSE, TOP_K, SPARSEMAP]


def objective(
    estimator: Estimator,
    structure: Structure,
    scores: torch.Tensor,
    length: torch.Tensor,
    table: torch.Tensor,
) -> torch.Tensor:
    draw = estimator(structure, scores, length, True)
    losses = loss_of(draw.z, table)
    features = torch.zeros(len(scores), FEATURES, dtype=scores.dtype)
    return estimator.objective(losses, draw.weights, torch.zeros_like(losses), features)


def enumerated(
    structure: Structure, scores: torch.Tensor, length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every structure, ``(K, 1, *parts)``, and its total score, ``(K,)``."""
    every = structure.top_k(scores.detach(), length, 200)
    z = every.z[~every.scores.isneginf()[:, 0]]
    return z, (z * scores).flatten(1).sum(1)


def sparsemax(totals: torch.Tensor) -> torch.Tensor:
    ranked = totals.sort(descending=True).values
    rank = torch.arange(1, len(totals) + 1)
    size = int((1 + rank * ranked > ranked.cumsum(0)).sum())
    return (totals - (ranked[:size].sum() - 1) / size).clamp_min(0)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("estimator", [DENSE, TOP_K], ids=lambda e: e.name)
def test_value_and_gradients_are_those_of_the_sum(
    structure: Structure, estimator: Estimator
) -> None:
    scores, length, table = (problem(structure)[i] for i in range(3))
    leaves = scores.requires_grad_(), table.requires_grad_()
    z, totals = enumerated(structure, scores, length)
    weights = totals.softmax(0) if estimator is DENSE else sparsemax(totals)
    expected = -(weights * (-loss_of(z, table)[:, 0]).exp()).sum().log()
    found = objective(estimator, structure, scores, length, table).sum()
    assert torch.allclose(found, expected, rtol=1e-12)
    for one, other in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves)
    ):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_sparsemap_of_one_choice_is_the_sum_over_the_sparsemax() -> None:
    scores, length, table = problem(OneOfN())
    expected = objective(TOP_K, OneOfN(), scores, length, table)
    assert torch.allclose(objective(SPARSEMAP, OneOfN(), scores, length, table), expected)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("estimator", [DENSE, TOP_K], ids=lambda e: e.name)
def test_gradients_are_those_of_finite_differences(
    structure: Structure, estimator: Estimator
) -> None:
    scores, length, table = problem(structure)
    parts = structure.part_mask(scores, length)

    def of(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        given = torch.zeros_like(scores).masked_scatter(parts, values)
        return objective(estimator, structure, given, length, table)

    leaves = scores[parts].clone().requires_grad_(), table.clone().requires_grad_()
    assert torch.autograd.gradcheck(of, leaves)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_gradients_of_a_sparsemap_support_are_those_of_finite_differences(
    structure: Structure,
) -> None:
    """The support is computed from one set of scores, since other supports may be as good."""
    scores, length, table = problem(structure)
    draw = SPARSEMAP(structure, scores, length, True)
    losses = loss_of(draw.z, table).requires_grad_()
    weights = draw.weights.detach().requires_grad_()
    assert torch.autograd.gradcheck(SPARSEMAP.loss_of_text, (losses, weights))


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: e.name)
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_ties_have_finite_gradients(estimator: Estimator, structure: Structure) -> None:
    scores, length, table = problem(structure)
    scores = torch.zeros_like(scores, dtype=torch.float32).requires_grad_()
    objective(estimator, structure, scores, length, table.float()).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: e.name)
def test_one_word_has_the_loss_of_its_structure(estimator: Estimator) -> None:
    table = torch.tensor([0.7])
    found = objective(estimator, OneOfN(), torch.tensor([[3.0]]), torch.tensor([1]), table)
    assert torch.allclose(found, loss_of(torch.ones(1, 1, 1), table)[0])


@pytest.mark.parametrize("low", [-50.0, -88.0, -95.0, -103.0, -200.0])
def test_improbable_structures_have_finite_gradients(low: float) -> None:
    """Some probabilities are denormal in float32, and one is 0."""
    scores = torch.tensor([[0.0, low]], requires_grad=True)
    draw = DENSE(OneOfN(), scores, torch.tensor([2]), True)
    losses = torch.where(draw.z[..., 0] == 1, 150.0, 0.0).requires_grad_()
    DENSE.loss_of_text(losses, draw.weights).sum().backward()
    assert scores.grad is not None
    assert losses.grad is not None
    assert scores.grad.isfinite().all()
    assert losses.grad.isfinite().all()
    if low == -50.0:
        # The structure of probability e^-50 explains the label better by e^150, so it gets all
        # weight.
        assert torch.allclose(losses.grad.flatten().sort().values, torch.tensor([0.0, 1.0]))


def test_it_is_at_most_the_expected_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(6, 20, generator=generator) * 5
    weights = torch.rand(6, 20, generator=generator).softmax(0)
    assert (
        negative_log_mixture(losses, weights) < DenseMarginalization().loss_of_text(losses, weights)
    ).all()
    same = losses[:1].expand(6, 20)
    assert torch.allclose(negative_log_mixture(same, weights), same[0], atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SparseMAP(criterion="marginal_likelihood"),
        lambda: DenseMarginalization(criterion="likelihood"),  # type: ignore[arg-type]
        lambda: TopKSparsemax(criterion="likelihood"),  # type: ignore[arg-type]
        lambda: SparseMAP(marginalize=True, criterion="likelihood"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LatentError, match="criterion"):
        make()


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: e.name)
def test_a_bound_and_a_component_without_its_own_loss_are_refused(estimator: Estimator) -> None:
    with pytest.raises(IncompatiblePair):
        check_bound(OneOfN(), estimator)
    with pytest.raises(IncompatiblePair):
        check_needs_no_loss(estimator)
    check_needs_no_loss(SparseMAP(marginalize=True))


def test_weights_of_sparsemap_are_not_unique_and_their_losses_differ() -> None:
    """The scores have no ties. The mean lies inside a square, and three of its corners suffice."""
    scores = torch.tensor([[0.3, 0.6]], dtype=torch.float64)
    draw = SparseMAP(marginalize=True)(Bits(), scores, torch.tensor([2]), True)
    mean = torch.tensor([0.3, 0.6], dtype=torch.float64)
    torch.testing.assert_close(draw.mean()[0], mean)
    corners = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    # The bits differ as often, and as rarely, as their means allow.
    apart = torch.tensor([0.1, 0.6, 0.3, 0.0], dtype=torch.float64)
    together = torch.tensor([0.4, 0.3, 0.0, 0.3], dtype=torch.float64)
    losses = (corners[:, 0] != corners[:, 1]).to(scores)[:, None]
    for weights in (apart, together):
        torch.testing.assert_close(weights @ corners, mean)
    for estimator in (SparseMAP(marginalize=True), SPARSEMAP):
        one, other = (
            float(estimator.loss_of_text(losses, weights[:, None])) for weights in (apart, together)
        )
        assert one > other + 0.3
    found = (draw.weights[:, 0] * (draw.z[:, 0, 0] != draw.z[:, 0, 1])).sum()
    assert 0.3 - 1e-6 <= float(found) <= 0.9 + 1e-6
