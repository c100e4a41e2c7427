"""REBAR and RELAX, whose strength and temperature learn from the variance of the gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.estimators.rebar import Rebar
from spacy_latent.estimators.relax import Relax
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.estimators.test_expected_loss import exact_gradient, gradients, objective_of
from tests.estimators.variance import exact_trace_gradient

Made = Rebar | Relax


def rebar(strength: float = 1.0, relaxation: float = 0.5, **options: bool) -> Rebar:
    options = options or {"learn_strength": True, "learn_relaxation": True}
    return Rebar(1, strength, relaxation, **options).double()


def relax(make: type[Relax] = Relax) -> Relax:
    torch.manual_seed(0)
    return make(relaxed_loss=True).double()


def squared_norm(estimator: Made, structure: Structure, draws: int) -> Tensor:
    """Return the mean squared norm of the gradient of a sample. Each call has the same noise."""
    torch.manual_seed(0)
    return gradients(estimator, structure, draws).square().sum() / draws


@pytest.mark.parametrize("structure", [OneOfN(), Bits()], ids=repr)
@pytest.mark.parametrize(
    "make",
    [rebar, lambda: rebar(0.4, 1.5), lambda: rebar(2.0, 0.2), relax],
    ids=["rebar", "weak", "strong", "relax"],
)
def test_weights_get_the_gradient_of_the_squared_gradient(
    make: Callable[[], Made], structure: Structure
) -> None:
    estimator, draws, step = make(), 20_000, 1e-4
    torch.manual_seed(0)
    objective_of(estimator, structure, draws)[0].backward()
    for name, weight in estimator.named_parameters():
        assert weight.grad is not None
        given, place = weight.data, weight.grad.abs().argmax()
        found = float(weight.grad.flatten()[place]) / draws
        sides = []
        for side in (step, -step):
            weight.data = given.clone()
            weight.data.view(-1)[place] += side
            sides.append(float(squared_norm(estimator, structure, draws)))
        weight.data = given
        # The derivative by τ is approximated by a difference of two relaxations.
        tolerance = 0.03 if "relaxation" in name else 1e-3
        slope = (sides[0] - sides[1]) / (2 * step)
        assert found == pytest.approx(slope, rel=tolerance, abs=1e-3), name


@pytest.mark.parametrize("scale", [0.25, 65536.0])
@pytest.mark.parametrize("make", [rebar, relax, lambda: relax(TraceRelax)])
def test_gradients_are_linear_in_the_scale_of_the_objective(
    make: Callable[[], Made], scale: float
) -> None:
    """Half precision multiplies the objective by a large number, and several processes by their
    share.
    """
    estimator, found = make(), []
    for factor in (1.0, scale):
        estimator.zero_grad()
        torch.manual_seed(0)
        (factor * objective_of(estimator, OneOfN(), 50)[0]).backward()
        found.append({name: weight.grad for name, weight in estimator.named_parameters()})
    for name, gradient in found[0].items():
        assert gradient is not None and gradient.any(), name
        torch.testing.assert_close(found[1][name], scale * gradient)


def test_docs_without_a_loss_change_no_weight() -> None:
    estimator = relax()
    (0.0 * objective_of(estimator, OneOfN(), 3)[0]).backward()
    assert not any(weight.grad.any() for weight in estimator.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "make, structure, share",
    [
        (rebar, OneOfN(), 0.7),
        (rebar, Bits(), 0.95),
        (lambda: rebar(0.3, 2.0), Bits(), 0.3),
        (lambda: rebar(0.3, learn_strength=True), OneOfN(), 0.5),
        (lambda: rebar(1.0, 0.1, learn_relaxation=True), OneOfN(), 0.5),
        (relax, OneOfN(), 0.8),
        (lambda: relax(TraceRelax), KOfN(2, exactly=True), 0.95),
    ],
)
def test_training_lowers_the_variance_and_keeps_the_mean(
    make: Callable[[], Made], structure: Structure, share: float
) -> None:
    estimator, draws = make(), 8000
    torch.manual_seed(1)
    before = gradients(estimator, structure, draws)
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.03)
    for _ in range(120):
        optimizer.zero_grad()
        objective_of(estimator, structure, 50)[0].backward()
        optimizer.step()
    after = gradients(estimator, structure, draws)
    assert after.var(0).sum() < share * before.var(0).sum()
    error = (before.var(0) / draws + after.var(0) / draws).sqrt() + 1e-12
    assert ((before.mean(0) - after.mean(0)).abs() < 4.5 * error).all()
    if not isinstance(estimator, TraceRelax):
        exact = exact_gradient(structure)[0]
        own = (after.var(0) / draws).sqrt() + 1e-12
        assert ((after.mean(0) - exact).abs() < 4.5 * own).all()


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_trees_with_the_loss_of_their_relaxation_are_unbiased(leave_one_out: bool) -> None:
    structure, draws = SpanningTree(), 4000
    estimator = TraceRelax(2, leave_one_out=leave_one_out, relaxed_loss=True).double()
    torch.manual_seed(0)
    found = gradients(estimator, structure, draws)
    exact = exact_trace_gradient(structure)
    error = found.std(0) / draws**0.5 + 1e-12
    assert ((found.mean(0) - exact).abs() < 4.5 * error).all()
    plain = gradients(TraceRelax(2).double(), structure, draws)
    assert found.var(0).sum() < 0.3 * plain.var(0).sum()


def test_what_is_not_learned_stays_as_it_was() -> None:
    assert not list(Rebar().parameters())
    assert all(name.startswith("surrogate.") for name in Relax().state_dict())
    torch.manual_seed(0)
    given = gradients(Rebar(), Bits(), 50)
    torch.manual_seed(0)
    torch.testing.assert_close(gradients(rebar(learn_strength=True), Bits(), 50), given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rebar(strength=0.0, learn_strength=True),
        lambda: Rebar(strength=0.0, learn_relaxation=True),
        lambda: Rebar(learn_strength="yes"),  # type: ignore[arg-type]
        lambda: Relax(relaxed_loss="yes"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_are_refused(make: Callable[[], Made]) -> None:
    with pytest.raises(LatentError, match=r"strength|relaxed_loss"):
        make()
