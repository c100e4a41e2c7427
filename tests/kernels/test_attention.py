"""Entmax, fusedmax and oscarmax against their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, InfeasibleError, InvalidScores, LatentError
from spacy_latent.estimators.entmax import Entmax
from spacy_latent.estimators.fusedmax import Fusedmax
from spacy_latent.estimators.oscarmax import Oscarmax
from spacy_latent.kernels.attention import ORDERED, TOTAL_VARIATION, proximal
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.spanning_tree import SpanningTree

numbers = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=9)


def jumps(x: Tensor) -> Tensor:
    return (x[1:] - x[:-1]).abs().sum()


def larger_of_pairs(x: Tensor) -> Tensor:
    return torch.maximum(x[:, None], x[None]).triu(1).sum()


def one(row: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor([row], dtype=torch.float64), torch.tensor([len(row)])


@settings(deadline=None, max_examples=100)
@given(row=numbers, alpha=st.sampled_from([1.05, 1.5, 1.7, 2.0, 2.5, 4.0]))
def test_entmax_meets_its_optimality_conditions(row: list[float], alpha: float) -> None:
    scores, lengths = one(row)
    p = OneOfN().entmax(scores, lengths, alpha)[0]
    assert (p >= 0).all() and float(p.sum()) == pytest.approx(1.0, abs=1e-12)
    level = (alpha - 1) * scores[0] - p ** (alpha - 1)
    inside = p > 0
    assert float(level[inside].max() - level[inside].min()) < 1e-8
    assert (level[~inside] <= level[inside].max() + 1e-8).all()


def test_entmax_at_two_is_sparsemax_and_near_one_softmax() -> None:
    torch.manual_seed(0)
    scores, lengths = torch.randn(8, 6, dtype=torch.float64), torch.tensor([6, 6, 5, 4, 3, 2, 1, 0])
    structure = OneOfN()
    torch.testing.assert_close(
        structure.entmax(scores, lengths, 2.0), structure.sparsemap(scores, lengths).mean
    )
    torch.testing.assert_close(
        structure.entmax(scores, lengths, 1.0001),
        structure.marginals(scores, lengths),
        atol=1e-3,
        rtol=0,
    )


@settings(deadline=None, max_examples=60)
@given(row=numbers, strength=st.floats(0, 3))
@pytest.mark.parametrize("kind, penalty", [(TOTAL_VARIATION, jumps), (ORDERED, larger_of_pairs)])
def test_proximal_steps_are_minima(
    row: list[float], strength: float, kind: int, penalty: Callable[[Tensor], Tensor]
) -> None:
    scores, lengths = one(row)
    x, blocks = proximal(scores, lengths, kind, strength, "test")

    def objective(point: Tensor) -> float:
        return float(0.5 * (point - scores[0]).square().sum() + strength * penalty(point))

    best = objective(x[0])
    generator = torch.Generator().manual_seed(0)
    for step in (1e-3, 0.1, 1.0):
        for _ in range(20):
            direction = torch.randn(len(row), generator=generator, dtype=torch.float64)
            assert objective(x[0] + step * direction) >= best - 1e-10
            # What moves together as well.
            moved = direction[blocks[0].long() % len(row)]
            assert objective(x[0] + step * moved) >= best - 1e-10


@pytest.mark.parametrize("kind, penalty", [("fusedmax", jumps), ("oscarmax", larger_of_pairs)])
def test_they_are_minima_over_the_simplex(kind: str, penalty: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    for n in (1, 2, 5, 8):
        scores, lengths = 0.5 * torch.randn(1, n, dtype=torch.float64), torch.tensor([n])
        p = getattr(OneOfN(), kind)(scores, lengths, 0.1)[0]
        assert (p >= 0).all() and float(p.sum()) == pytest.approx(1.0)

        def objective(point: Tensor, scores: Tensor = scores) -> float:
            return float(0.5 * (point - scores[0]).square().sum() + 0.1 * penalty(point))

        best = objective(p)
        for _ in range(200):
            other = torch.from_numpy(np.random.default_rng(n).dirichlet(np.full(n, 0.5)))
            for share in (1e-3, 0.1, 1.0):
                assert objective((1 - share) * p + share * other) >= best - 1e-10


@pytest.mark.parametrize(
    "function",
    [
        lambda s, n: OneOfN().entmax(s, n, 1.5),
        lambda s, n: OneOfN().entmax(s, n, 1.2),
        lambda s, n: OneOfN().entmax(s, n, 3.0),
        lambda s, n: OneOfN().fusedmax(s, n, 0.1),
        lambda s, n: OneOfN().oscarmax(s, n, 0.02),
    ],
)
def test_gradients(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(2)
    scores = (0.5 * torch.randn(4, 6, dtype=torch.float64)).requires_grad_()
    lengths = torch.tensor([6, 4, 1, 0])
    assert torch.autograd.gradcheck(lambda s: function(s, lengths), (scores,))
    (gradient,) = torch.autograd.grad(function(scores, lengths).square().sum(), scores)
    assert not gradient[1, 4:].any() and not gradient[3].any()


def test_neighbours_share_their_weight_and_forbidden_items_have_none() -> None:
    scores = torch.tensor([[0.9, 1.0, -torch.inf, 1.1, -2.0, 7.0]])
    lengths = torch.tensor([5])
    p = OneOfN().fusedmax(scores, lengths, 0.2)[0]
    torch.testing.assert_close(p, torch.tensor([1 / 3, 1 / 3, 0.0, 1 / 3, 0.0, 0.0]))
    far = OneOfN().oscarmax(torch.tensor([[1.0, -1.0, 1.05]]), torch.tensor([3]), 0.2)[0]
    torch.testing.assert_close(far, torch.tensor([0.5, 0.0, 0.5]))
    for function in (OneOfN().entmax, OneOfN().fusedmax, OneOfN().oscarmax):
        assert function(scores, lengths, 1.5)[0, 2] == 0
        with pytest.raises(InfeasibleError):
            function(torch.full((1, 3), -torch.inf), torch.tensor([3]), 1.5)
        with pytest.raises(InvalidScores):
            function(torch.full((1, 3), torch.nan), torch.tensor([3]), 1.5)
        half = function(scores.half(), lengths, 1.5)
        assert half.dtype == torch.float16


def test_huge_scores_give_a_choice() -> None:
    scores = torch.tensor([[1e30, -1e30, 3.0]], dtype=torch.float64)
    for alpha in (1.1, 1.5, 4.0):
        p = OneOfN().entmax(scores, torch.tensor([3]), alpha)
        torch.testing.assert_close(p, torch.tensor([[1.0, 0.0, 0.0]]).double())


def test_estimators_take_choices_of_one_only() -> None:
    lengths = torch.tensor([4, 2])
    for estimator in (Entmax(), Fusedmax(), Oscarmax()):
        estimator.check(OneOfN())
        draw = estimator(OneOfN(), torch.randn(2, 4), lengths, False)
        torch.testing.assert_close(draw.mean().sum(1), torch.ones(2))
        with pytest.raises(IncompatiblePair, match=f"{estimator.name}.*SpanningTree"):
            estimator.check(SpanningTree())
    with pytest.raises(LatentError, match=r"alpha is 1\.0.*Marginals"):
        Entmax(1.0)
    with pytest.raises(LatentError, match="penalty is -1"):
        Fusedmax(-1)
    with pytest.raises(LatentError, match="penalty is nan"):
        Oscarmax(float("nan"))
