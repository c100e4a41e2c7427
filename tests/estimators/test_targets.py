"""Estimators that compare two best structures, or that perturb scores, against formulas."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.adaptive_implicit_mle import AdaptiveImplicitMLE
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.black_box import BlackBox
from spacy_latent.estimators.implicit_mle import ImplicitMLE
from spacy_latent.estimators.noise import draw_noise
from spacy_latent.estimators.perturbed_mean import PerturbedMean
from spacy_latent.estimators.relaxed_perturbation import RelaxedPerturbation
from spacy_latent.estimators.smoothed_dp import SmoothedDP
from spacy_latent.estimators.spigot_marginals import SpigotMarginals
from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.relaxation import project_simplex
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.structures.oracles import listed_trees
from tests.structures.test_sparsemap import project_by_nnls

LENGTHS = torch.tensor([3, 2, 0])
# An oracle that compares the scores of all trees.
ORACLE = listed_trees()


def given(seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    scores = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(3, 4, 4, dtype=torch.float64)
    return scores, upstream


def run(
    estimator: Estimator, scores: Tensor, upstream: Tensor, seed: int = 7
) -> tuple[Tensor, Tensor]:
    """Return z, and the gradient of a loss that has the gradient ``upstream`` at the mean."""
    torch.manual_seed(seed)
    draw = estimator(SpanningTree(), scores, LENGTHS, True)
    (gradient,) = torch.autograd.grad((draw.mean() * upstream).sum(), scores)
    return draw.z, gradient


def masked(values: Tensor) -> Tensor:
    return torch.where(ORACLE.part_mask(values, LENGTHS), values, 0.0)


def test_black_box_against_its_definition() -> None:
    scores, upstream = given(0)
    z, gradient = run(BlackBox(interpolation=3.0), scores, upstream)
    expected = ORACLE.map(scores, LENGTHS)
    target = ORACLE.map(scores.detach() - 3.0 * upstream, LENGTHS)
    torch.testing.assert_close(z[0], expected, rtol=0, atol=0)
    torch.testing.assert_close(gradient, (expected - target) / 3.0)


@pytest.mark.parametrize("noise", ["gumbel", "sum_of_gamma", "gaussian"])
@pytest.mark.parametrize("count", [1, 3])
def test_implicit_mle_uses_its_noise_twice(noise: str, count: int) -> None:
    scores, upstream = given(1)
    estimator = ImplicitMLE(2.0, noise=noise, scale=0.5, num_samples=count)  # type: ignore[arg-type]
    z, gradient = run(estimator, scores, upstream)
    torch.manual_seed(7)
    repeated = scores.detach().repeat(count, 1, 1)
    noisy = repeated + draw_noise(noise, repeated, 0.5)  # type: ignore[arg-type]
    expected, lengths = torch.zeros_like(scores), LENGTHS.repeat(count)
    own = ORACLE.map(noisy, lengths)
    target = ORACLE.map(noisy - 2.0 * upstream.repeat(count, 1, 1), lengths)
    expected = (own - target).view(count, 3, 4, 4).mean(0)
    torch.testing.assert_close(z.flatten(0, 1), own, rtol=0, atol=0)
    torch.testing.assert_close(gradient, expected)


def test_gradients_of_means_are_scaled_back_if_asked() -> None:
    scores, upstream = given(2)
    for estimator, scaled in (
        (BlackBox(3.0), BlackBox(3.0, scale_by_batch=True)),
        (ImplicitMLE(3.0), ImplicitMLE(3.0, scale_by_batch=True)),
        (SpigotMarginals(), SpigotMarginals(scale_by_batch=True)),
    ):
        _, plain = run(estimator, scores, upstream)
        _, mean = run(scaled, scores, upstream / 3)
        torch.testing.assert_close(mean, plain)


@pytest.mark.parametrize("difference", ["forward", "central"])
def test_adaptive_steps_follow_norms(difference: str) -> None:
    scores, upstream = given(3)
    estimator = AdaptiveImplicitMLE(
        difference, initial=0.8, noise="gaussian", rate=0.1, momentum=0.0
    )  # type: ignore[arg-type]
    z, gradient = run(estimator, scores, upstream)
    torch.manual_seed(7)
    noisy = scores.detach() + draw_noise("gaussian", scores.detach(), 1.0)
    allowed, own = masked(upstream), ORACLE.map(noisy, LENGTHS)
    size = 0.8 * masked(noisy).flatten(1).norm(dim=1) / allowed.flatten(1).norm(dim=1)
    size = torch.where(LENGTHS > 0, size, 1.0)[:, None, None]
    ahead = ORACLE.map(noisy - size * allowed, LENGTHS)
    if difference == "central":
        expected = (ORACLE.map(noisy + size * allowed, LENGTHS) - ahead) / (2 * size)
    else:
        expected = (own - ahead) / size
    torch.testing.assert_close(z[0], own, rtol=0, atol=0)
    torch.testing.assert_close(gradient, expected)
    changed = gradient.count_nonzero().item() / 3
    assert estimator.changed.item() == pytest.approx(changed)
    assert estimator.step.item() == pytest.approx(0.9 if changed < 1.0 else 0.7)
    # The scale of the loss changes no target.
    again = AdaptiveImplicitMLE(difference, initial=0.8, noise="gaussian")  # type: ignore[arg-type]
    torch.testing.assert_close(run(again, scores, 100 * upstream)[1], 100 * gradient)


@pytest.mark.parametrize("difference", ["forward", "central"])
def test_adaptive_steps_follow_the_norm_of_the_scores_as_in_the_paper(difference: str) -> None:
    """λ = β·‖s‖ / ‖g‖ of Minervini et al. (2023), the same ‖s‖ for each sample of an item."""
    scores, upstream = given(3)
    count = 2
    estimator = AdaptiveImplicitMLE(
        difference,  # type: ignore[arg-type]
        initial=0.8,
        noise="gaussian",
        rate=0.1,
        momentum=0.0,
        num_samples=count,
        norm="scores",
    )
    z, gradient = run(estimator, scores, upstream)
    torch.manual_seed(7)
    plain, lengths = scores.detach().repeat(count, 1, 1), LENGTHS.repeat(count)
    noisy = plain + draw_noise("gaussian", plain, 1.0)
    # Each sample has an equal share of the gradient at the mean.
    own = masked(upstream).repeat(count, 1, 1) / count
    length = own.flatten(1).norm(dim=1)
    size = 0.8 * masked(scores.detach()).flatten(1).norm(dim=1).repeat(count) / length
    size = torch.where(lengths > 0, size, 1.0)[:, None, None]
    ahead, behind = ORACLE.map(noisy - size * own, lengths), ORACLE.map(noisy, lengths)
    width = size
    torch.testing.assert_close(z.flatten(0, 1), behind, rtol=0, atol=0)
    if difference == "central":
        behind, width = ORACLE.map(noisy + size * own, lengths), 2 * size
    found = (behind - ahead) / width
    assert found.any()
    torch.testing.assert_close(gradient, found.view(count, 3, 4, 4).sum(0))
    changed = found.count_nonzero().item() / (count * 3)
    assert estimator.changed.item() == pytest.approx(changed)
    assert estimator.step.item() == pytest.approx(0.9 if changed < 1.0 else 0.7)


def test_the_norm_of_the_scores_is_that_of_its_own_batch() -> None:
    """Backward passes may run in another order than the batches, which may differ in size."""
    first, upstream = given(3)
    second = (5.0 * first.detach()[:2]).requires_grad_()
    sure = AdaptiveImplicitMLE(initial=2.0, rate=1e-30, norm="scores")
    gradients = []
    for together in (False, True):
        torch.manual_seed(7)
        losses = []
        for scores in (first, second):
            count = len(scores)
            draw = sure(SpanningTree(), scores, LENGTHS[:count], True)
            losses.append(((draw.mean() * upstream[:count]).sum(), scores))
            if not together:
                gradients.append(torch.autograd.grad(*losses[-1])[0])
    later = torch.autograd.grad(*losses[1])[0]
    assert torch.equal(torch.autograd.grad(*losses[0])[0], gradients[0])
    assert torch.equal(later, gradients[1]) and later.any()


def test_the_adaptive_step_leaves_scores_of_zero() -> None:
    """A scorer whose last layer is zero has such scores, and the paper's step β·‖s‖ is then 0."""
    _, upstream = given(3)
    zeros = torch.zeros_like(upstream).requires_grad_()
    _, gradient = run(AdaptiveImplicitMLE(initial=5.0, noise="gumbel"), zeros, upstream)
    assert bool(gradient.any())
    paper = AdaptiveImplicitMLE(initial=5.0, noise="gumbel", norm="scores")
    _, gradient = run(paper, zeros, upstream)
    assert not gradient.any()


