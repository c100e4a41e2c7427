"""Estimators of E[L(z)] against the gradient from enumeration: bias, variance, and formulas."""

from __future__ import annotations

import pytest
import torch

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.control_variates import (
    ControlVariate,
    LearnedConstant,
    LeaveOneOut,
    MovingAverage,
    NetworkBaseline,
    OptimalCoefficient,
    SelfCritical,
)
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.rebar import Rebar
from spacy_latent.estimators.relax import Relax
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.sum_and_sample import SumAndSample
from spacy_latent.estimators.top_k_sparsemax import TopKSparsemax
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.results import TopK
from spacy_latent.structures.spanning_tree import SpanningTree

FEATURES = 3
SIZES = {"SpanningTree": (4, 4), "OneOfN": (5,), "KOfN": (5,), "Bits": (5,)}
STRUCTURES = [SpanningTree(), OneOfN(), KOfN(k=2), Bits()]


def problem(structure: Structure) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the scores of one item, its length, and a table for a loss that is not linear in z."""
    generator = torch.Generator().manual_seed(3)
    shape = SIZES[structure.name]
    scores = torch.randn(1, *shape, generator=generator, dtype=torch.float64)
    length = torch.tensor([shape[0] - (structure.part_axes - 1)])
    return scores, length, torch.randn(*shape, generator=generator, dtype=torch.float64)


def loss_of(
    z: torch.Tensor, table: torch.Tensor, shift: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Return losses ``(K, B)``. They are far from 0, so that control variates can lower the
    variance.
    """
    axes = tuple(range(2, z.dim()))
    return 5.0 + (z * table).sum(axes).tanh() + 0.3 * (z * table.flip(0)).sum(axes) ** 2 + shift


def exact_gradient(structure: Structure) -> torch.Tensor:
    scores, length, table = problem(structure)
    scores.requires_grad_()
    every = structure.top_k(scores, length, 200)
    z = every.z[~every.scores.isneginf()[:, 0]]
    loss = structure.log_prob(z, scores, length).exp() * loss_of(z, table)
    return torch.autograd.grad(loss.sum(), scores)[0]


def gradients(estimator: Estimator, structure: Structure, items: int, shift: float = 0.0):
    """Return the gradients of each of ``items`` copies of the problem, ``(items, *parts)``."""
    objective, copies = objective_of(estimator, structure, items, shift)
    return torch.autograd.grad(objective, copies, allow_unused=True)[0]


def objective_of(estimator: Estimator, structure: Structure, items: int, shift: float = 0.0):
    """Return the sum of the objective over the items, and the scores of the items."""
    scores, length, table = problem(structure)
    copies = scores.repeat(items, *[1] * (scores.dim() - 1)).requires_grad_()
    lengths = length.repeat(items)
    draw = estimator(structure, copies, lengths, True)
    losses = loss_of(draw.z, table, shift)
    log_probs = torch.zeros_like(losses) if draw.log_probs is None else draw.log_probs
    features = torch.zeros(items, FEATURES, dtype=torch.float64)
    objective = estimator.objective(losses, draw.weights, log_probs, features, draw.extras)
    return objective.sum(), copies


def network() -> ControlVariate:
    torch.manual_seed(0)
    return NetworkBaseline(4).for_width(FEATURES).double()


def relax(num_samples: int = 1) -> Relax:
    torch.manual_seed(0)
    return Relax(num_samples).double()


def warm(estimator: ScoreFunction) -> ScoreFunction:
    """Run the estimator a few times, so that its moving average has a past."""
    torch.manual_seed(1)
    for _ in range(3):
        gradients(estimator, OneOfN(), 100)
    return estimator


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_a_mean_with_a_past_leaves_the_gradient_unbiased(structure: Structure) -> None:
    """The contract checks the mean without a past, and all other estimators."""
    estimator = warm(ScoreFunction(control_variate=MovingAverage()))
    torch.manual_seed(0)
    found = gradients(estimator, structure, 40_000)
    error = found.std(0) / 40_000**0.5
    # Four standard errors, over at most 20 entries.
    assert ((found.mean(0) - exact_gradient(structure)[0]).abs() <= 4 * error + 1e-12).all()
    assert found.mean(0).abs().max() > 10 * error.max()


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_control_variates_lower_the_variance(structure: Structure) -> None:
    torch.manual_seed(0)
    constant = LearnedConstant()
    with torch.no_grad():
        constant.value.fill_(5.0)
    of_plain = gradients(ScoreFunction(), structure, 4000).var(0).sum()
    for estimator in (
        warm(ScoreFunction(control_variate=MovingAverage())),
        ScoreFunction(control_variate=constant),
        ScoreFunction(control_variate=SelfCritical()),
        ScoreFunction(control_variate=OptimalCoefficient()),
        SumAndSample(2),
    ):
        assert gradients(estimator, structure, 4000).var(0).sum() < 0.8 * of_plain
    # Compare with three samples, since ``LeaveOneOut`` needs several.
    of_three = gradients(ScoreFunction(3), structure, 4000).var(0).sum()
    assert gradients(ScoreFunction(3, LeaveOneOut()), structure, 4000).var(0).sum() < 0.8 * of_three


