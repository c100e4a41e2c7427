from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from spacy_latent.errors import (
    IncompatiblePair,
    InfeasibleError,
    InvalidScores,
    LatentWarning,
    NotTractable,
)
from spacy_latent.estimators.perturb_and_map import PerturbAndMap
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.spigot import Spigot
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.kernels.sparsemap import tree_prices
from spacy_latent.structures import budget_search, budget_tree
from spacy_latent.structures.budget_prices import nearest_average_of_trees
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.lp_sparsemap import solve_graphs
from tests import enumeration
from tests.structures.oracles import nearest_in_hull


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) * scale


def trees(n: int, budget: int, projective: bool, single_root: bool = False) -> np.ndarray:
    """Return the arcs of every tree that keeps to the budget, ``(K, n+1, n+1)``."""
    found = [enumeration.arcs(h) for h in enumeration.dependency_trees(n, projective, single_root)]
    return np.stack([z for z in found if (z[1:].sum(1) <= budget).all()])


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 2, 9])
def test_sparsemap_relaxes_the_hull(projective: bool, budget: int) -> None:
    """The mean lies in the hull of all trees and satisfies the budgets on average.

    It is at least as near to the scores as any average of trees that each satisfy the budget. It
    equals the nearest such average if it is one itself.
    """
    torch.manual_seed(0)
    structure = BudgetTree(budget, projective)
    tight = 0
    for n in (1, 2, 3, 4):
        every, kept = trees(n, n, projective), trees(n, budget, projective)
        for scale in (0.3, 1.0, 3.0):
            scores = normal(1, n + 1, n + 1, scale=scale)
            scores[:, 1:] += normal(n, 1, scale=scale)
            solution = structure.sparsemap(scores, torch.tensor([n]))
            assert solution.residual <= 1e-6
            mean = solution.mean[0].numpy()
            assert (mean[1:].sum(1) <= budget + 1e-6).all()
            point = np.where(every.any(0), scores[0].numpy(), 0.0).ravel()
            outside = nearest_in_hull(every.reshape(len(every), -1), mean.ravel()) - mean.ravel()
            assert np.abs(outside).max() < 2e-6
            expected = nearest_in_hull(kept.reshape(len(kept), -1), point)
            assert np.linalg.norm(mean.ravel() - point) <= np.linalg.norm(expected - point) + 1e-6
            inside = nearest_in_hull(kept.reshape(len(kept), -1), mean.ravel())
            if np.abs(inside - mean.ravel()).max() < 1e-7:
                tight += 1
                np.testing.assert_allclose(mean.ravel(), expected, atol=2e-6)
    assert tight >= 6


