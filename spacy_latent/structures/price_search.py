"""Search for the prices of modifiers at which an average of trees satisfies budgets.

SparseMAP of the trees at given prices is exact and takes some milliseconds. The best prices
minimize the value of the trees at these prices. It is a convex, piecewise quadratic function with a
continuous gradient, and SparseMAP gives its second derivatives. The method is Newton's, as in
:mod:`spacy_latent.kernels.sparsemap.tree_prices`. There, all constraints have prices, also those
that define trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.sparsemap.least_quadratic import find_least
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
)
from spacy_latent.structures.supports import Supports

# PRECISION: tolerance of budgets, and of SparseMAP's means. OF_RANGE: tolerance of budgets relative
# to the range of the scores, with which rounding grows.
PRECISION, OF_RANGE = 1e-9, 1e-15
# Difference from the highest score of a word's heads at which scores are clipped first. This takes
# a tenth of the time, and is exact if no tree takes a clipped head.
FAR = 1e4
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
        counts = modifier_counts(self.supports, self.item, len(self.mean) - 1)
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


def modifier_counts(supports: Supports, item: int, n: int) -> np.ndarray:
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
    answer = yield less(scores, prices)
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
            answer = yield less(scores, moved)
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


def less(scores: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Return scores ``(n+1, n+1)`` with the arcs from each word reduced by its price ``(n,)``."""
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


def search_prices(scores: np.ndarray, budget: float, most_steps: int, tolerance: float) -> Search:
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
            answer = yield less(found.scores, found.prices)
            if not (answer.mean[known & (quarters < -0.25 * far)] > 0.0).any():
                return found
        if steps >= most_steps:
            return found._replace(residual=np.inf)
    options = (budget, most_steps - steps, tolerance)
    found = yield from _by_fractions(quarters * (LARGEST / farthest), LARGEST, *options)
    return found._replace(steps=steps + found.steps)


def run_searches(searches: dict[int, Search], ask: Callable[..., list[Answer]]) -> dict[int, Found]:
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