def optimal(losses: torch.Tensor, c: torch.Tensor, text: int) -> torch.Tensor:
    """Return the baseline of a text by its definition, from the samples of the other texts."""
    others = [d for d in range(losses.shape[1]) if d != text]
    y, x = losses[:, others].flatten(), c[:, others].flatten()
    covariance = ((y - y.mean()) * (x - x.mean())).mean()
    return y.mean() + covariance / x.var(unbiased=False) * (c[:, text] - x.mean())


def test_an_optimal_coefficient_is_of_the_other_texts() -> None:
    generator = torch.Generator().manual_seed(0)
    losses = torch.randn(3, 4, generator=generator, dtype=torch.float64) + 5.0
    greedy = torch.randn(4, generator=generator, dtype=torch.float64)
    features = torch.zeros(4, FEATURES, dtype=torch.float64)
    found = OptimalCoefficient()(losses, greedy, features)
    c = greedy.expand(3, 4)
    expected = torch.stack([optimal(losses, c, text) for text in range(4)], 1)
    torch.testing.assert_close(found, expected)
    # The baseline does not depend on the losses of the text itself.
    other = losses.clone()
    other[:, 2] += 7.0
    torch.testing.assert_close(OptimalCoefficient()(other, greedy, features)[:, 2], found[:, 2])
    # The scale and the shift of c have no effect.
    torch.testing.assert_close(OptimalCoefficient()(losses, 3.0 - 5.0 * greedy, features), found)
    # A constant has no coefficient, and the baseline is the mean of the other texts.
    constant = OptimalCoefficient(LearnedConstant())(losses, None, features)
    means = [losses[:, [d for d in range(4) if d != text]].mean() for text in range(4)]
    torch.testing.assert_close(constant, torch.stack(means).expand(3, 4))
    alone = OptimalCoefficient()(losses[:, :1], greedy[:1], features[:1])
    torch.testing.assert_close(alone, greedy[0].expand(3, 1))