@pytest.mark.parametrize("projective", [False, True])
def test_the_solution_is_that_of_trees_and_budgets(projective: bool) -> None:
    """The solver of ``BudgetTree`` and ADMM find the same point, with the same gradient.

    For projective trees, items whose unconstrained solution keeps to the budget need no iterations.
    Other items of the batch do not change this.
    """
    torch.manual_seed(0)
    structure, lengths = BudgetTree(2, projective), torch.tensor([6, 5, 6, 4, 6, 3])
    scores = normal(6, 7, 7, scale=0.5)
    scores[::2, 1] += 2.0
    scores.requires_grad_()
    solution = structure.sparsemap(scores, lengths, max_iter=500)
    alone = structure.tree.sparsemap(scores, lengths, max_iter=500)
    crowded = (alone.mean[:, 1:].sum(2) > 2.0).any(1)
    assert crowded[::2].all() and not crowded[1::2].any()
    if projective:
        assert torch.equal(solution.iterations > 0, crowded)
    by_admm = solve_graphs(structure._graphs(lengths.tolist()), scores)
    assert (by_admm.residual <= 1e-6).all() and (solution.residual <= 2e-6).all()
    torch.testing.assert_close(solution.mean, by_admm.mean, atol=2e-6, rtol=0.0)
    direction = normal(*scores.shape)
    found, expected = (
        torch.autograd.grad((made.mean * direction).sum(), scores)[0]
        for made in (solution, by_admm)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("n", [30, 60])
def test_small_scores_of_long_sentences_are_solved(n: int, projective: bool) -> None:
    """Solve by prices, by the trees alone, or by ADMM if the others give up."""
    torch.manual_seed(0)
    structure, lengths = BudgetTree(6, projective), torch.tensor([n, n])
    scores = torch.tensor([0.1, 1.0], dtype=torch.float64)[:, None, None] * normal(2, n + 1, n + 1)
    masked = scores.masked_fill(~structure.part_mask(scores, lengths), -torch.inf)
    by_admm = solve_graphs(structure._graphs([n, n]), masked, 2000, 1e-6)
    for max_iter in (200, 20):
        solution = structure.sparsemap(scores, lengths, max_iter)
        assert float(solution.residual.max()) < 1e-4
        torch.testing.assert_close(solution.mean, by_admm.mean, atol=1e-5, rtol=0.0)


def check_slope(structure: BudgetTree, scores: Tensor, lengths: Tensor) -> None:
    """Compare the gradient along one direction with finite differences."""
    direction, upstream = normal(*scores.shape), normal(*scores.shape)
    mean = structure.sparsemap(scores, lengths).mean
    (gradient,) = torch.autograd.grad((mean * upstream).sum(), scores)
    before, after = (
        structure.sparsemap(scores.detach() + step * direction, lengths).mean
        for step in (-1e-6, 1e-6)
    )
    slope = ((after - before) * upstream).sum() / 2e-6
    assert float((gradient * direction).sum()) == pytest.approx(float(slope), rel=1e-4, abs=1e-4)


def refused(*_: object) -> None:
    raise AssertionError("items were left to trees")


@pytest.fixture
def by_prices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("_by_trees", "_by_both"):
        monkeypatch.setattr(BudgetTree, way, refused)


def by_trees(structure: BudgetTree, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean that ADMM finds."""
    masked = structure.masked(scores, lengths)[0]
    graphs = structure._graphs(lengths.tolist())
    return solve_graphs(graphs, masked, 2000, 1e-8).mean


@pytest.mark.parametrize(
    "settings",
    [{}, {"single_root": True}, {"max_arc_length": 11}, {"direction": "earlier"}],
    ids=lambda settings: "-".join(settings) or "any",
)
@pytest.mark.parametrize("scale", [0.02, 0.5, 5.0])
def test_prices_lead_to_the_solution(
    settings: dict[str, Any], scale: float, by_prices_alone: None
) -> None:
    """Prices lead to the mean that ADMM finds, with the gradient of finite differences.

    Budgets bind in the first two items. A large constant on all scores changes nothing.
    """
    torch.manual_seed(0)
    structure, lengths = BudgetTree(2, **settings), torch.tensor([16, 16, 12, 2])
    scores = normal(4, 17, 17, scale=scale)
    scores[:2, [3, 5]] += max(0.4, scale)
    scores[1, 2, 9] = scores[1, 4, 1] = -torch.inf
    scores[2, 14:] = torch.nan
    scores.requires_grad_()
    solution = structure.sparsemap(scores, lengths)
    full = solution.mean.detach()[:2, 1:].sum(2) > 2.0 - 1e-6
    assert full.any(1).all() and (solution.mean[:, 1:].sum(2) <= 2.0 + 1e-9).all()
    expected = by_trees(structure, scores.detach(), lengths)
    torch.testing.assert_close(solution.mean.detach(), expected, atol=1e-6, rtol=0.0)
    check_slope(structure, scores, lengths)
    moved = structure.sparsemap(scores.detach() + 2e8, lengths)
    torch.testing.assert_close(moved.mean, solution.mean.detach(), atol=1e-5, rtol=0.0)
    single = structure.sparsemap(scores.detach().float(), lengths)
    assert single.residual.dtype == torch.float64 and single.mean.dtype == torch.float32
    torch.testing.assert_close(single.mean, solution.mean.detach().float(), atol=1e-5, rtol=0.0)


def test_large_scores_are_solved(by_prices_alone: None) -> None:
    """Prices can be as large as the scores, because a budget of 1 removes many arcs.

    From some scale on, the nearest average no longer changes.
    """
    torch.manual_seed(0)
    structure, lengths = BudgetTree(1), torch.tensor([30, 30, 30, 20])
    scores, scales = normal(4, 31, 31), (1e3, 1e4, 1e5, 1e7)
    means = [structure.sparsemap(scale * scores, lengths).mean for scale in scales]
    for scale, mean in zip(scales, means):
        torch.testing.assert_close(mean.sum((1, 2)), lengths.double())
        assert (mean >= 0).all() and (mean[:, 1:].sum(2) <= 1.0 + 1e-6).all()
        near, *others = (
            (scale * scores * each - 0.5 * each.square()).sum((1, 2)) for each in (mean, *means)
        )
        for other in others:
            assert (near >= other - 1e-6 * scale).all()
    torch.testing.assert_close(means[2], means[3], atol=1e-6, rtol=0.0)
    # Some entries are fractional, so the mean is no single tree.
    assert ((means[3] > 0.01) & (means[3] < 0.99)).any()


def symmetric(items: int, n: int, scale: float) -> Tensor:
    """Return symmetric scores, so that words head each other in cycles, and many sets of words need
    a price."""
    scores = normal(items, n + 1, n + 1, scale=scale)
    return (scores + scores.transpose(1, 2)) / 2**0.5


@pytest.mark.parametrize(
    ("items", "n", "scale", "budget"), [(2, 60, 100.0, 2), (3, 30, 1000.0, 5), (400, 12, 10.0, 5)]
)
def test_words_that_head_each_other_are_solved(
    items: int, n: int, scale: float, budget: int, by_prices_alone: None
) -> None:
    """Solve many items, some of which have prices near 0. Clipping such a price must not stop a
    whole step."""
    torch.manual_seed(1)
    scores, lengths = symmetric(items, n, scale), torch.full((items,), n)
    solution = BudgetTree(budget).sparsemap(scores, lengths)
    mean = solution.mean
    torch.testing.assert_close(mean.sum((1, 2)), lengths.double())
    assert (solution.residual <= 1e-6).all() and (mean[:, 1:].sum(2) <= budget + 1e-6).all()
    # No mean of another item has a higher score under the residual, scores − mean, than the item's
    # own.
    left = (scores - mean).flatten(1)
    others = left @ mean.flatten(1).T
    assert (others <= others.diagonal()[:, None] + 1e-6 * scale * n).all()
    if n == 12:
        expected = by_trees(BudgetTree(budget), scores[:20], lengths[:20])
        torch.testing.assert_close(mean[:20], expected, atol=1e-5, rtol=0.0)


def test_small_scores_of_many_alike_tokens_are_solved(by_prices_alone: None) -> None:
    """Scores of rank 4 over twelve kinds of tokens are solved, although many sets of words have
    small prices.

    Rounding then hides which of two sets of prices is better.
    """
    torch.manual_seed(0)
    kinds, place = normal(12, 4), torch.randint(12, (3, 91))
    tokens = kinds[place] + normal(3, 91, 4).cumsum(1) / 9.0
    scores = tokens @ normal(4, 4) @ tokens.transpose(1, 2)
    scores *= 0.2 / scores.std()
    structure = BudgetTree(5, single_root=True)
    solution = structure.sparsemap(scores, torch.full((3,), 90))
    assert (solution.residual <= 1e-6).all()


def test_alike_tokens_in_alike_contexts_take_few_steps(by_prices_alone: None) -> None:
    """Among hundreds of sets whose constraints are violated slightly, most have no price.

    Steps to a point at which all have one, clipped at 0, failed for two of three items.
    """
    torch.manual_seed(0)
    tokens = normal(14, 4)[torch.randint(14, (3, 81))]
    distance = (torch.arange(81.0)[:, None] - torch.arange(81.0)).abs().double()
    contexts = 0.9**distance @ tokens
    scores = contexts @ normal(4, 4) @ contexts.transpose(1, 2)
    scores *= 0.2 / scores.std()
    solution = BudgetTree(5, single_root=True).sparsemap(scores, torch.full((3,), 80))
    assert (solution.residual <= 1e-6).all()
    assert solution.iterations.sum() < 700


def test_a_tolerance_below_rounding_is_met_as_far_as_rounding_allows(by_prices_alone: None) -> None:
    torch.manual_seed(0)
    scores = normal(3, 13, 13, scale=3.0)
    solution = BudgetTree(1).sparsemap(scores, torch.tensor([12, 12, 7]), tolerance=1e-16)
    assert (solution.residual < 1e-11).all()


def test_what_is_done_to_the_solution_does_not_change_its_gradient() -> None:
    torch.manual_seed(0)
    lengths, upstream = torch.tensor([8, 6]), normal(2, 9, 9)
    scores = BudgetTree(1).masked(normal(2, 9, 9), lengths)[0].requires_grad_()
    gradients = []
    for spoil in (False, True):
        sizes = lengths.clone()
        mean = tree_prices.nearest_average(scores, sizes, 1, False, 2000, 1e-6)[0]
        if spoil:
            mean.data.fill_(9.0)
            sizes.fill_(1)
        gradients.append(torch.autograd.grad((mean * upstream).sum(), scores)[0])
    torch.testing.assert_close(*gradients)


def test_heads_in_circles_are_cut(by_prices_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean satisfies the constraint that some arc enters each cycle from outside.

    The cycles are two words, three words, and many nested sets. A large tolerance drops no such
    constraint.
    """
    torch.manual_seed(0)
    structure, lengths = BudgetTree(4), torch.tensor([12, 12, 12])
    scores = normal(3, 13, 13, scale=0.02)
    scores[0, 1:, 1:] += 1.0 / (1.0 + (torch.arange(12)[:, None] - torch.arange(12)).abs())
    scores[1, 3, 4] += 0.5
    scores[1, 4, 3] += 0.5
    scores[2, [5, 6, 7], [6, 7, 5]] += 1.0
    expected = by_trees(structure, scores, lengths)
    for tolerance in (1e-6, 0.3, 2.0):
        mean = structure.sparsemap(scores, lengths, tolerance=tolerance).mean
        assert (mean[:, 3, 4] + mean[:, 4, 3] <= 1.0 + 1e-5).all()
        assert (mean[:, 5:8, 5:8].sum((1, 2)) <= 2.0 + 1e-5).all()
        torch.testing.assert_close(mean, expected, atol=1e-6, rtol=0.0)
    check_slope(structure, scores.requires_grad_(), lengths)
    # If memory is small, sets whose price has become 0 are replaced by others.
    monkeypatch.setattr(tree_prices, "SETS_PER_WORD", 1)
    crowded = structure.sparsemap(scores.detach(), lengths).mean
    torch.testing.assert_close(crowded, expected, atol=1e-6, rtol=0.0)


def test_what_prices_do_not_solve_is_left_to_trees() -> None:
    torch.manual_seed(0)
    structure, lengths = BudgetTree(2), torch.tensor([8, 8])
    scores = normal(2, 9, 9, scale=0.5)
    scores[1, 3] += 3.0
    masked = structure.masked(scores, lengths)[0]
    assert structure._by_prices(masked, lengths, 2, 1e-6)[0].tolist() == []
    solution = structure.sparsemap(scores, lengths)
    assert structure._by_prices(masked, lengths, 2000, 1e-6)[0].tolist() == [0, 1]
    with pytest.MonkeyPatch.context() as without:
        none = torch.empty(0, dtype=torch.int64)
        without.setattr(
            BudgetTree, "_by_prices", lambda *_: (none, scores[:0], none.double(), none)
        )
        left = structure.sparsemap(scores, lengths)
    torch.testing.assert_close(left.mean, solution.mean, atol=2e-6, rtol=0.0)


def test_many_heads_that_cannot_be_a_tree() -> None:
    structure, lengths = BudgetTree(4), torch.tensor([12, 12])
    scores = torch.zeros(2, 13, 13, dtype=torch.float64)
    # Words 3 and 4 have only each other as heads, so no arc enters the pair. Each alone could be
    # entered.
    scores[1, :, 3:5] = -torch.inf
    scores[1, 3, 4] = scores[1, 4, 3] = 0.0
    with pytest.raises(InfeasibleError) as error:
        structure.sparsemap(scores, lengths)
    assert error.value.items == [1]
    scores[1, 0] = -torch.inf
    with pytest.raises(InfeasibleError) as error:
        structure.sparsemap(scores, lengths)
    assert error.value.items == [1]
    scores[1] = torch.nan
    with pytest.raises(InvalidScores, match=r"BudgetTree.*\[1\]"):
        structure.sparsemap(scores, lengths)


def test_an_empty_batch_has_a_gradient() -> None:
    scores = torch.zeros(0, 5, 5, requires_grad=True)
    solution = BudgetTree(2).sparsemap(scores, torch.zeros(0, dtype=torch.int64))
    solution.mean.sum().backward()
    assert scores.grad is not None and scores.grad.shape == scores.shape


@pytest.mark.parametrize("projective", [False, True])
def test_gradient(projective: bool) -> None:
    torch.manual_seed(0)
    structure, lengths = BudgetTree(1, projective), torch.tensor([4, 0, 2])
    for scale in (0.5, 2.0):
        scores = normal(3, 5, 5, scale=scale)
        scores[:, 1:] += normal(3, 4, 1, scale=scale)

        def mean(s: Tensor) -> Tensor:
            return structure.sparsemap(s, lengths, tolerance=1e-9).mean

        assert torch.autograd.gradcheck(mean, scores.requires_grad_(), eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("method", ["crossing", "projective", "projective, too large"])
def test_best_against_enumeration(
    single_root: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    if method == "projective, too large":
        monkeypatch.setattr(budget_tree, "MOST_NUMBERS", 0)
    projective = method != "crossing"
    for budget, n in itertools.product((0, 1, 2), (1, 2, 3, 4, 5)):
        if single_root and budget == 0 and n > 1:
            continue
        structure = BudgetTree(budget, projective, single_root)
        kept = trees(n, budget, projective, single_root)
        scores = normal(6, n + 2, n + 2)
        scores[:, 1:] += 2 * normal(6, n + 1, 1)
        scores[-1] = scores[-1].round()
        best = structure.map(scores, torch.full((6,), n)).numpy()
        for z, own in zip(best, scores.numpy()):
            window = z[: n + 1, : n + 1]
            assert (kept == window).all((1, 2)).sum() == 1
            totals = (kept * own[: n + 1, : n + 1]).sum((1, 2))
            assert (window * own[: n + 1, : n + 1]).sum() == pytest.approx(totals.max())


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_search, "MOST_CALLS", 3)
    scores = torch.zeros(1, 7, 7)
    scores[:, 1] = 5.0
    with pytest.raises(NotTractable, match=r"map.*6"):
        BudgetTree(1).map(scores, torch.tensor([6]))


def test_a_search_cut_short_gives_a_tree_and_says_how_good_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget_search, "BOUND_STEPS", 2)
    monkeypatch.setattr(budget_search, "MOST_CALLS", 2)
    monkeypatch.setattr(budget_tree, "MOST_NUMBERS", 0)
    torch.manual_seed(0)
    for projective in (False, True):
        structure = BudgetTree(1, projective)
        scores = normal(1, 6, 6)
        scores[:, 1] += 3.0
        with pytest.warns(LatentWarning, match="5 tokens") as caught:
            z = structure.map(scores, torch.tensor([5]))[0].numpy()
        kept = trees(5, 1, projective)
        assert (kept == z).all((1, 2)).sum() == 1
        best = (kept * scores[0].numpy()).sum((1, 2)).max()
        reached, most = re.findall(r"(?:found is|at most) (\S+)[;.](?: |$)", str(caught[0].message))
        assert float(reached) == pytest.approx((z * scores[0].numpy()).sum(), rel=1e-5)
        assert float(reached) <= best * (1 + 1e-5) and best <= float(most) * (1 + 1e-5)


def test_items_without_a_tree() -> None:
    # With a budget of 0 all words need the root as head, and a single root allows only one word.
    structure = BudgetTree(0, single_root=True)
    scores, lengths = torch.zeros(3, 4, 4), torch.tensor([1, 3, 0])
    for operation in (structure.map, structure.sparsemap):
        with pytest.raises(InfeasibleError, match="BudgetTree") as error:
            operation(scores, lengths)
        assert error.value.items == [1]
    forbidden = torch.zeros(2, 3, 3)
    forbidden[1, :, 2] = -torch.inf
    for operation in (BudgetTree().map, BudgetTree().sparsemap):
        with pytest.raises(InfeasibleError, match="BudgetTree") as error:
            operation(forbidden, torch.tensor([2, 2]))
        assert error.value.items == [1]


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e7])
def test_no_scores_hide_that_there_is_no_tree(scale: float, projective: bool) -> None:
    """Items without a tree are found by prices, and by ADMM if it runs alone."""
    torch.manual_seed(0)
    structure, lengths = BudgetTree(0, projective, single_root=True), torch.tensor([1, 8, 40])
    scores = normal(3, 41, 41, scale=scale)
    with pytest.raises(InfeasibleError, match="BudgetTree") as error:
        structure.sparsemap(scores, lengths)
    assert error.value.items == [1, 2]
    masked = structure.masked(scores[:2, :9, :9], lengths[:2])[0]
    with pytest.raises(InfeasibleError) as error:
        solve_graphs(structure._graphs([1, 8]), masked, 300)
    assert error.value.items == [1]


