"""Sets of items: tests beyond the contract, which test_contract.py checks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.items import decompose
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.runs import Runs

SETS: list[Structure] = [
    OneOfN(),
    KOfN(1),
    KOfN(2),
    KOfN(3),
    KOfN(2, exactly=False),
    KOfN(9, exactly=False),
    Bits(),
    Bits(budget=2),
]


@pytest.mark.parametrize("structure", SETS, ids=repr)
def test_gradients_of_weights(structure: Structure) -> None:
    torch.manual_seed(1)
    scores = (0.4 * torch.randn(3, 5, dtype=torch.float64)).requires_grad_()
    lengths = torch.tensor([5, 3, 0])
    assert torch.autograd.gradcheck(
        lambda s: structure.sparsemap(s, lengths).weights.sort(0).values, (scores,)
    )


def test_long_items_stay_exact() -> None:
    torch.manual_seed(5)
    scores = 1e3 * torch.randn(1, 1000, dtype=torch.float64)
    lengths = torch.tensor([1000])
    marginals = KOfN(100).marginals(scores, lengths)
    torch.testing.assert_close(marginals.sum(), torch.tensor(100.0).double(), rtol=1e-10, atol=0)
    assert (marginals >= 0).all() and (marginals <= 1).all()


@pytest.mark.parametrize("offset", [-1e8, -1e6, 1e6, 1e8])
def test_runs_lose_nothing_to_what_all_scores_have_in_common(offset: float) -> None:
    torch.manual_seed(2)
    structure, lengths = Runs(4, 3), torch.tensor([30, 12])
    scores = torch.randn(2, 30, dtype=torch.float64)
    moved = scores + offset
    # Rounding beside the offset changes the scores, so compare with the scores that remain.
    near, tolerance = moved - offset, 1e-14 * abs(offset)
    for own, expected in (
        (structure.marginals(moved, lengths), structure.marginals(near, lengths)),
        (structure.entropy(moved, lengths), structure.entropy(near, lengths)),
        (
            structure.log_partition(moved, lengths) - 4 * offset,
            structure.log_partition(near, lengths),
        ),
    ):
        torch.testing.assert_close(own, expected, rtol=0.0, atol=30 * tolerance)


def test_marginals_of_runs_add_up_where_fewer_words_are_left_than_are_chosen() -> None:
    scores = torch.full((1, 7), -1e30, dtype=torch.float64)
    scores[0, 2] = 0.6
    marginals = Runs(4, 4).marginals(scores, torch.tensor([7]))
    torch.testing.assert_close(marginals.sum(), torch.tensor(4.0).double())
    assert marginals[0, 2] == 1.0
    chosen = Runs(4, 2).sample(scores, torch.tensor([7]), 20)
    assert (chosen.sum(2) == 4.0).all() and (chosen[..., 2] == 1.0).all()


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


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(InvalidScores, match="budget"):
        Bits(budget=0)
    with pytest.raises(InvalidScores, match=r"\bk\b"):
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
    # Beside such numbers only the largest subsets have weight.
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


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("size", [1e3, 1e9, 1e30])
@pytest.mark.parametrize(
    "signs", [[-1, -1, -1, -1], [0, -1, -1, -1], [0, 0, -1, -1], [1, 0, 0, 0], [1, 1, 1, 0]]
)
def test_masks_that_leave_more_or_less_than_k(exactly: bool, size: float, signs: list[int]) -> None:
    """Many items have the same score, so all ways to choose among them are equally probable."""
    structure = KOfN(2, exactly=exactly)
    scores = (size * torch.tensor([[*signs, 9]], dtype=torch.float64)).requires_grad_()
    lengths = torch.tensor([4])
    ways = [
        chosen
        for count in ([2] if exactly else [0, 1, 2])
        for chosen in itertools.combinations(range(4), count)
    ]
    totals = [size * sum(signs[i] for i in chosen) for chosen in ways]
    best = [chosen for chosen, total in zip(ways, totals) if total == max(totals)]
    expected = torch.tensor(
        [[sum(i in way for way in best) / len(best) for i in range(4)] + [0]], dtype=torch.float64
    )
    marginals = structure.marginals(scores, lengths)
    torch.testing.assert_close(marginals, expected, rtol=1e-12, atol=1e-12)
    entropy = structure.entropy(scores, lengths)
    torch.testing.assert_close(entropy, torch.tensor([len(best)]).log().double())
    log_partition = structure.log_partition(scores, lengths)
    torch.testing.assert_close(log_partition, torch.tensor([max(totals)]) + entropy)
    torch.testing.assert_close(torch.autograd.grad(log_partition.sum(), scores)[0], marginals)
    generator = torch.Generator().manual_seed(0)
    drawn = structure.sample(scores, lengths, 400, generator)
    torch.testing.assert_close(drawn.mean(0), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("structure", [KOfN(2), KOfN(3), KOfN(3, exactly=False), Bits(budget=3)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_atoms_are_members_in_any_precision(structure: Structure, dtype: torch.dtype) -> None:
    generator, lengths = torch.Generator().manual_seed(0), torch.tensor([9, 7, 5, 2])
    for _ in range(20):
        scores = (0.5 * torch.randn(4, 9, generator=generator)).to(dtype)
        found = structure.sparsemap(scores, lengths)
        assert found.mean.dtype == found.weights.dtype == found.atoms.dtype == dtype
        for weights, atoms in zip(found.weights, found.atoms):
            assert (structure.contains(atoms, lengths) | (weights == 0)).all()


def test_atoms_of_many_items_have_k_in_single_precision() -> None:
    scores = 0.7 * torch.rand(1, 1_500, generator=torch.Generator().manual_seed(2))
    found = KOfN(500).sparsemap(scores, torch.tensor([1_500]))
    sizes = found.atoms[:, 0].sum(1)[found.weights[:, 0] > 0]
    assert sizes.unique().tolist() == [500.0]


def test_sparsemap_of_fewer_than_k_beside_a_mask_chooses_k() -> None:
    scores = torch.tensor([[0.3, -1e30, -1e30, -1e30], [-1e30, -1e30, 1.0, 0.0]])
    mean = KOfN(2).sparsemap(scores, torch.tensor([4, 2])).mean
    expected = torch.tensor([[1.0, 1 / 3, 1 / 3, 1 / 3], [1.0, 1.0, 0.0, 0.0]])
    torch.testing.assert_close(mean, expected)


def test_bits_with_large_scores_tell_what_others_say_of_them() -> None:
    """Each bit is an independent choice, so a large score elsewhere costs it no digits."""
    scores = torch.tensor([[1.54e12, -2.9e11, -2.0]], dtype=torch.float64)
    other, lengths = torch.zeros_like(scores), torch.tensor([3])
    found = Bits().cross_entropy(scores, other, lengths)
    torch.testing.assert_close(found, torch.tensor([3 * np.log(2.0)]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("structure", [KOfN(2), Runs(2), Bits()], ids=str)
@pytest.mark.parametrize("shape", [(0, 4), (0, 0), (2, 0)])
def test_weights_of_nothing_have_a_gradient(structure: Structure, shape: tuple[int, int]) -> None:
    scores = torch.zeros(shape, requires_grad=True)
    lengths = torch.zeros(shape[0], dtype=torch.int64)
    structure.sparsemap(scores, lengths).weights.sum().backward()
    assert scores.grad is not None and scores.grad.shape == shape