def test_an_optimal_coefficient_lowers_the_variance_of_a_poor_control_variate() -> None:
    """Texts differ in difficulty, and the control variate has another scale than the losses."""
    generator = torch.Generator().manual_seed(0)
    difficulty = torch.rand(500, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(1, 500, generator=generator, dtype=torch.float64)
    losses, features = 10.0 * difficulty + noise, torch.zeros(500, FEATURES, dtype=torch.float64)
    left = losses - OptimalCoefficient()(losses, 3.0 * difficulty, features)
    assert left.var() < 0.02
    assert (losses - 3.0 * difficulty).var() > 1.0


@pytest.mark.parametrize("structure", [OneOfN(), Bits()], ids=repr)
def test_relaxed_control_variates_lower_the_variance(structure: Structure) -> None:
    torch.manual_seed(0)
    of_plain = gradients(ScoreFunction(), structure, 4000).var(0).sum()
    assert gradients(Rebar(), structure, 4000).var(0).sum() < 0.5 * of_plain
    estimator = relax()
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        objective_of(estimator, structure, 100)[0].backward()
        optimizer.step()
    assert gradients(estimator, structure, 4000).var(0).sum() < 0.5 * of_plain


@pytest.mark.parametrize("structure", [OneOfN(), Bits()], ids=repr)
def test_what_is_drawn_again_has_the_same_law_and_the_same_structure(structure: Structure) -> None:
    scores, length, _ = problem(structure)
    scores[0, 1] = -torch.inf
    torch.manual_seed(0)
    drawn = structure.reparameterize(scores.repeat(40_000, 1), length.repeat(40_000))
    lengths = length.repeat(40_000)
    for noisy in (drawn.noisy, drawn.redrawn):
        torch.testing.assert_close(structure.map(noisy, lengths), drawn.z)
        assert noisy[:, 1].isneginf().all()
    # Sorted columns give quantiles between 5 and 95 %, with errors of about 0.03.
    first, second = (
        x[:, [0, 2, 3, 4]].sort(0).values[2000:38000:500] for x in (drawn.noisy, drawn.redrawn)
    )
    torch.testing.assert_close(first, second, atol=0.1, rtol=0)
    torch.testing.assert_close(
        drawn.z.mean(0), structure.marginals(scores, length)[0], atol=0.02, rtol=0
    )


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_dense_marginalization_is_the_exact_gradient(structure: Structure) -> None:
    found = gradients(DenseMarginalization(200), structure, 1)
    torch.testing.assert_close(found, exact_gradient(structure))


def test_dense_marginalization_refuses_more_structures_than_it_may_sum() -> None:
    with pytest.raises(LatentError, match=r"16.*max_structures.*10"):
        gradients(DenseMarginalization(10), SpanningTree(), 2)


def test_dense_marginalization_asks_for_no_more_structures_than_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, top_k, expected = [], OneOfN.top_k, exact_gradient(OneOfN())

    def counted(self: OneOfN, scores: torch.Tensor, lengths: torch.Tensor, k: int) -> TopK:
        asked.append(k)
        assert k <= 10
        return top_k(self, scores, lengths, k)

    monkeypatch.setattr(OneOfN, "top_k", counted)
    found = gradients(DenseMarginalization(10**12), OneOfN(), 1)
    torch.testing.assert_close(found, expected)
    assert asked


def test_top_k_sparsemax_is_sparsemax_where_few_get_a_share() -> None:
    scores, length, _ = problem(OneOfN())
    full = gradients(TopKSparsemax(5), OneOfN(), 1)
    sparse = gradients(SparseMAP(marginalize=True), OneOfN(), 1)
    torch.testing.assert_close(full, sparse)
    draw = TopKSparsemax(2)(OneOfN(), scores, length, True)
    assert draw.z.shape[0] == 2 and float(draw.weights.sum()) == pytest.approx(1.0)
    assert torch.autograd.gradcheck(
        lambda s: TopKSparsemax(3)(SpanningTree(), s, torch.tensor([3]), True).weights,
        0.3 * torch.randn(1, 4, 4, dtype=torch.float64).requires_grad_(),
    )


def test_the_moving_average_does_not_see_its_own_batch() -> None:
    average = MovingAverage(decay=0.5)
    first = average(torch.full((1, 4), 2.0), None, torch.zeros(4, 1))
    second = average(torch.full((1, 4), 6.0), None, torch.zeros(4, 1))
    third = average(torch.full((1, 4), 0.0), None, torch.zeros(4, 1))
    assert (float(first), float(second)) == (0.0, 2.0)
    assert float(third) == pytest.approx((0.5 * 2 + 6) / 1.5)


@pytest.mark.parametrize("variate", [LearnedConstant(), network()], ids=lambda v: v.name)
def test_trained_baselines_approach_the_mean_loss(variate: ControlVariate) -> None:
    losses, features = torch.full((2, 8), 3.0).double(), torch.zeros(8, FEATURES).double()
    optimizer = torch.optim.SGD(variate.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        variate.fit(losses, features).sum().backward()
        optimizer.step()
    value = variate(losses, None, features)
    assert not value.requires_grad
    torch.testing.assert_close(value.expand(8), torch.full((8,), 3.0).to(value), atol=0.01, rtol=0)


def test_normalized_advantages_do_not_depend_on_the_scale_of_the_loss() -> None:
    found = []
    for scale in (1.0, 100.0):
        torch.manual_seed(5)
        estimator = ScoreFunction(2, LeaveOneOut(), normalize_advantage=True)
        scores = torch.zeros(4, 5).requires_grad_()
        draw = estimator(OneOfN(), scores, torch.full((4,), 5), True)
        losses = scale * (draw.z * torch.arange(5.0)).sum(2)
        objective = estimator.objective(losses, draw.weights, draw.log_probs, torch.zeros(4, 1))
        found.append(torch.autograd.grad(objective.sum(), scores)[0])
    assert found[0].any()
    torch.testing.assert_close(*found)


def test_sum_and_sample_draws_nothing_twice_and_ends_where_there_is_no_rest() -> None:
    scores, lengths = torch.randn(6, 4, 4), torch.tensor([3, 3, 2, 1, 0, 3])
    draw = SumAndSample(2)(SpanningTree(), scores, lengths, True)
    again = (draw.z[-1] == draw.z[:-1]).flatten(2).all(2)
    assert not (again & (draw.weights[:-1] > 0) & (draw.weights[-1] > 0)).any()
    torch.testing.assert_close(draw.weights.sum(0), torch.ones(6), atol=2e-3, rtol=0)
    assert (draw.weights[-1, 3:5] == 0).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ScoreFunction(0), "num_samples"),
        (lambda: ScoreFunction(1, LeaveOneOut()), "LeaveOneOut"),
        (lambda: SumAndSample(1, LeaveOneOut()), "LeaveOneOut"),
        (lambda: ScoreFunction(control_variate=ScoreFunction()), "control"),
        (lambda: MovingAverage(1.0), "decay"),
        (lambda: NetworkBaseline(0), "hidden_width"),
        (lambda: TopKSparsemax(0), r"\bk\b"),
        (lambda: DenseMarginalization(5, "best"), "prediction"),
    ],
)
def test_bad_settings_are_refused(make, message: str) -> None:
    with pytest.raises(LatentError, match=message):
        make()


@pytest.mark.parametrize("estimator", [DenseMarginalization(), SumAndSample(4)])
def test_low_scores_of_a_short_text_beside_a_longer_one_have_a_gradient(
    estimator: Estimator,
) -> None:
    """The short text has fewer structures.

    Structures of score 0 in their place would be far more probable.
    """
    scores = torch.zeros(2, 4, 4)
    scores[1] = -100.0
    scores.requires_grad_()
    draw = estimator(SpanningTree(), scores, torch.tensor([3, 1]), True)
    log_probs = torch.zeros_like(draw.weights) if draw.log_probs is None else draw.log_probs
    losses = torch.arange(draw.weights.numel()).view_as(draw.weights).float()
    objective = estimator.objective(losses, draw.weights, log_probs, torch.zeros(2, 3)).sum()
    (gradient,) = torch.autograd.grad(objective, scores)
    assert gradient.isfinite().all() and gradient[0].abs().max() > 0