def test_the_adaptive_step_is_saved_with_the_weights() -> None:
    estimator, other = AdaptiveImplicitMLE(initial=0.3), AdaptiveImplicitMLE()
    holder, copy = torch.nn.Module(), torch.nn.Module()
    holder.estimator, copy.estimator = estimator, other
    copy.load_state_dict(holder.state_dict())
    assert other.step.item() == pytest.approx(0.3)


@pytest.mark.parametrize("forward", ["map", "mean"])
@pytest.mark.parametrize("step", ["projected", "exponentiated"])
def test_spigot_around_marginals(step: Any, forward: Any) -> None:
    scores, upstream = given(4)
    estimator = SpigotMarginals(step, step_size=0.7, forward=forward)
    z, gradient = run(estimator, scores, upstream)
    expected = ORACLE.map(scores, LENGTHS)
    if forward == "mean":
        expected = SpanningTree().marginals(scores, LENGTHS)
    torch.testing.assert_close(z[0], expected)
    best = estimator(SpanningTree(), scores, LENGTHS, False).z[0]
    torch.testing.assert_close(best, ORACLE.map(scores, LENGTHS))
    for b, n in enumerate(LENGTHS.tolist()):
        members = torch.from_numpy(ORACLE.members(n)).flatten(1)
        window = (b, slice(0, n + 1), slice(0, n + 1))

        def mean(s: Tensor, members: Tensor = members) -> Tensor:
            return (members @ s).softmax(0) @ members

        own, change = scores.detach()[window].flatten(), 0.7 * upstream[window].flatten()
        if step == "exponentiated":
            expected = mean(own) - mean(own - change)
        else:
            used = members.any(0)
            point = torch.where(used, mean(own) - change, 0.0)
            projected = project_by_nnls(members.numpy(), point.numpy())
            expected = mean(own) - torch.as_tensor(projected)
        torch.testing.assert_close(gradient[window].flatten(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("structure", "lengths"), [(SpanningTree(), LENGTHS), (LinearChain(), torch.tensor([4, 2, 0]))]
)
def test_small_exponentiated_steps_are_domkes_derivative_of_marginals(
    structure: Structure, lengths: Tensor
) -> None:
    torch.manual_seed(8)
    shape = (3, 4, 4, 4)[: 1 + structure.part_axes]
    scores = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(shape, dtype=torch.float64)
    marginals = structure.marginals(scores, lengths)
    (expected,) = torch.autograd.grad((marginals * upstream).sum(), scores)
    apart = []
    for step in (1e-1, 1e-2, 1e-3):
        estimator = SpigotMarginals("exponentiated", step, forward="mean")
        z = estimator(structure, scores, lengths, True).z[0]
        (gradient,) = torch.autograd.grad((z * upstream).sum(), scores)
        apart.append(float((gradient / step - expected).abs().max()))
    # The error of a one-sided difference shrinks with its step.
    assert apart[0] < 0.3 * float(expected.abs().max())
    for large, small in zip(apart, apart[1:]):
        assert 8 < large / small < 12


@pytest.mark.parametrize("noise", ["gaussian", "gumbel"])
def test_the_perturbed_mean_has_the_gradient_of_its_expectation(noise: str) -> None:
    """The expectation of one of n with Gumbel noise is the softmax.

    The tolerance is five standard errors of 20,000 draws.
    """
    torch.manual_seed(0)
    scores = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    lengths, upstream = torch.tensor([4]), torch.randn(1, 4, dtype=torch.float64)
    estimator = PerturbedMean(noise, num_samples=20_000)  # type: ignore[arg-type]
    draw = estimator(OneOfN(), scores, lengths, True)
    (gradient,) = torch.autograd.grad((draw.z[0] * upstream).sum(), scores)
    if noise == "gumbel":
        reference = scores.softmax(1)
        (expected,) = torch.autograd.grad((reference * upstream).sum(), scores)
        torch.testing.assert_close(draw.z[0], reference.detach(), rtol=0, atol=0.02)
    else:
        # Use finite differences over the same 400,000 draws.
        noise_drawn = torch.randn(400_000, 4, dtype=torch.float64)
        expected = torch.zeros(1, 4, dtype=torch.float64)
        for j in range(4):
            values = []
            for sign in (-0.2, 0.2):
                moved = scores.detach()[0].clone()
                moved[j] += sign
                values.append(upstream[0][(moved + noise_drawn).argmax(1)].mean())
            expected[0, j] = (values[1] - values[0]) / 0.4
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0.05)


