"""Every estimator of the package on small structures, by ``spacy_latent.testing``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spacy_latent.estimators.adaptive_implicit_mle import AdaptiveImplicitMLE
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.best_mixture import BestMixture
from spacy_latent.estimators.best_straight_through import BestStraightThrough
from spacy_latent.estimators.black_box import BlackBox
from spacy_latent.estimators.constrained_sparsemax import ConstrainedSparsemax
from spacy_latent.estimators.control_variates import (
    LearnedConstant,
    LeaveOneOut,
    MovingAverage,
    NetworkBaseline,
    OptimalCoefficient,
    SelfCritical,
)
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.entmax import Entmax
from spacy_latent.estimators.fusedmax import Fusedmax
from spacy_latent.estimators.given_trees import GivenTrees
from spacy_latent.estimators.gumbel_rao import GumbelRao
from spacy_latent.estimators.hard_concrete import HardConcrete
from spacy_latent.estimators.hard_kuma import HardKuma
from spacy_latent.estimators.implicit_mle import ImplicitMLE
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.mixed_dirichlet import MixedDirichlet
from spacy_latent.estimators.oscarmax import Oscarmax
from spacy_latent.estimators.perturb_and_map import PerturbAndMap
from spacy_latent.estimators.perturbed_mean import PerturbedMean
from spacy_latent.estimators.rebar import Rebar
from spacy_latent.estimators.rectified_gaussian import RectifiedGaussian
from spacy_latent.estimators.reinmax import ReinMax
from spacy_latent.estimators.relax import Relax
from spacy_latent.estimators.relaxed_perturbation import RelaxedPerturbation
from spacy_latent.estimators.rewarded_score_function import RewardedScoreFunction
from spacy_latent.estimators.rewards import ShortArcs
from spacy_latent.estimators.sampled_straight_through import SampledStraightThrough
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sinkhorn import Sinkhorn
from spacy_latent.estimators.smoothed_dp import SmoothedDP
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.spigot import Spigot
from spacy_latent.estimators.spigot_marginals import SpigotMarginals
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.estimators.sum_and_sample import SumAndSample
from spacy_latent.estimators.top_k_sparsemax import TopKSparsemax
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.estimators.trace_score_function import TraceScoreFunction
from spacy_latent.testing import Check, estimator_checks
from tests.matrix import registered


def every_estimator() -> Iterator[tuple[Estimator, dict[str, Any]]]:
    exact, unbiased = {"gradient": "exact"}, {"gradient": "unbiased"}
    # A step so long that another structure becomes the best one.
    stepping = {"strength": 100.0}
    yield Marginals(), exact
    yield Marginals(prediction="map"), exact
    yield SparseMAP(tolerance=1e-11), exact
    yield SparseMAP(prediction="map"), {}
    # The support of a mean is not unique, so finite differences may use other structures.
    yield SparseMAP(marginalize=True), {}
    yield StraightThrough(), {}
    yield StraightThrough("marginals"), {}
    yield SampledStraightThrough(), {}
    yield SampledStraightThrough(3, average=True), {}
    yield BestStraightThrough(), {}
    yield BestMixture(), exact
    yield BestMixture(prediction="marginal"), exact
    yield Spigot(), {}
    yield Spigot(projection="relaxed"), {}
    yield Spigot(noise="gumbel", num_samples=2), {}
    yield SpigotMarginals(), {}
    yield SpigotMarginals(forward="mean"), {}
    yield SpigotMarginals("exponentiated", forward="mean"), {}
    yield PerturbAndMap(num_samples=2), {}
    yield PerturbAndMap(backward="marginals"), {}
    yield PerturbedMean(), {}
    yield RelaxedPerturbation(num_samples=2), exact
    yield RelaxedPerturbation("sparsemap", noise="gaussian"), {}
    yield RelaxedPerturbation(straight_through=True), {}
    yield RelaxedPerturbation("smoothed", num_samples=2), exact
    yield ReinMax(2), {}
    yield GumbelRao(num_redrawn=3, num_samples=2), {}
    yield BlackBox(interpolation=100.0), stepping
    yield ImplicitMLE(target_step=100.0), stepping
    yield AdaptiveImplicitMLE(initial=10.0), stepping
    yield AdaptiveImplicitMLE(initial=10.0, norm="scores", num_samples=2), stepping
    yield SmoothedDP(), exact
    yield Sinkhorn(max_iter=2000, tolerance=1e-12), exact
    yield Sinkhorn(max_iter=2000, tolerance=1e-12, noise="gumbel", num_samples=2), exact
    yield ConstrainedSparsemax(0.7), exact
    yield Entmax(), exact
    yield Fusedmax(penalty=1e-4), exact
    yield Oscarmax(penalty=1e-4), exact
    yield HardConcrete(), exact
    yield HardKuma(rate=0.5), {}
    yield HardKuma(concentration=0.2, learn_concentration=True), {}
    yield RectifiedGaussian(), exact
    yield RectifiedGaussian(0.5, learn_scale=False, rate=0.5), {}
    yield HardConcrete(prediction="mean"), {}
    yield MixedDirichlet(), {}
    yield MixedDirichlet(prediction="mean"), {}
    yield MixedDirichlet(control_variate=SelfCritical()), {}
    yield DenseMarginalization(max_structures=4096), exact
    yield TopKSparsemax(), exact
    yield DenseMarginalization(4096, criterion="marginal_likelihood"), exact
    yield TopKSparsemax(criterion="marginal_likelihood"), exact
    yield SparseMAP(marginalize=True, criterion="marginal_likelihood"), {}
    yield ScoreFunction(), unbiased
    yield ScoreFunction(3, LeaveOneOut()), unbiased
    yield ScoreFunction(control_variate=MovingAverage()), unbiased
    yield ScoreFunction(control_variate=LearnedConstant()), unbiased
    yield ScoreFunction(control_variate=NetworkBaseline(4)), unbiased
    yield ScoreFunction(control_variate=SelfCritical()), unbiased
    yield ScoreFunction(control_variate=OptimalCoefficient()), unbiased
    yield ScoreFunction(3, OptimalCoefficient(LeaveOneOut())), unbiased
    yield ScoreFunction(2, entropy_bonus=0.1), {}
    yield TraceScoreFunction(), {}
    yield TraceScoreFunction(3, LeaveOneOut()), {}
    yield TraceScoreFunction(control_variate=SelfCritical(), entropy_bonus=0.1), {}
    yield TraceRelax(), {}
    yield TraceRelax(2, 4), {}
    yield TraceRelax(3, 4, leave_one_out=True), {}
    yield TraceRelax(2, 4, leave_one_out=True, relaxed_loss=True), {}
    yield RewardedScoreFunction(ShortArcs(), task_weight=0.5), {}
    yield RewardedScoreFunction(num_samples=2), unbiased
    yield SumAndSample(2), {**unbiased, "num_draws": 2000}
    yield SumAndSample(2, SelfCritical()), {**unbiased, "num_draws": 2000}
    yield Rebar(), unbiased
    yield Rebar(2, 0.7, 1.0), unbiased
    yield Relax(), unbiased
    yield Relax(2), unbiased
    yield Rebar(learn_strength=True), unbiased
    yield Rebar(2, 0.7, 1.0, learn_strength=True, learn_relaxation=True), unbiased
    yield Relax(2, relaxed_loss=True), unbiased
    yield GivenTrees("left"), {}


ALL = list(every_estimator())
CHECKS = [
    pytest.param(check, id=f"{i}-{estimator.name}-{check}")
    for i, (estimator, options) in enumerate(ALL)
    for check in estimator_checks(estimator, **options)
]


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check: Check) -> None:
    check()


def test_every_registered_estimator_is_checked() -> None:
    classes = {type(estimator) for estimator, _ in ALL}
    assert set(registered.estimators().values()) <= classes
