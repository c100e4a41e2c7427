"""Nearest point to scores among the averages of trees that satisfy a budget on average.

It is found by prices of modifiers. The price of the modifiers of a word with an exhausted budget
rises until the trees of the support use no more of them.

SparseMAP of the trees at given prices is exact and takes some milliseconds. The best prices
minimize the value of the trees at these prices. It is a convex, piecewise quadratic function with a
continuous gradient, and SparseMAP gives its second derivatives. The method is Newton's, as in
:mod:`spacy_latent.kernels.sparsemap.tree_prices`. There, every constraint has a price and none is
left to trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.autograd.derivatives import SPARSEMAP_ONCE, last_derivative
from spacy_latent.kernels.sparsemap.least_quadratic import DEPENDENT, find_least
from spacy_latent.kernels.sparsemap.tree_prices import (
    AT_THE_START,
    DAMPING,
    DECREASE,
    GROWTH,
    LARGEST,
    LARGEST_DAMPING,
    MARGIN,
    RIDGE,
    ROUNDING,
    SHORTEST_STEP,
    SMALL,
    STANDSTILL,
    TIGHT,
)
from spacy_latent.structures.active_set import Supports
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.tree_sparsemap import supports_of_trees

# Tolerance of budgets, and distance of SparseMAP's means from their optimum; and the former over
# the range of the scores, since rounding grows with it.
PRECISION, OF_RANGE = 1e-9, 1e-15
# Difference from the highest score of a word's heads at which scores are clipped first. This takes
# a tenth of the time, and is exact if no tree takes a clipped head.
FAR = 1e4
# Bound on the calls of the tree's oracle at one price. Few items have as large a support.
CALLS = 2000
# Duality gap of the size of rounding, per word and per size of the scores.
LARGEST_GAP = 1e-12
# Change of a word's number of modifiers that is only rounding, over the largest change of an arc.
CHANGED = 1e-9
# Shift of prices away from the edge, see :func:`_inside`.
SHIFT = 1e-4
# Factor by which the first trial fraction of a step may exceed the last successful one.
LONGER = 8.0


@dataclass
class Answer:
    """SparseMAP solution of one item at some prices.

    Attributes:
        worth: scores · mean − ½‖mean‖², with prices subtracted from the scores.
        mean: ``(n+1, n+1)``.
        supports: the supports of all items of the batch.
        item: place of the item in it.
    """

    worth: float
    mean: np.ndarray
    supports: Supports
    item: int

    @property
    def modifiers(self) -> np.ndarray:
        """Mean number of modifiers of each word, ``(n,)``."""
        return self.mean[1:].sum(1)

    def second_derivatives(self) -> np.ndarray:
        """Return the second derivatives of the worth by the prices, ``(n, n)``."""
        counts = _counts(self.supports, self.item, len(self.mean) - 1)
        return counts.T @ self.supports.change_of_weights(self.item, counts)


class Found(NamedTuple):
    """Result of a search for prices.

    Attributes:
        scores: ``(n+1, n+1)``, the scores that were solved.
        residual: the largest violation of a budget, infinite if the scores were not solved.
    """

    scores: np.ndarray
    prices: np.ndarray
    residual: float
    steps: int
    infeasible: bool


# Requests solutions of scores from which prices were subtracted.
Search = Generator[np.ndarray, Answer, Found]


def _counts(supports: Supports, item: int, n: int) -> np.ndarray:
    """Return the number of modifiers of each word in each tree of the support, ``(K, n)``."""
    size, nodes = int(supports.counts[item]), math.isqrt(supports.means.shape[1])
    parts = supports.atoms[item, :size]
    tree, place = np.nonzero(parts >= 0)
    counts = np.bincount(tree * nodes + parts[tree, place] // nodes, minlength=size * nodes)
    return counts.reshape(size, nodes)[:, 1 : n + 1].astype(np.float64)


def _find_prices(
    scores: np.ndarray,
    prices: np.ndarray,
    budget: float,
    most_steps: int,
    precision: float,
    tolerance: float,
) -> Search:
    """Search for prices as kernels.sparsemap.tree_prices does, starting from the given ones.

    A residual within the tolerance is accepted if further steps do not improve it.
    """
    finite = np.where(np.isfinite(scores[:, 1:]), scores[:, 1:], 0.0)
    # Lower bound on the value at any prices, if some average of trees satisfies the budgets.
    least = (np.minimum(finite.min(0), 0.0) - 0.5).sum()
    answer = yield _less(scores, prices)
    value, fraction = answer.worth + budget * prices.sum(), 1.0
    best, least_residual, standing = prices, np.inf, 0
    for steps in range(most_steps + 1):
        slack = budget - answer.modifiers
        towards = np.maximum(prices - slack, 0.0)
        held = (prices > 0.0) | (towards > 0.0)
        residual = float(np.abs(slack[held]).max(initial=0.0))
        standing = 0 if residual < 0.5 * least_residual else standing + 1
        if residual < least_residual:
            best, least_residual = prices, residual
        at_rest = least_residual <= tolerance and standing > STANDSTILL
        if residual < precision or at_rest or steps == most_steps:
            break
        chosen = np.flatnonzero(held)
        matrix = np.ascontiguousarray(answer.second_derivatives()[np.ix_(chosen, chosen)])
        ridge = RIDGE * max(matrix.trace() / len(chosen), 1.0)
        ridge += min(LARGEST_DAMPING, DAMPING * residual)
        step, highest = np.empty(len(chosen)), np.full(len(chosen), np.inf)
        find_least(slack[chosen], matrix, len(chosen), ridge, -prices[chosen], highest, step)
        change = np.zeros(len(prices))
        change[chosen] = step
        fraction = min(1.0, LONGER * fraction)
        while True:
            moved = np.maximum(prices + fraction * change, 0.0)
            slope = min(float(slack @ (moved - prices)), 0.0)
            answer = yield _less(scores, moved)
            reached = answer.worth + budget * moved.sum()
            if reached <= value + DECREASE * slope:
                break
            if reached <= value + ROUNDING * abs(value):
                after = float((budget - answer.modifiers) @ (moved - prices))
                if after <= (2.0 * DECREASE - 1.0) * slope:
                    break
            fraction *= 0.5
            if fraction < SHORTEST_STEP:
                return Found(scores, best, least_residual, steps, False)
        prices, value = moved, reached
        if value < least - MARGIN - PRECISION * budget * prices.sum():
            return Found(scores, prices, np.inf, steps + 1, True)
    return Found(scores, best, least_residual, steps, False)


def _less(scores: np.ndarray, prices: np.ndarray) -> np.ndarray:
    left = scores.copy()
    left[1:] -= prices[:, None]
    return left


def _by_fractions(
    scores: np.ndarray, range_of_scores: float, budget: float, most_steps: int, tolerance: float
) -> Search:
    """Search for the prices of a fraction of the scores first, then of larger ones.

    See kernels.sparsemap.tree_prices, which does the same.
    """
    prices = np.zeros(len(scores) - 1)
    fraction, steps = SMALL / max(range_of_scores, SMALL), 0
    while True:
        last = fraction == 1.0
        enough, precision = AT_THE_START, AT_THE_START
        if last:
            enough, precision = tolerance, max(PRECISION, OF_RANGE * range_of_scores)
        options = (budget, most_steps - steps, precision, enough)
        found = yield from _find_prices(fraction * scores, prices, *options)
        steps += found.steps
        solved = found.residual <= enough
        if last or not solved or steps >= most_steps:
            residual = found.residual if last and solved else np.inf
            return found._replace(residual=residual, steps=steps)
        following = min(fraction * GROWTH, 1.0)
        prices = found.prices * (following / fraction)
        fraction = following


def _search(scores: np.ndarray, budget: float, most_steps: int, tolerance: float) -> Search:
    """Search for the prices of one item.

    Args:
        scores: ``(n+1, n+1)``; −inf for entries that are no arc. Large ones are clipped if no tree
            takes them, and else divided, see kernels.sparsemap.tree_prices.
    """
    quarters = np.full(scores.shape, -np.inf)
    quarters[:, 1:] = 0.25 * scores[:, 1:] - 0.25 * scores[:, 1:].max(0)
    known = np.isfinite(quarters)
    farthest = -quarters[known].min(initial=0.0)
    steps = 0
    for far in (FAR, LARGEST):
        cut_off = np.where(known, 4.0 * np.maximum(quarters, -0.25 * far), -np.inf)
        options = (budget, most_steps - steps, tolerance)
        found = yield from _by_fractions(cut_off, 4.0 * min(farthest, 0.25 * far), *options)
        steps += found.steps
        found = found._replace(steps=steps)
        if farthest <= 0.25 * far or found.infeasible:
            return found
        if np.isfinite(found.residual):
            answer = yield _less(found.scores, found.prices)
            if not (answer.mean[known & (quarters < -0.25 * far)] > 0.0).any():
                return found
        if steps >= most_steps:
            return found._replace(residual=np.inf)
    options = (budget, most_steps - steps, tolerance)
    found = yield from _by_fractions(quarters * (LARGEST / farthest), LARGEST, *options)
    return found._replace(steps=steps + found.steps)


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


def _results(searches: dict[int, Search], ask: Callable[..., list[Answer]]) -> dict[int, Found]:
    """Run all searches, and answer their requests together."""
    results = {}
    asked = {item: next(search) for item, search in searches.items()}
    while asked:
        following = {}
        for item, answer in zip(asked, ask(list(asked.values()))):
            try:
                following[item] = searches[item].send(answer)
            except StopIteration as end:
                results[item] = end.value
        asked = following
    return results


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
            item: _search(array[item, : n + 1, : n + 1], *options) for item, n in enumerate(sizes)
        }
        found = [result for _, result in sorted(_results(searches, ask).items())]
        answers = ask([_less(result.scores, result.prices) for result in found])
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
    """Return the supports at prices in the interior of those that lead to the same mean.

    At the edge of these prices there are ties with trees that no other such price admits. The mean
    does not move along them. Newton's method approaches the edge from prices at which these trees
    have a weight, and leaves them weights of the size of rounding errors. So prices are moved away
    from them.
    """
    supports, moves = answers[0].supports, {}
    for item, result in enumerate(found):
        n, size = len(result.prices), int(supports.counts[item])
        slight = supports.weights[item, :size] <= TIGHT
        if not slight.any() or not np.isfinite(result.residual):
            continue
        beyond = _counts(supports, item, n)[slight].sum(0) - budget * slight.sum()
        beyond[result.prices == 0.0] = 0.0
        if beyond.any():
            prices = result.prices + SHIFT / np.abs(beyond).max() * beyond
            moves[item] = np.maximum(prices, 0.0)
    while moves:
        given = [
            _less(result.scores, moves.get(item, result.prices))
            for item, result in enumerate(found)
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

    It is some tenfold slower.

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