@pytest.mark.parametrize("scale", [1e-310, 1e-30, 1e-3, 1e3, 1e30])
def test_any_scale(scale: float) -> None:
    torch.manual_seed(0)
    scores = normal(4, 7, 7, scale=scale)
    solution = BudgetTree(2).sparsemap(scores, torch.tensor([6, 5, 3, 1]))
    assert (solution.residual <= 1e-6).all()
    assert (solution.mean[:, 1:].sum(2) <= 2 + 1e-6).all()


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("scale", [1e8, 1e10, 1e30, 1e300])
def test_of_large_scores_the_best_average_is_left(
    scale: float, single_root: bool, by_prices_alone: None
) -> None:
    """Squares no longer count from some scale on, so the solution is the best average.

    The solver therefore scales larger scores down rather than clip them.
    """
    torch.manual_seed(0)
    structure, lengths = BudgetTree(1, single_root=single_root), torch.full((20,), 20)
    scores = normal(20, 21, 21)
    expected = structure.sparsemap(scores * 1e5, lengths).mean
    solution = structure.sparsemap(scores * scale, lengths)
    assert (solution.residual <= 1e-6).all()
    torch.testing.assert_close(solution.mean, expected, atol=1e-5, rtol=0.0)


@pytest.fixture
def without_admm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BudgetTree, "_by_both", refused)