@pytest.mark.parametrize("relaxation", ["marginals", "sparsemap"])
@pytest.mark.parametrize("straight", [False, True])
def test_relaxed_perturbation(relaxation: str, straight: bool) -> None:
    scores, upstream = given(5)
    estimator = RelaxedPerturbation(relaxation, 0.5, straight, num_samples=2)  # type: ignore[arg-type]
    z, gradient = run(estimator, scores, upstream)
    torch.manual_seed(7)
    repeated = scores.repeat(2, 1, 1)
    noisy = repeated + draw_noise("gumbel", repeated.detach(), 1.0)
    lengths, structure = LENGTHS.repeat(2), SpanningTree()
    if relaxation == "marginals":
        soft = structure.marginals(noisy / 0.5, lengths)
    else:
        soft = structure.sparsemap(noisy / 0.5, lengths).mean
    (expected,) = torch.autograd.grad((soft * upstream.repeat(2, 1, 1)).sum() / 2, scores)
    torch.testing.assert_close(gradient, expected)
    value = structure.map(noisy, lengths) if straight else soft
    torch.testing.assert_close(z.flatten(0, 1), value.detach())


def walk_of(scores: Tensor, gamma: float) -> Tensor:
    """Return the expected path of the quadratically smoothed recursion over one chain, ``(n, K,
    K)``.

    It is the sum over all paths, each with its probability under the walk.
    """
    n, states = scores.shape[:2]
    # The first transition has only row 0, the start. A message is a smoothed maximum over the
    # previous tags.
    value, shares = scores[0, 0], []
    for step in scores[1:]:
        before = (value[:, None] + step).T / gamma
        p = project_simplex(before)
        value = gamma * ((p * before).sum(1) - 0.5 * (p.square().sum(1) - 1.0))
        shares.append(p)
    last = project_simplex(value / gamma)
    total = torch.zeros_like(scores)
    for path in itertools.product(range(states), repeat=n):
        weight = last[path[-1]]
        for i in range(1, n):
            weight = weight * shares[i - 1][path[i], path[i - 1]]
        z = torch.zeros_like(scores)
        z[0, 0, path[0]] = 1.0
        for i in range(1, n):
            z[i, path[i - 1], path[i]] = 1.0
        total = total + weight * z
    return total


