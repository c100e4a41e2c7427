"""Entmax, fusedmax and oscarmax against their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from spacy_latent.kernels.choices.attention import ORDERED, TOTAL_VARIATION, proximal
from spacy_latent.structures.fenchel_young import structured_loss
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
            # Also move all entries of a merged block together.
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


def alphas() -> Tensor:
    return torch.tensor([1.3, 2.0, 1.7, 3.0, 1.05], dtype=torch.float64)


def test_an_alpha_for_each_item_is_that_item_alone() -> None:
    torch.manual_seed(3)
    scores, lengths = torch.randn(5, 6, dtype=torch.float64), torch.tensor([6, 4, 1, 0, 5])
    whole = OneOfN().entmax(scores, lengths, alphas())
    for b, alpha in enumerate(alphas().tolist()):
        alone = OneOfN().entmax(scores[b : b + 1], lengths[b : b + 1], alpha)
        assert torch.equal(whole[b], alone[0])
    same = OneOfN().entmax(scores, lengths, torch.tensor(1.5))
    assert torch.equal(same, OneOfN().entmax(scores, lengths, 1.5))
    for wrong in (1.0, 0.5, float("nan"), float("inf"), torch.tensor([1.5, 1.5, 1.0, 2.0, 2.0])):
        with pytest.raises(InvalidScores, match="marginals"):
            OneOfN().entmax(scores, lengths, wrong)
    with pytest.raises(InvalidScores, match=r"\(3,\)"):
        OneOfN().entmax(scores, lengths, torch.full((3,), 1.5))


def test_alpha_has_derivatives() -> None:
    torch.manual_seed(4)
    scores = (0.7 * torch.randn(5, 6, dtype=torch.float64)).requires_grad_()
    scores.data[0, 3] = -torch.inf
    lengths, alpha = torch.tensor([6, 4, 1, 0, 5]), alphas().requires_grad_()

    def attend(alpha: Tensor) -> Tensor:
        return OneOfN().entmax(scores.detach(), lengths, alpha)

    assert torch.autograd.gradcheck(attend, (alpha,))
    assert torch.autograd.gradgradcheck(attend, (alpha,))
    free = scores.detach().clone()
    free[0, 3] = 0.0
    pair = (free.requires_grad_(), alpha)
    both = lambda s, a: OneOfN().entmax(s, lengths, a)  # noqa: E731
    assert torch.autograd.gradcheck(both, pair) and torch.autograd.gradgradcheck(both, pair)
    single = torch.tensor(1.4, requires_grad=True)
    OneOfN().entmax(scores.detach().float(), lengths, single).square().sum().backward()
    assert single.grad is not None and single.grad.dtype == torch.float32
    assert float(single.grad) > 0, "the larger alpha, the fewer share the weight"


def golds(scores: Tensor, lengths: Tensor) -> Tensor:
    gold = OneOfN().map(torch.randn_like(scores), lengths)
    gold[1] = torch.where(torch.arange(scores.shape[1]) < lengths[1], 1.0 / lengths[1], 0.0)
    return gold


def test_the_loss_of_entmax_by_its_definition() -> None:
    torch.manual_seed(5)
    scores = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    lengths, alpha = torch.tensor([6, 4, 1, 0, 5]), alphas().requires_grad_()
    gold = golds(scores, lengths)
    loss = OneOfN().entmax_loss(scores, gold, lengths, alpha)
    assert (loss >= 0).all() and not loss[2:4].any()
    # The loss is the largest objective on the simplex, minus the objective of gold.
    best = OneOfN().entmax(scores.detach(), lengths, alpha.detach())
    for b, n in enumerate(lengths.tolist()):
        if not n:
            continue
        own, a = scores[b, :n].detach().numpy(), float(alphas()[b])

        def worth(p: np.ndarray, own: np.ndarray = own, a: float = a) -> Any:
            return p @ own - (p**a).sum(-1) / (a * (a - 1))

        of_gold = worth(gold[b, :n].numpy())
        others = np.random.default_rng(b).dirichlet(np.full(n, 0.5), 500)
        assert worth(others).max() - of_gold <= float(loss[b].detach()) + 1e-12
        found = worth(best[b, :n].numpy()) - of_gold
        assert float(loss[b].detach()) == pytest.approx(found, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    expected = OneOfN().entmax(scores.detach(), lengths, alpha.detach()) - gold
    torch.testing.assert_close(gradient, expected)
    function = lambda s, a: OneOfN().entmax_loss(s, gold, lengths, a)  # noqa: E731
    assert torch.autograd.gradcheck(function, (scores, alpha))


def test_the_loss_at_two_is_that_of_sparsemax_and_has_a_margin() -> None:
    torch.manual_seed(6)
    scores, lengths = torch.randn(4, 6, dtype=torch.float64), torch.tensor([6, 4, 1, 2])
    gold = OneOfN().map(torch.randn_like(scores), lengths)
    two = OneOfN().entmax_loss(scores, gold, lengths, 2.0)
    known = structured_loss(OneOfN(), scores, gold, lengths, "sparsemap")
    torch.testing.assert_close(two, known)
    near = OneOfN().entmax_loss(scores, gold, lengths, 1.0001)
    likelihood = structured_loss(OneOfN(), scores, gold, lengths, "crf")
    torch.testing.assert_close(near, likelihood, atol=1e-3, rtol=0)
    for alpha in (1.25, 1.5, 3.0):
        lead = torch.tensor([[1 / (alpha - 1), 0.0, 0.0]], dtype=torch.float64)
        first = torch.tensor([[1.0, 0.0, 0.0]])
        for share, nothing in ((1.001, True), (0.9, False)):
            loss = OneOfN().entmax_loss(share * lead, first, torch.tensor([3]), alpha)
            assert (float(loss) < 1e-12) == nothing
    # A gold item that is forbidden.
    lead[0, 0] = -torch.inf
    assert OneOfN().entmax_loss(lead, first, torch.tensor([3])).isposinf().all()
    half = OneOfN().entmax_loss(scores.half(), gold, lengths)
    assert half.dtype == torch.float16
    with pytest.raises(InvalidScores, match="same"):
        OneOfN().entmax_loss(scores, gold[:, :2], lengths)


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
    with pytest.raises(LatentError, match="alpha"):
        Entmax(1.0)
    with pytest.raises(LatentError, match="penalty"):
        Fusedmax(-1)
    with pytest.raises(LatentError, match="penalty"):
        Oscarmax(float("nan"))
