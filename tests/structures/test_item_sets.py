"""Sets of items: one of n, k of n, at most k, bits; each against listing all of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.active_set import solve_with_oracle
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.items import decompose
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN

CASES: list[tuple[Structure, int, int | None]] = [
    # The structure, and the fewest and most items that it chooses.
    (OneOfN(), 1, 1),
    (KOfN(1), 1, 1),
    (KOfN(2), 2, 2),
    (KOfN(3), 3, 3),
    (KOfN(2, exactly=False), 0, 2),
    (KOfN(9, exactly=False), 0, 9),
    (Bits(), 0, None),
    (Bits(budget=2), 0, 2),
]
EACH = pytest.mark.parametrize("structure, low, high", CASES, ids=lambda value: str(value))


def members(n: int, low: int, high: int | None) -> Tensor:
    most = n if high is None else min(high, n)
    rows = [
        np.isin(np.arange(n), chosen)
        for size in range(min(low, n), most + 1)
        for chosen in combinations(range(n), size)
    ]
    return torch.tensor(np.stack(rows), dtype=torch.float64)


@EACH
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_everything_against_enumeration(
    structure: Structure, low: int, high: int | None, scale: float
) -> None:
    torch.manual_seed(0)
    for n in range(6):
        scores = scale * torch.randn(1, n + 2, dtype=torch.float64)
        scores[:, n:] = torch.nan
        lengths = torch.tensor([n])
        all_z = members(n, low, high)
        totals = all_z @ scores[0, :n]
        log_partition = totals.logsumexp(0)
        p = (totals - log_partition).exp()
        own = structure.map(scores, lengths)[0]
        assert not own[n:].any() and (all_z == own[:n]).all(1).any()
        torch.testing.assert_close(own[:n] @ scores[0, :n], totals.max(), rtol=1e-12, atol=1e-12)
        found = structure.log_partition(scores, lengths)[0]
        torch.testing.assert_close(found, log_partition, rtol=1e-10, atol=1e-12)
        marginals = structure.marginals(scores, lengths)[0]
        torch.testing.assert_close(marginals[:n], p @ all_z, rtol=1e-10, atol=1e-12)
        assert not marginals[n:].any()
        entropy = structure.entropy(scores, lengths)[0]
        torch.testing.assert_close(
            entropy, -(torch.special.xlogy(p, p)).sum(), rtol=1e-7, atol=1e-9
        )
        count = structure.log_count(scores, lengths)[0].exp().round()
        assert count == len(all_z)
        best = structure.top_k(scores, lengths, 3)
        expected = totals.topk(min(3, len(totals))).values
        torch.testing.assert_close(
            best.scores[: len(expected), 0], expected, rtol=1e-10, atol=1e-12
        )


@EACH
def test_gradients(structure: Structure, low: int, high: int | None) -> None:
    torch.manual_seed(1)
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 3, 0])
    for operation in (structure.log_partition, structure.marginals, structure.entropy):
        assert torch.autograd.gradcheck(lambda s, f=operation: f(s, lengths), (scores,))
    small = (0.4 * scores.detach()).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: structure.sparsemap(s, lengths).mean, (small,))
    assert torch.autograd.gradcheck(
        lambda s: structure.sparsemap(s, lengths).weights.sort(0).values, (small,)
    )


@EACH
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_sparsemap_is_that_of_the_active_set(
    structure: Structure, low: int, high: int | None, scale: float
) -> None:
    torch.manual_seed(2)
    scores = scale * torch.randn(4, 6, dtype=torch.float64)
    lengths = torch.tensor([6, 4, 1, 0])
    solution = structure.sparsemap(scores, lengths)
    prepared = scores.masked_fill(torch.arange(6) >= lengths[:, None], -torch.inf)
    reference = solve_with_oracle(structure, prepared, lengths, 200, 1e-12)
    torch.testing.assert_close(solution.mean, reference.mean, rtol=1e-6, atol=1e-6)
    weights, atoms = solution.weights, solution.atoms
    torch.testing.assert_close(weights.sum(0), torch.ones(4, dtype=torch.float64))
    assert (weights >= 0).all() and (weights[:-1] >= weights[1:]).all()
    torch.testing.assert_close((weights[..., None] * atoms).sum(0), solution.mean)
    for b, n in enumerate(lengths.tolist()):
        listed = members(n, low, high)
        for k in range(len(weights)):
            if weights[k, b] > 0:
                assert (listed == atoms[k, b, :n]).all(1).any()


@EACH
def test_samples_have_the_marginals(structure: Structure, low: int, high: int | None) -> None:
    torch.manual_seed(3)
    scores, lengths = torch.randn(2, 5, dtype=torch.float64), torch.tensor([5, 3])
    drawn = structure.sample(scores, lengths, 8000, torch.Generator().manual_seed(0))
    # Four standard errors of a proportion.
    torch.testing.assert_close(
        drawn.mean(0), structure.marginals(scores, lengths), rtol=0, atol=4 * 0.5 / 8000**0.5
    )
    for b, n in enumerate(lengths.tolist()):
        listed = members(n, low, high)
        kinds = drawn[:, b, :n].unique(dim=0)
        assert all((listed == kind).all(1).any() for kind in kinds)


@EACH
def test_bad_input_is_named(structure: Structure, low: int, high: int | None) -> None:
    scores, lengths = torch.zeros(3, 4), torch.tensor([4, 4, 4])
    scores[1, 2] = torch.nan
    operations = (structure.map, structure.marginals, structure.sparsemap)
    for operation in operations:
        with pytest.raises(InvalidScores, match=r"\[1\]"):
            operation(scores, lengths)
    scores = torch.zeros(3, 4)
    scores[2] = -torch.inf
    for operation in operations:
        if low > 0:
            with pytest.raises(InfeasibleError) as caught:
                operation(scores, lengths)
            assert caught.value.items == [2]
        else:
            operation(scores, lengths)
    with pytest.raises(InvalidScores):
        structure.map(torch.zeros(1, 4, dtype=torch.int64), torch.tensor([4]))


@EACH
def test_half_precision_is_computed_in_single(
    structure: Structure, low: int, high: int | None
) -> None:
    torch.manual_seed(4)
    scores, lengths = torch.randn(2, 6).half(), torch.tensor([6, 2])
    for name in ("marginals", "log_partition", "map"):
        found = getattr(structure, name)(scores, lengths)
        assert found.dtype == torch.float16
        torch.testing.assert_close(found, getattr(structure, name)(scores.float(), lengths).half())


def test_long_items_stay_exact() -> None:
    torch.manual_seed(5)
    scores = 1e3 * torch.randn(1, 1000, dtype=torch.float64)
    lengths = torch.tensor([1000])
    marginals = KOfN(100).marginals(scores, lengths)
    torch.testing.assert_close(marginals.sum(), torch.tensor(100.0).double(), rtol=1e-10, atol=0)
    assert (marginals >= 0).all() and (marginals <= 1).all()


@given(
    st.lists(st.floats(0.0, 1.0, allow_subnormal=False), min_size=1, max_size=12),
)
@settings(deadline=None, max_examples=60)
def test_decompositions_give_back_the_mean(values: list[float]) -> None:
    mean = torch.tensor([values], dtype=torch.float64)
    found = decompose(mean)
    torch.testing.assert_close(
        (found.weights[..., None] * found.atoms).sum(0), mean, rtol=0, atol=1e-8
    )
    total = mean.sum().item()
    for weight, atom in zip(found.weights[:, 0], found.atoms[:, 0]):
        if weight > 1e-8:
            assert np.floor(total - 1e-6) <= atom.sum() <= np.ceil(total + 1e-6)


def test_graphs_are_bits_over_arcs() -> None:
    torch.manual_seed(6)
    structure = Bits(parts="arcs")
    scores, lengths = torch.randn(2, 4, 4), torch.tensor([3, 2])
    z = structure.map(scores, lengths)
    assert not z[:, :, 0].any() and not z.diagonal(dim1=1, dim2=2).any()
    assert not z[1, 3].any() and not z[1, :, 3].any()
    assert (z[0][scores[0] <= 0] == 0).all()
    solution = structure.sparsemap(scores, lengths)
    assert solution.atoms.shape[1:] == scores.shape
    torch.testing.assert_close(
        (solution.weights[..., None, None] * solution.atoms).sum(0), solution.mean
    )
    decoded = structure.decode(z[0].numpy(), 3)
    np.testing.assert_array_equal(structure.encode(decoded, 3), z[0].numpy())
    assert structure.log_count(scores, lengths)[1].exp().round() == 2**4


def test_graphs_with_a_budget_against_enumeration() -> None:
    torch.manual_seed(7)
    structure, lengths = Bits(parts="arcs", budget=2), torch.tensor([2, 1])
    scores = torch.randn(2, 3, 3, dtype=torch.float64)
    arcs = [(0, 1), (0, 2), (1, 2), (2, 1)]
    own = torch.stack([scores[0][arc] for arc in arcs])
    totals = torch.stack([(members(4, 0, 2) @ own)]).logsumexp(1)
    torch.testing.assert_close(structure.log_partition(scores, lengths)[:1], totals)
    assert structure.log_count(scores, lengths).exp().round().tolist() == [11.0, 2.0]
    drawn = structure.sample(scores, lengths, 50)
    assert drawn.sum((2, 3)).max() == 2 and drawn[:, 1].sum(0).nonzero().tolist() == [[0, 1]]
    marginals = structure.marginals(scores, lengths)
    assert marginals[1].count_nonzero() == 1 and marginals[0].sum() < 2
    sparse = structure.sparsemap(10 * scores.abs(), lengths)
    torch.testing.assert_close(sparse.mean.sum((1, 2)), torch.tensor([2.0, 1.0]).double())
    assert structure.map(scores.abs(), lengths).sum((1, 2)).tolist() == [2.0, 1.0]


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InvalidScores, match="budget is 0"):
        Bits(budget=0)
    with pytest.raises(InvalidScores, match="k is 0"):
        KOfN(0)
    with pytest.raises(InvalidScores, match="parts"):
        Bits(parts="words")  # type: ignore[arg-type]


@pytest.mark.parametrize("structure", [KOfN(3), KOfN(3, exactly=False)])
@pytest.mark.parametrize("shift", [1e9, 1e12])
def test_a_large_number_in_all_scores_costs_no_digits(structure: KOfN, shift: float) -> None:
    torch.manual_seed(0)
    scores = torch.randint(-2000, 2000, (4, 9), dtype=torch.float64) / 512
    scores[1, 2] = -torch.inf
    lengths = torch.tensor([9, 7, 3, 2])
    # Beside such numbers the largest subsets are all that counts.
    expected = KOfN(3).marginals(scores, lengths)
    found = structure.marginals(scores + shift, lengths)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    of_all = structure.log_partition(scores + shift, lengths)
    size = torch.tensor([3.0, 3.0, 3.0, 2.0], dtype=torch.float64)
    known = KOfN(3).log_partition(scores, lengths) + size * shift
    torch.testing.assert_close(of_all, known, rtol=1e-15, atol=0)
    drawn = structure.sample(scores + shift, lengths, 4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), expected, rtol=0, atol=0.04)


def test_the_gradient_of_bits_is_their_marginals_at_high_scores() -> None:
    scores = torch.tensor([[-torch.inf, -40.0, 0.0, 19.0, 21.0, 25.0, 36.0, 800.0]]).double()
    scores.requires_grad_()
    lengths = torch.tensor([8])
    total = Bits().log_partition(scores, lengths)
    (gradient,) = torch.autograd.grad(total.sum(), scores)
    torch.testing.assert_close(gradient, Bits().marginals(scores, lengths), rtol=0, atol=1e-15)
    alone = Bits().log_partition(scores[:, 4:5].detach(), torch.tensor([1]))
    assert float(alone - 21) == pytest.approx(np.log1p(np.exp(-21.0)), rel=1e-5)
