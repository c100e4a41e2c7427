from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentError, NotTractable
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.noise import draw_noise
from spacy_latent.estimators.perturb_and_map import PerturbAndMap
from spacy_latent.estimators.sinkhorn import Sinkhorn
from spacy_latent.structures.base import Structure
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from tests.structures.contracts import one_to_one

SIZES = [(0, 0), (0, 3), (1, 1), (2, 1), (1, 4), (3, 3), (4, 2), (3, 4)]


@cache
def alignments(rows: int, columns: int, unaligned: bool) -> Tensor:
    """Return every alignment, ``(K, rows, columns)``."""
    return torch.from_numpy(np.stack(one_to_one(unaligned)((rows, columns))))


def padded(sizes: list[tuple[int, int]], scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return scores of items of several sizes, with NaN as padding, and their lengths."""
    scores = torch.full((len(sizes), 6, 5), torch.nan, dtype=torch.float64)
    for item, (rows, columns) in zip(scores, sizes):
        item[:rows, :columns] = torch.randn(rows, columns, dtype=torch.float64) * scale
    return scores, torch.tensor(sizes)


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e30])
@pytest.mark.parametrize("ties", [False, True])
def test_best_against_enumeration(unaligned: bool, scale: float, ties: bool) -> None:
    structure = OneToOneAlignment(unaligned)
    torch.manual_seed(0)
    for _ in range(5):
        scores, lengths = padded(SIZES)
        scores = (scores.round() if ties else scores) * scale
        scores[5, 1, 2] = scores[7, :2, 0] = -torch.inf
        best = structure.map(scores, lengths)
        assert torch.equal(best, structure.map(scores, lengths))
        for z, own, (rows, columns) in zip(best, scores, SIZES):
            listed = alignments(rows, columns, unaligned)
            window = own[:rows, :columns]
            totals = torch.where(listed > 0, window, 0.0).sum((1, 2))
            assert (listed == z[:rows, :columns]).all(2).all(1).sum() == 1
            reached = torch.where(z[:rows, :columns] > 0, window, 0.0).sum()
            torch.testing.assert_close(reached, totals.max(), rtol=1e-12, atol=1e-12 * scale)
            z[:rows, :columns] = 0.0
            assert not z.any()


@pytest.mark.parametrize("rows, columns", [(60, 60), (40, 70), (70, 40)])
@pytest.mark.parametrize("kind", ["normal", "ties", "mostly forbidden", "rank one"])
@pytest.mark.parametrize("unaligned", [False, True])
def test_best_of_long_sentences(rows: int, columns: int, kind: str, unaligned: bool) -> None:
    random = np.random.default_rng(rows)
    scores = random.normal(size=(rows, columns))
    if kind == "ties":
        scores = scores.round()
    elif kind == "mostly forbidden":
        forbidden = random.random((rows, columns)) < 0.9
        np.fill_diagonal(forbidden, False)
        scores[forbidden] = -np.inf
    elif kind == "rank one":
        # All rows compete for the same columns, so augmenting paths are long.
        scores = np.outer(np.arange(1, rows + 1), np.arange(1, columns + 1)) - rows * columns / 4
    z = OneToOneAlignment(unaligned).map(
        torch.from_numpy(scores)[None], torch.tensor([[rows, columns]])
    )[0]
    assert z.sum(0).max() <= 1 and z.sum(1).max() <= 1
    if not unaligned:
        assert z.sum() == min(rows, columns)
    extended = np.hstack([scores, np.zeros((rows, rows))]) if unaligned else scores
    chosen = linear_sum_assignment(extended, maximize=True)
    np.testing.assert_allclose(scores[z.numpy() > 0].sum(), extended[chosen].sum(), rtol=1e-10)


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("ties", [False, True])
def test_sparsemap_is_the_generic_one(unaligned: bool, scale: float, ties: bool) -> None:
    structure = OneToOneAlignment(unaligned)
    torch.manual_seed(1)
    scores, lengths = padded([*SIZES, (5, 5), (6, 5)])
    scores = (scores.round() if ties else scores) * scale
    scores[5, 1, 2] = -torch.inf
    scores.requires_grad_()
    solution = structure.sparsemap(scores, lengths, tolerance=1e-10)
    expected = Structure.sparsemap(structure, scores, lengths, tolerance=1e-10)
    assert (solution.gap <= 1e-10).all()
    torch.testing.assert_close(solution.mean, expected.mean, atol=1e-6, rtol=0)
    weights = solution.weights[:, :, None, None]
    torch.testing.assert_close((weights * solution.atoms).sum(0), solution.mean)
    torch.testing.assert_close(
        solution.weights.sum(0), torch.ones(len(scores), dtype=torch.float64)
    )
    for atoms, weight, (rows, columns) in zip(
        solution.atoms.unbind(1), solution.weights.T, lengths.tolist()
    ):
        if rows * columns <= 12:
            listed = alignments(rows, columns, unaligned)
            same = (atoms[weight > 0][:, None, :rows, :columns] == listed).all(3).all(2)
            assert (same.sum(1) == 1).all()
    if not ties:
        upstream = torch.randn_like(scores)
        (found,) = torch.autograd.grad((solution.mean * upstream).sum(), scores)
        (wanted,) = torch.autograd.grad((expected.mean * upstream).sum(), scores)
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("unaligned", [False, True])
def test_gradients_of_sparsemap(unaligned: bool) -> None:
    torch.manual_seed(2)
    structure, lengths = OneToOneAlignment(unaligned), torch.tensor([[4, 4], [3, 4], [4, 2]])
    scores = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)

    def outputs(s: Tensor) -> tuple[Tensor, Tensor]:
        solution = structure.sparsemap(s, lengths, tolerance=1e-12)
        return solution.mean, solution.weights

    assert torch.autograd.gradcheck(outputs, (scores,), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("unaligned", [False, True])
def test_sparsemap_of_long_sentences_is_optimal(unaligned: bool) -> None:
    structure = OneToOneAlignment(unaligned)
    torch.manual_seed(0)
    scores, lengths = torch.randn(4, 25, 25), torch.tensor([[25, 25], [25, 10], [7, 25], [25, 25]])
    solution = structure.sparsemap(scores, lengths)
    assert (solution.gap <= 1e-6).all()
    # Compute the gap anew: under the gradient s − μ, no alignment has a higher score than μ.
    gradient = scores.double() - solution.mean
    best = structure.map(gradient, lengths)
    gap = structure._total(best - solution.mean, gradient, lengths)
    assert (gap < 1e-5).all()
    one = structure.sparsemap(scores[1:2, :, :10], lengths[1:2])
    torch.testing.assert_close(one.mean[0], solution.mean[1, :, :10])
    short = structure.sparsemap(scores, lengths, max_iter=2)
    assert short.gap.max() > 1e-6
    torch.testing.assert_close(short.weights.sum(0), torch.ones(4))


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0])
def test_sinkhorn_satisfies_its_optimality_conditions(unaligned: bool, scale: float) -> None:
    structure = OneToOneAlignment(unaligned)
    torch.manual_seed(0)
    scores, lengths = padded(SIZES, scale)
    scores[5, 1, 2] = -torch.inf
    plan = structure.sinkhorn(scores, lengths, max_iter=20_000, tolerance=1e-12)
    for own, item, (rows, columns) in zip(scores, plan, SIZES):
        assert item[rows:].sum() == item[:, columns:].sum() == 0
        if rows * columns == 0:
            continue
        own, item = own[:rows, :columns], item[:rows, :columns]
        must_rows, must_columns = rows <= columns, columns <= rows
        for sums, must in ((item.sum(1), must_rows), (item.sum(0), must_columns)):
            assert (sums < 1 + 1e-9).all()
            if must and not unaligned:
                torch.testing.assert_close(sums, torch.ones_like(sums))
        assert (item[own.isneginf()] == 0).all()
        # s − log P is the sum of a price for each row and for each column. If rows may be
        # unaligned, only full ones have a price.
        free = ~own.isneginf()
        surplus = (own - item.log())[free]
        at = free.nonzero()
        system = torch.zeros(len(at), rows + columns, dtype=torch.float64)
        system[torch.arange(len(at)), at[:, 0]] = 1.0
        system[torch.arange(len(at)), rows + at[:, 1]] = 1.0
        prices = torch.linalg.lstsq(system, surplus[:, None], driver="gelsd").solution
        torch.testing.assert_close((system @ prices)[:, 0], surplus, atol=1e-8, rtol=1e-8)
        if unaligned:
            slack_row, slack_column = item.sum(1) < 1 - 1e-9, item.sum(0) < 1 - 1e-9
            both = free & slack_row[:, None] & slack_column[None]
            torch.testing.assert_close(item[both], own[both].exp())


@pytest.mark.parametrize("unaligned", [False, True])
def test_gradients_of_sinkhorn(unaligned: bool) -> None:
    structure, lengths = OneToOneAlignment(unaligned), torch.tensor([[3, 3], [2, 3], [0, 1]])
    torch.manual_seed(0)
    scores = torch.randn(3, 3, 3, dtype=torch.float64)
    scores[0, 0, 1] = -torch.inf
    free = torch.isfinite(scores)
    leaf = scores[free].requires_grad_()

    def plan(values: Tensor) -> Tensor:
        full = scores.masked_scatter(free, values)
        return structure.sinkhorn(full, lengths, 0.7, tolerance=1e-13)

    assert torch.autograd.gradcheck(plan, leaf, atol=1e-6)


def test_sinkhorn_keeps_its_digits_beside_a_large_offset() -> None:
    scores = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0))
    # An offset that float32 adds to these scores without rounding.
    scores = (scores * 16).round() / 16
    lengths = torch.tensor([[5, 5], [3, 4], [2, 2]])
    near = OneToOneAlignment().sinkhorn(scores, lengths)
    far = OneToOneAlignment().sinkhorn(scores + 2.0**19, lengths)
    torch.testing.assert_close(far, near, rtol=1e-4, atol=1e-5)


def test_sinkhorn_tends_to_the_best() -> None:
    torch.manual_seed(1)
    structure, scores, lengths = OneToOneAlignment(), torch.randn(4, 5, 5), torch.tensor([5] * 4)
    plan = structure.sinkhorn(scores, lengths, 0.01, max_iter=10_000)
    torch.testing.assert_close(plan, structure.map(scores, lengths), atol=1e-2, rtol=0)


def test_gumbel_sinkhorn_is_sinkhorn_of_noisy_scores() -> None:
    """The batch has pairs of different sizes, ties, a forbidden pair, a single word and an empty
    text.
    """
    structure, lengths = OneToOneAlignment(), torch.tensor([[3, 4], [2, 2], [1, 1], [0, 2]])
    torch.manual_seed(0)
    scores = torch.randn(4, 3, 4, dtype=torch.float64)
    scores[1], scores[0, 0, 1] = 0.0, -torch.inf
    scores.requires_grad_()
    upstream = torch.randn_like(scores)
    estimator = Sinkhorn(0.7, 5000, 1e-12, noise="gumbel", scale=0.5, num_samples=3)
    estimator.check(structure)
    torch.manual_seed(7)
    draw = estimator(structure, scores, lengths, True)
    (gradient,) = torch.autograd.grad((draw.mean() * upstream).sum(), scores)
    torch.manual_seed(7)
    noise = draw_noise("gumbel", scores.detach().repeat(3, 1, 1), 0.5).view(3, *scores.shape)
    expected = torch.stack(
        [structure.sinkhorn(scores + each, lengths, 0.7, 5000, 1e-12) for each in noise]
    )
    torch.testing.assert_close(draw.z, expected)
    torch.testing.assert_close(draw.weights, torch.full((3, 4), 1 / 3, dtype=torch.float64))
    (wanted,) = torch.autograd.grad((expected.mean(0) * upstream).sum(), scores)
    torch.testing.assert_close(gradient, wanted)
    assert gradient.isfinite().all() and gradient[0].any() and gradient[1].any()
    # Noise breaks ties. It changes neither the lengths nor the forbidden pairs.
    assert not torch.allclose(draw.z[0, 1], draw.z[1, 1])
    assert (draw.z[:, 0, 0, 1] == 0).all() and (draw.z[:, 3] == 0).all()
    assert (draw.z[:, 2, 0, 0] == 1).all()
    quiet = estimator(structure, scores, lengths, False)
    plain = Sinkhorn(0.7, 5000, 1e-12)(structure, scores, lengths, True)
    assert torch.equal(quiet.z, plain.z) and torch.equal(quiet.weights, plain.weights)


def test_gumbel_sinkhorn_without_much_smoothing_is_perturb_and_map() -> None:
    torch.manual_seed(1)
    structure, scores, lengths = OneToOneAlignment(), torch.randn(4, 5, 5), torch.tensor([5] * 4)
    draws = []
    for estimator in (
        Sinkhorn(0.001, 100_000, noise="gumbel", num_samples=2),
        PerturbAndMap(num_samples=2),
    ):
        torch.manual_seed(3)
        draws.append(estimator(structure, scores, lengths, True).z)
    assert not torch.equal(draws[1][0], draws[1][1])
    torch.testing.assert_close(*draws, atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("noise", {"noise": "uniform"}),
        ("scale", {"noise": "gumbel", "scale": 0.0}),
        ("num_samples", {"num_samples": 2}),
        ("scale", {"scale": 0.5}),
    ],
)
def test_impossible_settings_of_sinkhorn_are_refused(setting: str, given: dict[str, Any]) -> None:
    with pytest.raises(LatentError, match=setting):
        Sinkhorn(**given)


def test_what_is_intractable_says_what_to_use() -> None:
    structure, scores, lengths = OneToOneAlignment(), torch.zeros(1, 2, 2), torch.tensor([[2, 2]])
    for name in ("log_partition", "marginals", "entropy", "log_count"):
        with pytest.raises(NotTractable, match="sinkhorn"):
            getattr(structure, name)(scores, lengths)
    with pytest.raises(NotTractable, match="PerturbAndMap"):
        structure.sample(scores, lengths)
    with pytest.raises(ValueError, match="OneToOneAlignment"):
        Marginals().check(structure)


def test_perturbed() -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 4, requires_grad=True)
    estimator = PerturbAndMap(num_samples=50)
    estimator.check(OneToOneAlignment())
    draw = estimator(OneToOneAlignment(), scores, torch.tensor([[3, 4], [2, 2]]), True)
    assert (draw.z[:, 0].sum((1, 2)) == 3).all() and (draw.z[:, 1].sum((1, 2)) == 2).all()
    assert draw.z.unique(dim=0).shape[0] > 1
    draw.mean().square().sum().backward()
    assert scores.grad is not None and scores.grad.any()


@pytest.mark.parametrize("operation", ["map", "sparsemap", "sinkhorn"])
def test_bad_input(operation: str) -> None:
    structure = OneToOneAlignment()
    run = getattr(structure, operation)
    lengths = torch.tensor([[2, 3], [3, 3], [1, 1]])
    scores = torch.zeros(3, 3, 3)
    with pytest.raises(InvalidScores, match="4"):
        run(scores, torch.tensor([[2, 3], [3, 4], [1, 1]]))
    with pytest.raises(InvalidScores, match=r"\(B, 2\)"):
        run(scores, torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(InvalidScores, match="floating-point"):
        run(scores.long(), lengths)
    scores[1, :2, :2] = scores[1, 2, 2] = -torch.inf
    # First two partners remain for three words, then only one does.
    run(scores.clone().index_fill_(0, torch.tensor([1]), 0.0), lengths)
    scores[1, :, 2] = -torch.inf
    with pytest.raises(InfeasibleError) as caught:
        run(scores, lengths)
    assert caught.value.items == [1]
    getattr(OneToOneAlignment(unaligned=True), operation)(scores, lengths)
    for bad in (torch.nan, torch.inf):
        scores[2, 0, 0] = bad
        with pytest.raises(InvalidScores, match=r"\[2\]"):
            run(scores, lengths)


@pytest.mark.parametrize("unaligned", [False, True])
def test_dtypes_and_layout(unaligned: bool) -> None:
    structure = OneToOneAlignment(unaligned)
    torch.manual_seed(0)
    scores = torch.randn(4, 5, 3).transpose(1, 2)
    lengths = torch.tensor([[3, 5], [3, 3], [2, 1], [0, 0]])
    for run in (structure.map, structure.sinkhorn, lambda s, n: structure.sparsemap(s, n).mean):
        result = run(scores, lengths)
        torch.testing.assert_close(result, run(scores.contiguous(), lengths))
        half = run(scores.bfloat16(), lengths)
        torch.testing.assert_close(
            half.float(), run(scores.bfloat16().float(), lengths), atol=1e-2, rtol=1e-2
        )
        empty = run(torch.zeros(0, 3, 2), torch.zeros(0, 2, dtype=torch.int64))
        assert empty.shape == (0, 3, 2)
        assert run(torch.zeros(2, 0, 3), torch.zeros(2, 2, dtype=torch.int64)).shape == (2, 0, 3)
    assert structure.map(scores.bfloat16(), lengths).dtype == torch.bfloat16
    square = torch.randn(2, 3, 3)
    both = torch.tensor([[3, 3], [2, 2]])
    assert torch.equal(structure.map(square, both[:, 0]), structure.map(square, both))
    assert pickle.loads(pickle.dumps(structure)).unaligned == unaligned


@pytest.mark.parametrize("unaligned", [False, True])
def test_sinkhorn_of_an_item_is_the_same_beside_any_other(unaligned: bool) -> None:
    """An item that converges early gets the same result beside items that need more steps."""
    torch.manual_seed(0)
    scores, lengths = padded([(3, 4), (4, 2), (5, 5), (0, 3)])
    scores[2] *= 20.0
    structure = OneToOneAlignment(unaligned)
    together = structure.sinkhorn(scores, lengths, 1.0, 100, 1e-2)
    for b in range(len(scores)):
        own = slice(b, b + 1)
        alone = structure.sinkhorn(scores[own], lengths[own], 1.0, 100, 1e-2)
        torch.testing.assert_close(together[own], alone, rtol=0, atol=1e-12)