def test_smoothed_perturbation_is_the_expected_path_of_the_noisy_recursion() -> None:
    """The reference is the sum over all paths, for texts of three words, one word and no word."""
    torch.manual_seed(2)
    scores = torch.randn(3, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    upstream, lengths = torch.randn_like(scores), torch.tensor([3, 1, 0])
    estimator, chain = RelaxedPerturbation("smoothed", 0.7, scale=0.5, num_samples=2), LinearChain()
    estimator.check(chain)
    torch.manual_seed(7)
    draw = estimator(chain, scores, lengths, True)
    (gradient,) = torch.autograd.grad((draw.mean() * upstream).sum(), scores)
    torch.manual_seed(7)
    noisy = scores + draw_noise("gumbel", scores.detach().repeat(2, 1, 1, 1), 0.5).view(
        2, *scores.shape
    )
    expected = torch.zeros_like(noisy)
    for k, b in itertools.product(range(2), range(2)):
        n = int(lengths[b])
        expected[k, b, :n] = walk_of(noisy[k, b, :n], 0.7)
    torch.testing.assert_close(draw.z, expected)
    # The result is sparse, but no single path.
    assert (draw.z[:, 0, 1:] == 0).any() and ((draw.z > 0) & (draw.z < 1)).any()
    (wanted,) = torch.autograd.grad((expected.mean(0) * upstream).sum(), scores)
    torch.testing.assert_close(gradient, wanted)
    quiet = estimator(chain, scores, lengths, False)
    same = SmoothedDP("quadratic", 0.7)(chain, scores, lengths, True).z
    torch.testing.assert_close(quiet.z, same)


def test_smoothed_perturbation_at_ties_and_its_best_path() -> None:
    chain, lengths = LinearChain(), torch.tensor([2, 1])
    ties = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    z = RelaxedPerturbation("smoothed")(chain, ties, lengths, False).z[0]
    expected = torch.zeros_like(ties)
    expected[:, 0, 0], expected[0, 1] = 0.5, 0.25
    torch.testing.assert_close(z, expected)
    torch.manual_seed(0)
    scores = torch.randn(2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    hard = RelaxedPerturbation("smoothed", straight_through=True)(chain, scores, lengths, True).z
    torch.manual_seed(1)
    soft = RelaxedPerturbation("smoothed")(chain, scores, lengths, True).z
    torch.manual_seed(1)
    best = chain.map(scores + draw_noise("gumbel", scores.detach(), 1.0), lengths)
    torch.testing.assert_close(hard[0], best, rtol=0, atol=0)
    upstream = torch.randn_like(hard)
    one, other = (torch.autograd.grad((z * upstream).sum(), scores)[0] for z in (hard, soft))
    torch.testing.assert_close(one, other)


def test_smoothed_perturbation_refuses_structures_without_the_recursion() -> None:
    estimator = RelaxedPerturbation("smoothed")
    for chain in (LinearChain(), SemiMarkov(), Runs(2), MonotoneAlignment()):
        estimator.check(chain)
    for structure in (SpanningTree(), ProjectiveTree(), OneOfN()):
        with pytest.raises(IncompatiblePair, match="smoothed"):
            estimator.check(structure)
    with pytest.raises(LatentError, match="relaxation"):
        RelaxedPerturbation("quadratic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "estimator",
    [
        BlackBox(),
        ImplicitMLE(),
        AdaptiveImplicitMLE(),
        SpigotMarginals(),
        PerturbedMean(),
        RelaxedPerturbation(),
        RelaxedPerturbation(straight_through=True),
    ],
    ids=lambda estimator: estimator.name,
)
def test_prediction_has_no_noise(estimator: Estimator) -> None:
    scores, _ = given(6)
    first = estimator(SpanningTree(), scores, LENGTHS, False)
    second = estimator(SpanningTree(), scores, LENGTHS, False)
    torch.testing.assert_close(first.z, second.z, rtol=0, atol=0)
    assert first.z.shape[0] == 1
    if estimator.hard_at_prediction:
        torch.testing.assert_close(first.z[0], ORACLE.map(scores, LENGTHS), rtol=0, atol=0)


def test_noise_has_the_moments_that_it_should() -> None:
    """The tolerance is five standard errors of the draws or more."""
    torch.manual_seed(0)
    many = torch.zeros(200_000, dtype=torch.float64)
    gaussian = draw_noise("gaussian", many, 2.0)
    assert abs(gaussian.mean().item()) < 0.03 and abs(gaussian.std().item() - 2.0) < 0.02
    # The sum of k draws is near Gumbel(0, 1): Niepert et al. report mean 0.62, variance 1.55.
    summed = draw_noise("sum_of_gamma", torch.zeros(40_000, 5, dtype=torch.float64), 1.0, k=5).sum(
        1
    )
    assert summed.mean().item() == pytest.approx(0.62, abs=0.04)
    assert summed.var().item() == pytest.approx(1.55, abs=0.08)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(LatentError, match="noise"):
        PerturbedMean("sum_of_gamma")  # type: ignore[arg-type]
    with pytest.raises(LatentError, match="num_samples"):
        PerturbedMean(num_samples=1)
    with pytest.raises(LatentError, match="target_step"):
        ImplicitMLE(target_step=0.0)
    with pytest.raises(LatentError, match="difference"):
        AdaptiveImplicitMLE("backward")  # type: ignore[arg-type]
    with pytest.raises(LatentError, match="norm"):
        AdaptiveImplicitMLE(norm="plain")  # type: ignore[arg-type]
    with pytest.raises(LatentError, match="interpolation"):
        BlackBox(-1.0)
    with pytest.raises(IncompatiblePair, match=r"SpigotMarginals.*Listed"):
        SpigotMarginals().check(ORACLE)


@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("mask", [-1e6, -1e30])
@pytest.mark.parametrize("norm", ["noisy", "scores"])
def test_the_step_of_aimle_is_not_that_of_a_mask(difference: str, mask: float, norm: str) -> None:
    def gradient(masking: float) -> Tensor:
        scores = torch.randn(8, 5, generator=torch.Generator().manual_seed(2))
        scores[:, 2] = masking
        scores.requires_grad_()
        upstream = torch.randn(8, 5, generator=torch.Generator().manual_seed(3))
        torch.manual_seed(4)
        estimator = AdaptiveImplicitMLE(difference, norm=norm)  # type: ignore[arg-type]
        draw = estimator(KOfN(2), scores, torch.full((8,), 5), True)
        return torch.autograd.grad((draw.mean() * upstream).sum(), scores)[0]

    expected = gradient(-torch.inf)
    assert expected.any() and not expected[:, 2].any()
    torch.testing.assert_close(gradient(mask), expected)


@pytest.mark.parametrize("estimator", [BlackBox(), ImplicitMLE(), AdaptiveImplicitMLE()])
@pytest.mark.parametrize("size", [1e-5, 2e4])
def test_steps_beyond_the_numbers_of_half_precision(estimator: Estimator, size: float) -> None:
    scores = given(0)[0].half().detach().requires_grad_()
    scores.data[:, 0] *= 100
    draw = estimator(ORACLE, scores, LENGTHS, is_train=True)
    (found,) = torch.autograd.grad((draw.mean() * size).sum(), scores)
    assert found.dtype == torch.float16 and found.isfinite().all()
