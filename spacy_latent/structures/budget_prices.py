"""Nearest point to scores among the averages of trees that satisfy a budget on average.

It is found by prices of modifiers. The price of the modifiers of a word with an exhausted budget
rises until the trees of the support use no more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.autograd.derivatives import SPARSEMAP_ONCE, last_derivative
from spacy_latent.kernels.sparsemap.least_quadratic import DEPENDENT
from spacy_latent.kernels.sparsemap.tree_prices import TIGHT
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.price_search import (
    PRECISION,
    Answer,
    Found,
    less,
    modifier_counts,
    run_searches,
    search_prices,
)
from spacy_latent.structures.supports import Supports
from spacy_latent.structures.tree_sparsemap import supports_of_trees

# Bound on the calls of the tree's oracle at one price. Few items have as large a support.
CALLS = 2000
# Duality gap of the size of rounding, per word and per size of the scores.
LARGEST_GAP = 1e-12
# Change of a word's number of modifiers that is only rounding, over the largest change of an arc.
CHANGED = 1e-9
# Shift of prices away from the edge, see :func:`_inside`.
SHIFT = 1e-4


def _answers(tree: DependencyTree, given: Sequence[np.ndarray], nodes: int) -> list[Answer]:
    """Return the SparseMAP solutions for all of the given scores, computed in one batch."""
    scores = np.full((len(given), nodes, nodes), -np.inf)
    for item, own in enumerate(given):
        scores[item, : len(own), : len(own)] = own
    lengths = torch.tensor([len(own) - 1 for own in given], device="cpu")
    supports = supports_of_trees(tree, torch.from_numpy(scores), lengths, CALLS, PRECISION)
    answers = []
    for item, own in enumerate(given):
        mean = supports.means[item].reshape(nodes, nodes)[: len(own), : len(own)]
        taken = mean > 0.0
        worth = float((own[taken] * mean[taken]).sum() - 0.5 * (mean * mean).sum())
        answers.append(Answer(worth, mean, supports, item))
    return answers


class _NearestAverage(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        lengths: Tensor,
        tree: DependencyTree,
        max_modifiers: int,
        max_iter: int,
        tolerance: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.save_for_backward(scores)
        ctx.max_modifiers = max_modifiers
        array, sizes = scores.detach().double().numpy(), lengths.tolist()
        ask = partial(_answers, tree, nodes=array.shape[1])
        options = (float(max_modifiers), max_iter, max(tolerance, PRECISION))
        searches = {
            item: search_prices(array[item, : n + 1, : n + 1], *options)
            for item, n in enumerate(sizes)
        }
        found = [result for _, result in sorted(run_searches(searches, ask).items())]
        answers = ask([less(result.scores, result.prices) for result in found])
        mean = np.zeros_like(array)
        residual = np.array([result.residual for result in found])
        for item, answer in enumerate(answers):
            mean[item, : sizes[item] + 1, : sizes[item] + 1] = answer.mean
            given = found[item].scores
            largest = -given[np.isfinite(given)].min(initial=-1.0)
            if answer.supports.gaps[item] > LARGEST_GAP * sizes[item] * largest:
                residual[item] = np.inf
        ctx.answers, ctx.found, ctx.ask = answers, found, ask
        results = (
            torch.from_numpy(residual),
            torch.tensor([result.steps for result in found], dtype=torch.int64, device="cpu"),
            torch.tensor([result.infeasible for result in found], dtype=torch.bool, device="cpu"),
        )
        ctx.mark_non_differentiable(*results)
        return torch.from_numpy(mean).to(scores.dtype), *results

    @staticmethod
    @last_derivative(SPARSEMAP_ONCE)
    def backward(ctx: Any, of_mean: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        supports = _inside(ctx.answers, ctx.found, ctx.max_modifiers, ctx.ask)
        priced = np.zeros(of_mean.shape[:2], dtype=np.bool_)
        for item, result in enumerate(ctx.found):
            priced[item, 1 : len(result.prices) + 1] = result.prices > 0.0
        return (_pull_back(supports, priced, ctx.max_modifiers, of_mean), *[None] * 5)


def _inside(
    answers: list[Answer], found: list[Found], budget: int, ask: Callable[..., list[Answer]]
) -> Supports:
    """Move prices into the interior of the set with the same mean, and return the supports there.

    At the edge of this set, more trees tie with the support than in its interior. The mean does not
    move along these trees. Newton's method approaches the edge from outside, and leaves them
    weights of the size of rounding errors. So prices are moved to where these trees do not tie.
    """
    supports, moves = answers[0].supports, {}
    for item, result in enumerate(found):
        n, size = len(result.prices), int(supports.counts[item])
        slight = supports.weights[item, :size] <= TIGHT
        if not slight.any() or not np.isfinite(result.residual):
            continue
        beyond = modifier_counts(supports, item, n)[slight].sum(0) - budget * slight.sum()
        beyond[result.prices == 0.0] = 0.0
        if beyond.any():
            prices = result.prices + SHIFT / np.abs(beyond).max() * beyond
            moves[item] = np.maximum(prices, 0.0)
    while moves:
        given = [
            less(result.scores, moves.get(item, result.prices)) for item, result in enumerate(found)
        ]
        moved = ask(given)
        changed = [
            item for item in moves if np.abs(moved[item].mean - answers[item].mean).max() > TIGHT
        ]
        if not changed:
            return moved[0].supports
        for item in changed:
            del moves[item]
    return supports


class _AverageOfTrees(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        lengths: Tensor,
        tree: DependencyTree,
        max_modifiers: int,
        max_iter: int,
        tolerance: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(scores)
        supports = supports_of_trees(tree, scores, lengths, max_iter, tolerance)
        ctx.supports, ctx.max_modifiers = supports, max_modifiers
        mean, gap = torch.from_numpy(supports.means), torch.from_numpy(supports.gaps)
        ctx.mark_non_differentiable(gap)
        # A copy, so that the gradient stays the same if the caller writes to it.
        return mean.view(scores.shape).to(scores.dtype, copy=True), gap

    @staticmethod
    @last_derivative(SPARSEMAP_ONCE)
    def backward(ctx: Any, of_mean: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return _pull_back(ctx.supports, None, ctx.max_modifiers, of_mean), *[None] * 5


def _pull_back(
    supports: Supports, priced: np.ndarray | None, budget: int, of_mean: Tensor
) -> Tensor:
    """Return the gradient of scores for a gradient of means, both ``(B, N+1, N+1)``.

    It is the gradient without budgets, less the component that changes the number of modifiers of
    words with an exhausted budget. Prices alone need not determine these words: words that tie may
    exhaust their budgets together at a price of 0.

    Args:
        priced: ``(B, N+1)`` bool, words with a price. Their budgets are exhausted up to rounding.
    """
    upstream = of_mean.double().numpy()

    def without_budgets(given: np.ndarray) -> np.ndarray:
        return supports.pull_back(given.reshape(supports.means.shape)).reshape(given.shape)

    modifiers = supports.means.reshape(upstream.shape).sum(2)
    used_up = np.abs(modifiers - budget) <= TIGHT
    if priced is not None:
        used_up |= priced
    used_up[:, 0] = False
    free = without_budgets(upstream)
    result = free.copy()
    # For each item, words with an exhausted budget, and gradients of the numbers of their
    # modifiers.
    held: list[list[int]] = [[] for _ in result]
    moved: list[list[np.ndarray]] = [[] for _ in result]
    while True:
        changes = np.abs(result.sum(2))
        more = used_up & (changes > CHANGED * np.abs(result).max((1, 2), initial=0.0)[:, None])
        for item, known in enumerate(held):
            more[item, known] = False
        if not more.any():
            return torch.from_numpy(result).to(of_mean.dtype)
        for place in range(int(more.sum(1).max())):
            of_words, chosen = np.zeros_like(upstream), {}
            for item, words in enumerate(map(np.flatnonzero, more)):
                if place < len(words):
                    chosen[item] = int(words[place])
                    of_words[item, words[place]] = 1.0
            found = without_budgets(of_words)
            for item, word in chosen.items():
                held[item].append(word)
                moved[item].append(found[item])
        for item in np.flatnonzero(more.any(1)).tolist():
            kept, own = held[item], np.stack(moved[item])
            wanted = free[item, kept].sum(1)
            factors = np.linalg.lstsq(own[:, kept].sum(2).T, wanted, DEPENDENT)[0]
            result[item] = free[item] - np.tensordot(factors, own, 1)


def nearest_average_of_trees(
    tree: DependencyTree,
    scores: Tensor,
    lengths: Tensor,
    max_modifiers: int,
    max_iter: int,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve as kernels.sparsemap.tree_prices.nearest_average, for trees of any kind.

    It takes about ten times as long.

    Args:
        scores: ``(B, N+1, N+1)``, ``[head, modifier]``; −inf for entries that are no arc, as at
            padding. Every item has a tree.
        max_iter: bound on the steps of Newton's method for an item.

    Returns:
        The same as ``nearest_average``.
    """
    return _NearestAverage.apply(scores, lengths, tree, max_modifiers, max_iter, tolerance)


def average_of_trees(
    tree: DependencyTree,
    scores: Tensor,
    lengths: Tensor,
    max_modifiers: int,
    max_iter: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Return the mean of SparseMAP over all trees, and its gap.

    The mean is ``(B, N+1, N+1)`` and the gap ``(B,)``, float64. If the mean satisfies the budgets,
    the gradient is the gradient with budgets.
    """
    mean, gap = _AverageOfTrees.apply(scores, lengths, tree, max_modifiers, max_iter, tolerance)
    return mean, gap