@pytest.mark.parametrize("projective", [True, False])
@pytest.mark.parametrize("settings", [{}, {"single_root": True}, {"max_arc_length": 3}], ids=str)
def test_prices_of_modifiers_lead_to_the_solution(
    projective: bool,
    settings: dict[str, Any],
    without_admm: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trees of both kinds are solved with prices for the budgets alone, on top of SparseMAP of the
    trees."""
    if not projective:
        # Prices for all constraints would otherwise solve non-projective trees first.
        monkeypatch.setattr(BudgetTree, "_by_prices", lambda self, *given: nothing(*given))
    torch.manual_seed(0)
    structure, lengths = BudgetTree(1, projective, **settings), torch.tensor([9, 7, 1, 4])
    for scale in (0.1, 1.0, 5.0):
        scores = normal(4, 10, 10, scale=scale) + normal(4, 10, 1, scale=scale)
        scores[1, 2, 3] = -torch.inf
        solution = structure.sparsemap(scores.requires_grad_(), lengths)
        assert (solution.residual <= 1e-6).all() and (solution.iterations > 0).any()
        expected = by_trees(structure, scores, lengths)
        torch.testing.assert_close(solution.mean, expected, atol=1e-6, rtol=0.0)
        check_slope(structure, scores, lengths)


def nothing(scores: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    none = torch.zeros(0, dtype=torch.int64)
    return none, scores[:0], torch.zeros(0, dtype=torch.float64), none


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6, 1e30])
def test_projective_averages_of_any_scores_are_the_best(scale: float, without_admm: None) -> None:
    """No average has a higher score if scores are large, by a linear program over all trees."""
    torch.manual_seed(0)
    every = trees(5, 5, True)
    flat, kept = every.reshape(len(every), -1), every[:, 1:].sum(2)
    fractional = 0
    for _ in range(10):
        scores = normal(1, 6, 6) + 2.0 * normal(1, 6, 1)
        mean = BudgetTree(1, True).sparsemap(scores * scale, torch.tensor([5])).mean[0]
        assert (mean[1:].sum(1) <= 1.0 + 1e-6).all()
        if scale == 1.0:
            continue
        worth = flat @ scores[0].numpy().ravel()
        weights = np.ones((1, len(every)))
        best = linprog(-worth, A_ub=kept.T, b_ub=np.ones(5), A_eq=weights, b_eq=[1.0])
        assert float((mean * scores[0]).sum()) == pytest.approx(-best.fun, abs=1e-3)
        fractional += int(((mean > 0.01) & (mean < 0.99)).any())
    assert scale == 1.0 or fractional


@pytest.mark.parametrize(("n", "scale"), [(20, 1000.0), (30, 10.0)])
def test_long_sentences_with_large_scores_are_solved(
    n: int, scale: float, without_admm: None
) -> None:
    torch.manual_seed(0)
    structure, lengths = BudgetTree(1, True), torch.tensor([n, n])
    scores = (normal(2, n + 1, n + 1, scale=scale) + normal(2, n + 1, 1, scale=scale)).detach()
    solution = structure.sparsemap(scores.requires_grad_(), lengths)
    assert (solution.residual <= 1e-6).all()
    assert (solution.mean[:, 1:].sum(2) <= 1.0 + 1e-6).all()
    check_slope(structure, scores, lengths)


def by_steps(
    projective: bool, scores: Tensor, lengths: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve for trees with at most one modifier for each word, in at most ``steps`` steps."""
    structure = BudgetTree(1, projective)
    masked = structure.masked(scores, lengths)[0]
    if projective:
        return nearest_average_of_trees(structure.tree, masked, lengths, 1, steps, 1e-6)
    return tree_prices.nearest_average(masked, lengths, 1, False, steps, 1e-6)


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e9])
def test_too_few_steps_leave_no_point_that_is_taken_for_solved(
    projective: bool, scale: float
) -> None:
    """Large scores are solved in stages of growing scale, and the steps may run out after any
    stage."""
    torch.manual_seed(0)
    scores, lengths = normal(1, 7, 7, scale=scale), torch.tensor([6])
    scores[:, 1] += 3.0 * scale
    solution, residual, needed, _ = by_steps(projective, scores, lengths, 2000)
    assert residual <= 1e-6 and needed > 3
    unsolved = 0
    for steps in range(int(needed) + 1):
        mean, residual, taken, _ = by_steps(projective, scores, lengths, steps)
        assert taken <= max(steps, 1)
        if residual.isfinite():
            torch.testing.assert_close(mean, solution, atol=1e-6, rtol=0.0)
        else:
            unsolved += 1
    assert unsolved and residual.isfinite()


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("value", [-1e5, -1e9, -1e30])
def test_what_nobody_takes_may_be_as_bad_as_it_likes(
    projective: bool, value: float, without_admm: None
) -> None:
    torch.manual_seed(0)
    structure, lengths, scores = BudgetTree(1, projective), torch.tensor([6]), normal(1, 7, 7)
    scores[:, 1] += 3.0
    scores[:, 2:, 1] = value
    solution = structure.sparsemap(scores, lengths)
    assert solution.residual <= 1e-6
    scores[:, 2:, 1] = -100.0
    expected = structure.sparsemap(scores, lengths).mean
    torch.testing.assert_close(solution.mean, expected, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("value", [1e5, 1e6, 1e7])
def test_what_has_to_be_taken_hides_no_other_scores(
    projective: bool, value: float, without_admm: None
) -> None:
    """Two words compete for one head, so one of them must take a far worse head. The large
    difference hides no other scores."""
    torch.manual_seed(0)
    structure, lengths, scores = BudgetTree(1, projective), torch.tensor([6]), normal(1, 7, 7)
    others = torch.ones(7, dtype=torch.bool)
    others[4] = False
    means = []
    for worse in (1e3, value):
        own = scores.clone()
        own[0, others, 5:] -= worse
        means.append(structure.sparsemap(own, lengths).mean)
    torch.testing.assert_close(means[1], means[0], atol=1e-6, rtol=0.0)
    assert ((means[0] > 0.01) & (means[0] < 0.99)).any()


@pytest.mark.parametrize("projective", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_prices_prove_that_there_is_no_tree(projective: bool, scale: float) -> None:
    """The search ends as soon as the prices prove infeasibility. Prices worse than all others do
    not restart it."""
    torch.manual_seed(1)
    scores, lengths = normal(2, 9, 9, scale=scale), torch.tensor([8, 8])
    # Only three words can be heads, for eight words.
    scores[1, 3:] = -torch.inf
    scores[1, 0, 2:] = -torch.inf
    infeasible = by_steps(projective, scores, lengths, 50)[3]
    assert infeasible.tolist() == [False, True]


@pytest.mark.parametrize("projective", [False, True])
def test_scores_whose_difference_is_no_number_are_no_proof_that_there_is_no_tree(
    projective: bool,
) -> None:
    scores = torch.zeros(1, 3, 3, dtype=torch.float64)
    scores[0, 0, 1:] = -1.7e308
    scores[0, 1, 2] = scores[0, 2, 1] = 1.7e308
    structure = BudgetTree(0, projective)
    mean = structure.sparsemap(scores, torch.tensor([2])).mean[0]
    torch.testing.assert_close(mean[0, 1:], torch.ones(2, dtype=torch.float64))
    mean = structure.tree.sparsemap(scores, torch.tensor([2])).mean[0]
    torch.testing.assert_close(mean[:, 1:].sum(0), torch.ones(2, dtype=torch.float64))


def test_one_huge_score_forbids_or_demands_an_arc() -> None:
    torch.manual_seed(0)
    scores, lengths, structure = normal(1, 7, 7), torch.tensor([6]), BudgetTree(1)
    for value, found in ((-1e30, 0.0), (1e30, 1.0)):
        scores[0, 1, 2] = value
        solution = structure.sparsemap(scores, lengths)
        assert solution.residual <= 1e-6
        assert solution.mean[0, 1, 2].item() == pytest.approx(found, abs=1e-6)
        assert solution.mean[0, :, 1:].sum(0).numpy() == pytest.approx(np.ones(6), abs=1e-6)


def test_bad_input() -> None:
    with pytest.raises(InvalidScores, match="max_modifiers"):
        BudgetTree(-1)
    scores = torch.zeros(2, 4, 4)
    scores[1, 1, 2] = torch.nan
    with pytest.raises(InvalidScores, match=r"\[1\]"):
        BudgetTree().sparsemap(scores, torch.tensor([3, 3]))
    for operation in ("log_partition", "marginals", "sample"):
        with pytest.raises(NotTractable, match=operation):
            getattr(BudgetTree(), operation)(torch.zeros(1, 4, 4), torch.tensor([3]))


def test_estimators_that_need_the_best_tree_are_refused() -> None:
    structure = BudgetTree()
    SparseMAP().check(structure)
    for estimator in (
        StraightThrough(),
        Spigot(),
        PerturbAndMap(),
        SparseMAP(marginalize=True),
        SparseMAP(prediction="map"),
    ):
        with pytest.raises(IncompatiblePair, match=rf"{estimator.name}.*BudgetTree"):
            estimator.check(structure)


def test_pickles() -> None:
    again = pickle.loads(pickle.dumps(BudgetTree(3, projective=True)))
    assert repr(again) == repr(BudgetTree(3, projective=True))


@pytest.mark.parametrize("projective", [False, True])
def test_what_all_heads_of_a_word_have_in_common_does_not_hide_the_best(projective: bool) -> None:
    structure, n = BudgetTree(1, projective), 5
    members = torch.from_numpy(trees(n, 1, projective)).double()
    torch.manual_seed(0)
    for _ in range(20):
        shifted = normal(1, n + 1, n + 1)
        shifted[:, :, 1] += 1e10
        best = structure.map(shifted, torch.tensor([n]))
        # Subtract 1e10 again: these are the scores after the rounding that 1e10 caused.
        scores = shifted.clone()
        scores[:, :, 1] -= 1e10
        totals = (members * scores).sum((1, 2))
        assert float((best * scores).sum()) >= float(totals.max()) - 1e-9
