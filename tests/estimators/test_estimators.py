"""Estimators against their definitions, with brute-force oracles."""

from __future__ import annotations

import pytest
import torch

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.noise import draw_noise
from spacy_latent.estimators.perturb_and_map import PerturbAndMap
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.spigot import Spigot
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.structures.oracles import listed_subsets, listed_trees
from tests.structures.test_sparsemap import project_by_nnls

LENGTHS = torch.tensor([3, 2, 0])


def make_scores(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)


def gradient_at_scores(
    estimator: Estimator, scores: torch.Tensor, upstream: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    draw = estimator(listed_trees(), scores, LENGTHS, True)
    (gradient,) = torch.autograd.grad((draw.z[0] * upstream).sum(), scores)
    return draw.z[0], gradient


def test_straight_through_identity_passes_the_gradient_of_parts() -> None:
    scores, upstream = make_scores(), torch.randn(3, 4, 4, dtype=torch.float64)
    z, gradient = gradient_at_scores(StraightThrough(), scores, upstream)
    structure = listed_trees()
    torch.testing.assert_close(z, structure.map(scores, LENGTHS), rtol=0, atol=0)
    mask = structure.part_mask(scores, LENGTHS)
    torch.testing.assert_close(gradient, torch.where(mask, upstream, 0.0))


def test_straight_through_marginals_is_the_full_hessian() -> None:
    """The gradient is Cov(z)·g, with the covariance from a list of the trees, and not its diagonal
    alone.
    """
    scores, upstream = make_scores(1), torch.randn(3, 4, 4, dtype=torch.float64)
    draw = StraightThrough("marginals")(SpanningTree(), scores, LENGTHS, True)
    assert set(draw.z.unique().tolist()) <= {0.0, 1.0}
    (gradient,) = torch.autograd.grad((draw.z[0] * upstream).sum(), scores)
    for b, n in enumerate(LENGTHS.tolist()):
        members = torch.from_numpy(listed_trees().members(n))
        window = (b, slice(0, n + 1), slice(0, n + 1))
        p = (members * scores.detach()[window]).flatten(1).sum(1).softmax(0)
        inner = (members * upstream[window]).flatten(1).sum(1)
        covariance = (p * (inner - p @ inner)) @ members.flatten(1)
        torch.testing.assert_close(gradient[window].flatten(), covariance, rtol=1e-6, atol=1e-8)


def test_spigot_with_noise_is_spigot_at_the_noisy_scores() -> None:
    scores, upstream = make_scores(2), torch.randn(3, 4, 4, dtype=torch.float64)
    torch.manual_seed(0)
    noisy = (scores + draw_noise("gumbel", scores, 2.0)).detach().requires_grad_()
    expected = gradient_at_scores(Spigot(), noisy, upstream)
    torch.manual_seed(0)
    found = gradient_at_scores(Spigot(noise="gumbel", scale=2.0), scores, upstream)
    torch.testing.assert_close(found, expected)
    predicted = Spigot(noise="gumbel", scale=2.0)(SpanningTree(), scores, LENGTHS, False).z[0]
    assert not torch.equal(found[0], predicted)
    torch.testing.assert_close(predicted, SpanningTree().map(scores, LENGTHS))


def test_spigot_draws_several_structures_and_takes_the_mean_of_their_steps() -> None:
    scores, upstream = make_scores(2), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    torch.manual_seed(0)
    draw = Spigot(noise="gumbel", num_samples=2)(SpanningTree(), scores, LENGTHS, True)
    assert draw.z.shape == (2, 3, 4, 4) and draw.weights.eq(0.5).all()
    losses = (draw.z * upstream).sum((1, 2, 3))
    (found,) = torch.autograd.grad(losses.mean(), scores)
    torch.manual_seed(0)
    noise = draw_noise("gumbel", scores.repeat(2, 1, 1), 1.0).view(2, *scores.shape)
    steps = []
    for one, own in zip(noise, upstream):
        noisy = (scores + one).detach().requires_grad_()
        steps.append(gradient_at_scores(Spigot(), noisy, own)[1])
    torch.testing.assert_close(found, (steps[0] + steps[1]) / 2)
    with pytest.raises(LatentError, match=r"num_samples.*2"):
        Spigot(num_samples=2)


@pytest.mark.parametrize("step_size, max_norm", [(1.0, None), (0.3, None), (1.0, 0.5)])
def test_spigot_exact_against_its_definition(step_size: float, max_norm: float | None) -> None:
    scores, upstream = make_scores(2), torch.randn(3, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        scores[0, 1, 2] = -torch.inf
    z, gradient = gradient_at_scores(Spigot(step_size, max_norm=max_norm), scores, upstream)
    z = z.detach()
    for b, n in enumerate(LENGTHS.tolist()):
        window = (b, slice(0, n + 1), slice(0, n + 1))
        members = torch.from_numpy(listed_trees().members(n))
        allowed = torch.isfinite(scores[window]) & members.bool().any(0)
        members = members[(members.bool() & ~allowed).flatten(1).sum(1) == 0]
        g = torch.where(allowed, upstream[window], 0.0)
        if max_norm is not None:
            g = g * min(1.0, max_norm / max(g.norm().item(), 1e-12))
        point = torch.where(allowed, z[window] - step_size * g, 0.0)
        nearest = torch.from_numpy(
            project_by_nnls(members.flatten(1).numpy(), point.flatten().numpy())
        )
        expected = z[window].flatten() - nearest
        torch.testing.assert_close(gradient[window].flatten(), expected, atol=1e-6, rtol=0)
    assert gradient[0, 1, 2] == 0
    # From a vertex of the polytope, scores of chosen arcs can only fall, and others can only rise.
    assert (gradient[z == 1] >= -1e-9).all() and (gradient[z == 0] <= 1e-9).all()


def test_spigot_relaxed_projects_each_column_on_a_simplex() -> None:
    scores, upstream = make_scores(3), torch.randn(3, 4, 4, dtype=torch.float64)
    structure = SpanningTree()
    draw = Spigot(0.7, "relaxed")(structure, scores, LENGTHS, True)
    (gradient,) = torch.autograd.grad((draw.z[0] * upstream).sum(), scores)
    mask = structure.part_mask(scores, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        for modifier in range(1, n + 1):
            heads = mask[b, :, modifier]
            z = draw.z[0, b, heads, modifier].detach()
            point = (z - 0.7 * upstream[b, heads, modifier]).numpy()
            nearest = project_by_nnls(torch.eye(n).double().numpy(), point)
            torch.testing.assert_close(
                gradient[b, heads, modifier], z - torch.from_numpy(nearest), atol=1e-6, rtol=0
            )
    assert not gradient[~mask].any()


def test_spigot_scales_by_the_batch() -> None:
    scores, upstream = make_scores(2), torch.randn(3, 4, 4, dtype=torch.float64)
    _, whole = gradient_at_scores(Spigot(), scores, upstream)
    _, mean = gradient_at_scores(Spigot(scale_by_batch=True), scores, upstream / 3)
    torch.testing.assert_close(whole, mean)


def test_perturb_and_map_of_one_choice_samples_the_softmax() -> None:
    """Gumbel noise gives exact samples of one of n. The test allows four standard errors."""
    torch.manual_seed(0)
    scores, count = torch.tensor([[1.0, 0.0, -1.0, 0.5]]), 4000
    draw = PerturbAndMap(num_samples=count)(listed_subsets(1, 1), scores, torch.tensor([4]), True)
    assert draw.z.shape == (count, 1, 4)
    torch.testing.assert_close(draw.weights.sum(0), torch.ones(1))
    p = scores.softmax(1)
    assert ((draw.mean() - p).abs() < 4 * (p * (1 - p) / count).sqrt()).all()


def test_sum_of_gamma_noise_adds_up_to_gumbel() -> None:
    torch.manual_seed(0)
    sums = draw_noise("sum_of_gamma", torch.zeros(40_000, 5), 1.0, k=5).sum(1)
    assert abs(sums.mean().item() - 0.62) < 0.03
    assert abs(sums.var().item() - 1.55) < 0.06


@pytest.mark.parametrize("backward", ["identity", "marginals"])
def test_perturb_and_map_uses_the_same_noise_twice(backward: str) -> None:
    """The gradient equals the gradient of straight-through on the noisy scores.

    The marginals in the backward pass therefore use the noise of the forward pass.
    """
    structure, scores = SpanningTree(), make_scores(4)
    torch.manual_seed(9)
    draw = PerturbAndMap(scale=3.0, backward=backward)(structure, scores, LENGTHS, True)  # type: ignore[arg-type]
    upstream = torch.randn(3, 4, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((draw.z[0] * upstream).sum(), scores)
    torch.manual_seed(9)
    noisy = (scores + draw_noise("gumbel", scores, 3.0)).detach().requires_grad_()
    same = StraightThrough(backward)(structure, noisy, LENGTHS, True)  # type: ignore[arg-type]
    torch.testing.assert_close(draw.z, same.z)
    torch.testing.assert_close(
        gradient, torch.autograd.grad((same.z[0] * upstream).sum(), noisy)[0]
    )


def test_sparsemap_marginalized_has_the_same_mean() -> None:
    scores = make_scores(5)
    mean = SparseMAP()(SpanningTree(), scores, LENGTHS, True)
    draw = SparseMAP(marginalize=True)(SpanningTree(), scores, LENGTHS, True)
    torch.testing.assert_close(draw.mean(), mean.z[0])
    assert (draw.z[:, 0, :, 1:].sum(1) == 1).all(), "padding is a tree, too"
    (of_mean,) = torch.autograd.grad((mean.z[0] ** 2).sum(), scores)
    (of_weights,) = torch.autograd.grad((draw.mean() ** 2).sum(), scores)
    torch.testing.assert_close(of_mean, of_weights)


@pytest.mark.parametrize(
    "estimator",
    [
        SparseMAP(prediction="map"),
        StraightThrough(),
        Spigot(),
        PerturbAndMap(num_samples=3),
    ],
)
def test_prediction_is_the_best_structure(estimator: Estimator) -> None:
    scores = make_scores(6)
    draw = estimator(SpanningTree(), scores, LENGTHS, False)
    assert draw.z.shape[0] == 1 and estimator.hard_at_prediction
    torch.testing.assert_close(draw.z[0], SpanningTree().map(scores, LENGTHS))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SparseMAP(prediction="mean"), "prediction"),  # type: ignore[arg-type]
        (lambda: SparseMAP(max_iter=0), "max_iter"),
        (lambda: SparseMAP(tolerance=float("nan")), "tolerance"),
        (lambda: StraightThrough("softmax"), "backward"),  # type: ignore[arg-type]
        (lambda: Spigot(step_size=0.0), "step_size"),
        (lambda: Spigot(projection="best"), "projection"),  # type: ignore[arg-type]
        (lambda: Spigot(max_norm=-1.0), "max_norm"),
        (lambda: PerturbAndMap(noise="normal"), "noise"),  # type: ignore[arg-type]
        (lambda: PerturbAndMap(scale=-1.0), "scale"),
        (lambda: PerturbAndMap(num_samples=0), "num_samples"),
    ],
)
def test_bad_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(LatentError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "estimator",
    [
        StraightThrough("marginals"),
        PerturbAndMap(backward="marginals"),
        Spigot(projection="relaxed"),
    ],
)
def test_impossible_pairs_are_named(estimator: Estimator) -> None:
    with pytest.raises(IncompatiblePair, match=rf"{estimator.name}.*Listed"):
        estimator.check(listed_subsets(1, 2))
