"""Masks that are 0 or 1 with positive probability, and the mixed Dirichlet."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.hard_concrete import HardConcrete
from spacy_latent.estimators.hard_kuma import HardKuma
from spacy_latent.estimators.mixed_dirichlet import MixedDirichlet
from spacy_latent.estimators.rectified_gaussian import RectifiedGaussian
from spacy_latent.estimators.relaxed_perturbation import RelaxedPerturbation
from spacy_latent.estimators.stochastic_mask import StochasticMask, share_changed
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.estimators.trace_score_function import TraceScoreFunction
from spacy_latent.models.layer_settings import check_entropy_weight
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN

MASKS = [HardConcrete, HardKuma, RectifiedGaussian]
SCORES = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.0])


@pytest.mark.parametrize("kind", MASKS)
def test_zeros_are_as_frequent_as_their_closed_form_says(kind: type[StochasticMask]) -> None:
    torch.manual_seed(0)
    scores = SCORES.double().repeat(40_000, 1)
    z = kind().draw(scores)
    assert (z >= 0).all() and (z <= 1).all() and (z == 1).any() and ((z > 0) & (z < 1)).any()
    expected = kind().nonzero(SCORES.double())
    torch.testing.assert_close((z > 0).double().mean(0), expected, atol=0.01, rtol=0)
    assert (expected.diff() > 0).all()
    # At a score of 0 neither value is preferred. HardKuma then has a = b = 1.
    assert z[:, 2].mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("kind", MASKS)
def test_gradients_with_the_noise_held_fixed(kind: type[StochasticMask]) -> None:
    scores = SCORES.double().requires_grad_()

    def fixed(s: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return kind().draw(s)

    assert torch.autograd.gradcheck(fixed, (scores,))
    assert torch.autograd.gradcheck(kind().nonzero, (scores,))


@pytest.mark.parametrize("kind", MASKS)
def test_extreme_scores_are_decided(kind: type[StochasticMask]) -> None:
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor([-1e30, -300.0, 300.0, 1e30], dtype=dtype, requires_grad=True)
        z = kind().draw(scores)
        assert z.tolist() == [0.0, 0.0, 1.0, 1.0]
        (gradient,) = torch.autograd.grad(z.sum() + kind().nonzero(scores).sum(), scores)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("kind", MASKS)
def test_forbidden_items_and_padding_are_never_chosen(kind: type[StochasticMask]) -> None:
    scores = torch.full((2, 4), 5.0)
    scores[0, 1] = -torch.inf
    lengths = torch.tensor([4, 2])
    estimator = kind(rate=0.5)
    draw = estimator(Bits(), scores.requires_grad_(), lengths, True)
    assert not draw.z[0, 0, 1] and not draw.z[0, 1, 2:].any() and draw.penalty is not None
    (gradient,) = torch.autograd.grad(draw.z.sum() + draw.penalty.sum(), scores)
    assert torch.isfinite(gradient).all() and not gradient[1, 2:].any()
    share = estimator.nonzero(torch.tensor([5.0])) * torch.tensor([3 / 4, 1.0])
    excess = share - 0.5
    expected = 10 * excess.mean() * excess
    torch.testing.assert_close(draw.penalty.detach(), expected, atol=1e-5, rtol=0)
    assert float(estimator.multipliers[0]) == pytest.approx(0.1 * float(excess.mean()))
    predicted = estimator(Bits(), scores, lengths, False)
    assert predicted.penalty is None
    assert predicted.z[0].tolist() == [[1, 0, 1, 1], [1, 1, 0, 0]]


def test_transitions_are_counted_between_neighbours() -> None:
    chosen = torch.tensor([[1.0, 0.0, 0.5, 0.5], [1.0, 1.0, 0.0, 0.0]])
    inside = torch.tensor([[True] * 4, [True, True, False, False]])
    found = share_changed(chosen, inside)
    torch.testing.assert_close(found[0], torch.tensor([(1 + 0.5 + 0.5) / 3, 0.0]))
    assert found[1].tolist() == [3, 1]


@pytest.mark.parametrize("kind", MASKS)
def test_texts_without_anything_to_count_do_not_move_the_multiplier(
    kind: type[StochasticMask],
) -> None:
    scores, both = torch.full((2, 3), 9.0), torch.tensor([3, 0])
    estimator = kind(rate=0.5, transitions=0.5)
    draw = estimator(Bits(), scores, both, True)
    alone = kind(rate=0.5, transitions=0.5)
    expected = alone(Bits(), scores[:1], both[:1], True)
    torch.testing.assert_close(estimator.multipliers, alone.multipliers)
    torch.testing.assert_close(draw.penalty, torch.cat([expected.penalty, torch.zeros(1)]))


@pytest.mark.parametrize("kind", MASKS)
def test_means_are_those_of_many_draws(kind: type[StochasticMask]) -> None:
    torch.manual_seed(0)
    scores = SCORES.double()
    found = kind(prediction="mean")(Bits(), scores[None], torch.tensor([5]), False).z[0, 0]
    torch.testing.assert_close(
        found, kind().draw(scores.repeat(40_000, 1)).mean(0), atol=0.01, rtol=0
    )


@pytest.mark.parametrize("kind", MASKS)
def test_means_hold_in_the_tails(kind: type[StochasticMask]) -> None:
    scores = torch.tensor([-30.0, -9.0, -6.0, -4.0, 0.0, 4.0, 9.0], dtype=torch.float64)
    estimator = kind(prediction="mean")
    found = estimator(Bits(), scores[None], torch.tensor([7]), False).z[0, 0]
    for score, value in zip(scores, found):

        def survival(x: float, score: torch.Tensor = score) -> float:
            return float(estimator.above(score, (x + 0.1) / 1.2))

        # If scores are low, almost all of the mass is near 0, so the integral has several
        # intervals.
        expected = sum(
            quad(survival, *bounds, epsabs=0, epsrel=1e-11, limit=200)[0]
            for bounds in ((0, 0.01), (0.01, 0.1), (0.1, 1))
        )
        assert float(value) == pytest.approx(expected, rel=1e-6)
    known = {
        HardConcrete: (2, 0.00330),
        HardKuma: (3, 2.957e-5),
        RectifiedGaussian: (3, 5.77867e-5),
    }[kind]
    assert float(found[known[0]]) == pytest.approx(known[1], rel=2e-3)
    many = scores.requires_grad_()
    assert torch.autograd.gradcheck(estimator.mean, (many[1:],))
    # Check P(z > x) itself by draws.
    torch.manual_seed(0)
    drawn = estimator.draw(SCORES.double().repeat(40_000, 1))
    for x in (0.0, 0.3, 0.9):
        share = estimator.above(SCORES.double(), (x + 0.1) / 1.2)
        torch.testing.assert_close((drawn > x).double().mean(0), share, atol=0.01, rtol=0)


@pytest.mark.parametrize("score", [-200.0, -60.0, -8.0, -7.0, 0.0, 50.0])
def test_the_only_face_is_certain(score: float) -> None:
    for dtype in (torch.float32, torch.float64):
        scores = torch.full((1, 1), score, dtype=dtype, requires_grad=True)
        draw = MixedDirichlet()(OneOfN(), scores, torch.tensor([1]), True)
        assert draw.log_probs is not None
        (gradient,) = torch.autograd.grad(draw.log_probs.sum(), scores)
        assert abs(float(draw.log_probs)) < 1e-5 and abs(float(gradient)) < 1e-3


@pytest.mark.parametrize("kind", MASKS)
def test_the_constraint_is_reached(kind: type[StochasticMask]) -> None:
    """The loss falls with every chosen item, but the constraint is a rate of 0.3."""
    torch.manual_seed(0)
    scores = torch.zeros(16, 10, requires_grad=True)
    lengths = torch.full((16,), 10)
    estimator = kind(rate=0.3)
    optimizer = torch.optim.Adam([scores], lr=0.05)
    for _ in range(800):
        draw = estimator(Bits(), scores, lengths, True)
        loss = (draw.penalty - draw.z[0].mean(1)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(estimator.nonzero(scores).mean()) == pytest.approx(0.3, abs=0.05)
    weights = {"log_scale"} if kind is RectifiedGaussian else set()
    assert set(estimator.state_dict()) == {"multipliers", *weights}


def test_neighbours_stay_together_where_transitions_are_bound() -> None:
    torch.manual_seed(0)
    scores = torch.zeros(8, 12, requires_grad=True)
    lengths = torch.full((8,), 12)
    estimator = HardKuma(rate=0.5, transitions=0.1)
    optimizer = torch.optim.Adam([scores], lr=0.05)
    for _ in range(800):
        draw = estimator(Bits(), scores, lengths, True)
        optimizer.zero_grad()
        draw.penalty.sum().backward()
        optimizer.step()
    z = (scores > 0).float()
    assert float((z[:, 1:] != z[:, :-1]).float().mean()) < 0.25
    assert 0.3 < float(z.mean()) < 0.7


def test_faces_have_their_probabilities_and_weights_lie_on_them() -> None:
    torch.manual_seed(0)
    scores = torch.tensor([[0.5, -1.0, -torch.inf, 1.0, 9.0]], dtype=torch.float64)
    estimator = MixedDirichlet(num_samples=40_000)
    draw = estimator(OneOfN(), scores, torch.tensor([4]), True)
    assert draw.log_probs is not None
    torch.testing.assert_close(draw.z.sum(2), torch.ones(40_000, 1).double())
    assert not draw.z[..., 2].any() and not draw.z[..., 4].any()
    total = 0.0
    for bits in product([0, 1], repeat=3):
        if not any(bits):
            continue
        face = torch.tensor([bits[0], bits[1], 0, bits[2], 0])
        on_it = ((draw.z[:, 0] > 0).long() == face).all(1)
        expected = float(draw.log_probs[on_it][0].exp())
        total += expected
        assert float(on_it.double().mean()) == pytest.approx(expected, abs=0.01)
    assert total == pytest.approx(1.0)


def test_the_dirichlet_on_a_face_has_its_mean() -> None:
    torch.manual_seed(0)
    scores = torch.tensor([[30.0, 31.0]], dtype=torch.float64)
    draw = MixedDirichlet(0.1, num_samples=40_000)(OneOfN(), scores, torch.tensor([2]), True)
    both = draw.z[(draw.z > 0).all(2)]
    concentration = 1 + torch.nn.functional.softplus(scores[0])
    expected = concentration / concentration.sum()
    torch.testing.assert_close(both.mean(0), expected, atol=0.01, rtol=0)


def mean_over_faces(scores: torch.Tensor, concentration: float) -> torch.Tensor:
    """Return the mean of the mixed Dirichlet of one item, ``(N,)``, by enumeration of faces."""
    shapes = concentration * (1 + torch.nn.functional.softplus(scores))
    allowed = torch.isfinite(scores)
    faces = torch.tensor(list(product([False, True], repeat=len(scores))))[1:]
    faces = faces[~(faces & ~allowed).any(1)]
    chances = torch.where(faces, scores, 0.0).sum(1).softmax(0)
    weights = torch.where(faces, shapes, 0.0)
    return chances @ (weights / weights.sum(1, keepdim=True))


@pytest.mark.parametrize("concentration", [1e-6, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 60.0, 600.0])
def test_prediction_by_the_mean_is_the_sum_over_faces(scale: float, concentration: float) -> None:
    torch.manual_seed(0)
    scores = torch.randn(5, 5, dtype=torch.float64) * scale
    scores[1, 2], scores[3] = -torch.inf, -30 - torch.arange(5.0)
    lengths = torch.tensor([5, 4, 1, 5, 0])
    estimator = MixedDirichlet(concentration, prediction="mean")
    found = estimator(OneOfN(), scores, lengths, False)
    for b, n in enumerate(lengths.tolist()):
        expected = torch.zeros(5, dtype=torch.float64)
        if n:
            expected[:n] = mean_over_faces(scores[b, :n], concentration)
        torch.testing.assert_close(found.z[0, b], expected, atol=1e-10, rtol=0)
    assert not estimator.hard_at_prediction and found.weights.tolist() == [[1.0] * 5]


def test_the_gradient_of_a_mixed_dirichlet_is_that_of_its_mean() -> None:
    """The gradient of a linear loss passes through the draw and the score function together."""
    torch.manual_seed(0)
    scores = torch.tensor([[0.5, -1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    costs = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    (expected,) = torch.autograd.grad(mean_over_faces(scores[0], 1.0) @ costs, scores)
    estimator = MixedDirichlet(num_samples=200_000)
    draw = estimator(OneOfN(), scores, torch.tensor([3]), True)
    assert draw.log_probs is not None
    losses = draw.z @ costs
    features = torch.zeros(1, 1, dtype=torch.float64)
    objective = estimator.objective(losses, draw.weights, draw.log_probs, features)
    (found,) = torch.autograd.grad(objective.sum(), scores)
    torch.testing.assert_close(found, expected, atol=0.015, rtol=0)


def test_gaussian_sparsemax_is_a_setting_of_relaxed_perturbation() -> None:
    torch.manual_seed(0)
    estimator = RelaxedPerturbation("sparsemap", noise="gaussian", num_samples=64)
    for structure, total in ((OneOfN(), 1.0), (KOfN(2), 2.0)):
        draw = estimator(structure, torch.randn(1, 6), torch.tensor([6]), True)
        torch.testing.assert_close(draw.z.sum(2), torch.full((64, 1), total))
        assert (draw.z == 0).any() and ((draw.z > 0) & (draw.z < 1)).any()


def test_small_concentrations_decide_masks() -> None:
    torch.manual_seed(0)
    zeros = torch.zeros(40_000, dtype=torch.float64)
    between = {}
    for concentration in (1.0, 0.2):
        z = HardKuma(concentration=concentration).draw(zeros)
        between[concentration] = float(((z > 0) & (z < 1)).double().mean())
    assert between[1.0] == pytest.approx(1 / 1.2, abs=0.01)
    # P(0 < z < 1) = P(k > 1/12) − P(k > 11/12), each (1 − x^a)^b.
    low, high = ((1 - x**0.2) ** 0.2 for x in (1 / 12, 11 / 12))
    assert between[0.2] == pytest.approx(low - high, abs=0.01)


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 20.0])
def test_means_of_rectified_gaussians_of_any_scale(scale: float) -> None:
    estimator = RectifiedGaussian(scale, learn_scale=False)
    scores = torch.tensor([-1e30, -0.6, -0.5, 0.0, 0.2, 0.5, 1e30], dtype=torch.float64)
    found = estimator.mean(scores.requires_grad_())
    for score, value in zip(scores.tolist(), found.tolist()):
        law = norm(score + 0.5, scale)
        step = [0.5 + score] if abs(score) < 0.5 else None
        inner = quad(lambda x, law=law: law.sf(x), 0, 1, points=step)[0]
        assert value == pytest.approx(inner, abs=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert torch.isfinite(gradient).all() and (gradient >= 0).all()


@pytest.mark.parametrize("score", [-1.0, 0.0, 2.0])
@pytest.mark.parametrize("kind", [HardKuma, RectifiedGaussian])
def test_the_shape_is_learned(kind: type[HardKuma] | type[RectifiedGaussian], score: float) -> None:
    """The gradient of the expected mask by its shape agrees with draws, and a reset works."""
    learned: HardKuma | RectifiedGaussian
    if kind is HardKuma:
        learned = HardKuma(concentration=0.5, learn_concentration=True)
    else:
        learned = RectifiedGaussian(scale=0.5)
    (shape,) = learned.parameters()
    torch.manual_seed(0)
    scores = torch.full((200_000,), score, dtype=torch.float64)
    (drawn,) = torch.autograd.grad(learned.draw(scores).mean(), shape)
    (closed,) = torch.autograd.grad(learned.mean(scores[:1]).sum(), shape)
    assert float(drawn) == pytest.approx(float(closed), abs=0.01)
    # Check the closed form by finite differences.
    means = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            shape += step
            means.append(float(learned.mean(scores[:1])))
            shape -= step
    assert float(closed) == pytest.approx((means[0] - means[1]) / 2e-3, abs=1e-4)
    before = shape.item()
    with torch.no_grad():
        shape += 1
    learned.reset(8)
    assert shape.item() == pytest.approx(before)


def test_what_does_not_fit_is_refused() -> None:
    for kind in MASKS:
        with pytest.raises(IncompatiblePair, match=f"{kind.__name__}.*KOfN.*Bits"):
            kind().check(KOfN())
        with pytest.raises(IncompatiblePair, match=f"{kind.__name__}.*Bits"):
            kind().check(Bits(budget=3))
        with pytest.raises(IncompatiblePair, match="transitions"):
            kind(transitions=0.1).check(Bits("arcs"))
        with pytest.raises(LatentError, match="rate"):
            kind(rate=1.5)
    for other in (MixedDirichlet(), TraceScoreFunction(), TraceRelax()):
        with pytest.raises(IncompatiblePair, match=f"entropy_weight.*{other.name}"):
            check_entropy_weight(OneOfN(), other, 0.1)
    with pytest.raises(IncompatiblePair, match=r"MixedDirichlet.*KOfN"):
        MixedDirichlet().check(KOfN())
    with pytest.raises(LatentError, match="concentration"):
        MixedDirichlet(0)
    with pytest.raises(LatentError, match="mean"):
        MixedDirichlet(prediction="marginal")  # type: ignore[arg-type]
    with pytest.raises(LatentError, match="temperature"):
        HardConcrete(0)
    with pytest.raises(LatentError, match="concentration"):
        HardKuma(concentration=0)
    with pytest.raises(LatentError, match="scale"):
        RectifiedGaussian(scale=-1)
