"""Euclidean projection of scores onto averages of dependency trees with a budget, by dual prices.

Without further constraints, the shares of a word's heads are a projection onto the simplex. An
average of trees satisfies more constraints: a word has no more modifiers than its budget, the root
has one modifier, and at least 1 enters each set of words from outside (Edmonds 1967). Each of these
constraints has a price (dual variable), which changes the scores of heads. There are too many sets
of words, so only sets get a price that maximum flows find to be violated.

The best prices minimise a convex function whose gradient is continuous and piecewise linear.
Newton's method takes a few steps. Each goes to the minimum of the current quadratic piece within
the bounds of the prices. If words are similar, many constraints are nearly equal, and most have
price 0. A step that ignores the bounds, and is clipped afterwards, makes no progress then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.arborescences.polytope_membership import entered_too_little
from spacy_latent.kernels.autograd.derivatives import SPARSEMAP_ONCE, last_derivative
from spacy_latent.kernels.choices.simplex import sparsemax_threshold
from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE
from spacy_latent.kernels.sparsemap.least_quadratic import dot, find_least, solve

# Estimated nanoseconds of a word and a head, for sharing items among threads.
COST = 1000.0
# Maximum number of sets of words with a price, per word.
SETS_PER_WORD = 4
# Maximum number of Newton steps before new sets are searched. Most items need less than 30.
STEPS = 200
# PRECISION: tolerance of constraints. SHORTFALL: how much less than 1 may enter a set of words.
# AT_THE_START: both tolerances while prices are only a start: for a fraction of the scores, or for
# an incomplete list of sets.
PRECISION, SHORTFALL, AT_THE_START = 1e-11, 1e-9, 1e-3
# Shortest fraction of a step that makes progress.
SHORTEST_STEP = 1e-10
# Maximum number of steps without better prices, once these are within the tolerance. If constraints
# are dependent, rounding leaves a residual that no step lowers.
STANDSTILL = 5
# Required fraction of the decrease that the gradient predicts, and rounding relative to the value.
DECREASE, ROUNDING = 1e-4, 1e-13
# Scores are small if the scores of a word's heads differ by at most SMALL. Larger scores are solved
# first for a fraction, which grows by the factor GROWTH.
SMALL, GROWTH = 5.0, 4.0
# Largest differences for which float64 prices are precise enough. Larger ones are clipped or
# scaled.
LARGEST = 1e8
# If prices fall by this margin below a lower bound of the value of all averages, there is no
# average.
MARGIN = 1.0
# Constraints hold with equality within TIGHT. STEP is the length of a trial step from the mean. A
# constraint counts as violated if the step breaks it by at least SHARE_OF_STEP of its length.
TIGHT, STEP, SHARE_OF_STEP = 1e-8, 1e-5, 1e-3
# Added to the second derivatives: RIDGE times their mean, and DAMPING times the residual up to
# LARGEST_DAMPING.
RIDGE, DAMPING, LARGEST_DAMPING = 1e-10, 1e-3, 1e-2


class Rule(NamedTuple):
    """The bound on the modifiers of a word, and whether the root has exactly one."""

    budget: float
    single_root: bool


class Solution(NamedTuple):
    """Averages of B items, and the prices at which they are optimal.

    Attributes:
        mean: ``(B, N+1, N+1)``, ``[head, modifier]``; zeros at the call.
        prices: ``(B, N+1+S)``, the prices of root, budgets and sets of words; zeros at the call.
        sets, counts: ``(B, S, N+1)`` and ``(B,)``, the nodes of each set, and the number of sets.
        residual: the largest violation of a constraint, infinite if an item is not solved (see
            :func:`nearest_average`).
        iterations: number of steps of Newton's method.
        status: as in kernels.core.status.
    """

    mean: np.ndarray
    prices: np.ndarray
    sets: np.ndarray
    counts: np.ndarray
    residual: np.ndarray
    iterations: np.ndarray
    status: np.ndarray


class Prices(NamedTuple):
    """Arrays of one item of n words.

    Attributes:
        mean, prices, sets: see Solution.
        heads: ``(n, n+1)``, the shares of each word's heads.
        short: ``(2n, n+1)`` bool, workspace for sets that less than 1 enters.
    """

    mean: np.ndarray
    prices: np.ndarray
    sets: np.ndarray
    heads: np.ndarray
    short: np.ndarray


@kernel(fastmath=ANY_ORDER, forceinline=True)
def _from_outside(row, members, size):
    """Return the total share of a word's heads that are outside of a set."""
    total = 0.0
    for head in range(size):
        if not members[head]:
            total += row[head]
    return total


@kernel
def _take_heads(n, scores, prices, sets, count, heads):
    """Write the shares of each word's heads at the given prices, ``(n, n+1)``.

    The value of the shares is returned: their scores less prices, less half of their squares.
    """
    worth = 0.0
    for word in range(n):
        row = heads[word]
        for head in range(n + 1):
            row[head] = scores[word, head] - prices[head]
        for c in range(count):
            if prices[n + 1 + c] > 0.0 and sets[c, word + 1]:
                # Heads outside of the set become cheaper.
                for head in range(n + 1):
                    row[head] += 0.0 if sets[c, head] else prices[n + 1 + c]
        top = row.max()
        if not np.isfinite(top):
            # A step to prices that overflow is not taken.
            return np.inf
        for head in range(n + 1):
            row[head] -= top
        threshold = sparsemax_threshold(row, n + 1)
        worth += top
        for head in range(n + 1):
            share = max(row[head] - threshold, 0.0)
            if share > 0.0:
                worth += share * (row[head] - 0.5 * share)
            row[head] = share
    return worth


@kernel
def _slack(n, heads, budget, sets, count, slack):
    """Write the slack of each constraint, which is the gradient with respect to its price."""
    slack[0] = 1.0
    slack[1 : n + 1] = budget
    for word in range(n):
        for head in range(n + 1):
            slack[head] -= heads[word, head]
    for c in range(count):
        entered = 0.0
        for word in range(n):
            if sets[c, word + 1]:
                entered += _from_outside(heads[word], sets[c], n + 1)
        slack[n + 1 + c] = entered - 1.0


@kernel(forceinline=True)
def _bounded(c, price, single_root):
    """Return the nearest price that a constraint may have.

    If the root has exactly one modifier, the constraint is an equation, with a price of any sign.
    Otherwise the root has at least one, and its price is at most 0. All other prices are at least
    0.
    """
    if c > 0:
        return max(price, 0.0)
    return price if single_root else min(price, 0.0)


@kernel
def _second_derivatives(n, heads, sets, chosen, number, matrix):
    """Write the second derivatives for the chosen constraints, the lower half of ``matrix``.

    They follow from the shares of a word's heads, which change by the change of prices less its
    mean over the heads with a share.
    """
    matrix[:number, :number] = 0.0
    taken = np.empty(n + 1, dtype=np.int64)
    places = np.empty(number, dtype=np.int64)
    rows = np.empty((number, n + 1))
    for word in range(n):
        size = 0
        for head in range(n + 1):
            if heads[word, head] > 0.0:
                taken[size] = head
                size += 1
        if size < 2:
            continue
        used = 0
        for place in range(number):
            c, row = chosen[place], rows[used]
            if c <= n:
                if heads[word, c] > 0.0:
                    for i in range(size):
                        row[i] = (1.0 if taken[i] == c else 0.0) - 1.0 / size
                    places[used] = place
                    used += 1
            elif sets[c - n - 1, word + 1]:
                outside = 0.0
                for i in range(size):
                    row[i] = 0.0 if sets[c - n - 1, taken[i]] else -1.0
                    outside += row[i]
                if outside < 0.0 and outside > -size:
                    for i in range(size):
                        row[i] -= outside / size
                    places[used] = place
                    used += 1
        for i in range(used):
            for j in range(i + 1):
                matrix[places[i], places[j]] += dot(rows[i], rows[j], size)


@kernel
def _least_value(scores):
    """Return a lower bound of the value of all averages.

    No average has a lower value than the worst heads, whose squares contribute at most a half.
    """
    least = 0.0
    for row in scores:
        lowest = 0.0
        for score in row:
            if score > -np.inf:
                lowest = min(lowest, score)
        least += lowest - 0.5
    return least


@kernel
def _residual(prices, slack, single_root):
    """Return the largest violation of a constraint."""
    residual = 0.0
    for c in range(len(slack)):
        towards = _bounded(c, prices[c] - slack[c], single_root)
        if prices[c] != 0.0 or towards != 0.0:
            residual = max(residual, abs(slack[c]))
    return residual


@kernel
def _newton_step(rule, item, slack, residual, change):
    """Write the step to the minimum of the current quadratic piece within the bounds of prices."""
    (n, _), prices, single_root = item.heads.shape, item.prices, rule.single_root
    size = len(slack)
    chosen, slopes = np.empty(size, dtype=np.int64), np.empty(size)
    down, up, step = np.empty(size), np.empty(size), np.empty(size)
    number = 0
    for c in range(size):
        change[c] = 0.0
        equation = c == 0 and single_root
        if equation or prices[c] != 0.0 or _bounded(c, -slack[c], single_root) != 0.0:
            chosen[number], slopes[number] = c, slack[c]
            down[number] = _bounded(c, -np.inf, single_root) - prices[c]
            up[number] = _bounded(c, np.inf, single_root) - prices[c]
            number += 1
    matrix = np.empty((size, size))
    _second_derivatives(n, item.heads, item.sets, chosen, number, matrix)
    mean = 0.0
    for i in range(number):
        mean += matrix[i, i] / number
    ridge = RIDGE * max(mean, 1.0) + min(LARGEST_DAMPING, DAMPING * residual)
    find_least(slopes, matrix, number, ridge, down, up, step)
    for i in range(number):
        change[chosen[i]] = step[i]


@kernel
def _find_prices(scores, rule, item, count, most_steps, tolerance, precision):
    """Improve prices in place by Newton's method.

    It ends when the residual is below ``precision``, or when it is below ``tolerance`` and further
    steps make no progress.

    Returns:
        The largest violation of a constraint; the number of steps; and INFEASIBLE if the prices
        prove that no average satisfies all constraints, because their value is less than the value
        of any average.
    """
    (budget, single_root), (_, prices, sets, heads, _) = rule, item
    n = len(scores)
    number_of_all = n + 1 + count
    slack, slack_there = np.empty(number_of_all), np.empty(number_of_all)
    bounds = np.empty(number_of_all)
    bounds[0], bounds[1 : n + 1], bounds[n + 1 :] = 1.0, budget, -1.0
    moved, change = np.empty(number_of_all), np.empty(number_of_all)
    other = np.empty_like(heads)
    best_prices, best_heads = np.empty(number_of_all), np.empty_like(heads)
    steps, least_residual, standing = 0, np.inf, 0
    # By weak duality, no prices have a lower value than an average.
    least = _least_value(scores)
    value = _take_heads(n, scores, prices, sets, count, heads)
    value += dot(bounds, prices, number_of_all)
    for steps in range(most_steps + 1):
        _slack(n, heads, budget, sets, count, slack)
        residual = _residual(prices, slack, single_root)
        standing = 0 if residual < 0.5 * least_residual else standing + 1
        if residual < least_residual:
            least_residual = residual
            best_prices[:] = prices[:number_of_all]
            best_heads[:] = heads
        at_rest = least_residual <= tolerance and standing > STANDSTILL
        if residual < precision or at_rest or steps == most_steps:
            break
        _newton_step(rule, item, slack, residual, change)
        fraction = 1.0
        while True:
            slope = 0.0
            for c in range(number_of_all):
                moved[c] = _bounded(c, prices[c] + fraction * change[c], single_root)
                slope += slack[c] * (moved[c] - prices[c])
            reached = _take_heads(n, scores, moved, sets, count, other)
            reached += dot(bounds, moved, number_of_all)
            if reached <= value + DECREASE * min(slope, 0.0):
                break
            if reached <= value + ROUNDING * abs(value):
                # Rounding hides whether the value decreased, but its slope shows it (Hager and
                # Zhang 2005, equation 4.1).
                _slack(n, other, budget, sets, count, slack_there)
                after = 0.0
                for c in range(number_of_all):
                    after += slack_there[c] * (moved[c] - prices[c])
                if after <= (2.0 * DECREASE - 1.0) * slope:
                    break
            fraction *= 0.5
            if fraction < SHORTEST_STEP:
                break
        if fraction < SHORTEST_STEP:
            break
        prices[:number_of_all] = moved
        heads[:] = other
        value = reached
        paid = 0.0
        for c in range(number_of_all):
            paid += abs(bounds[c] * prices[c])
        if value < least - MARGIN - SHORTFALL * paid:
            return residual, steps + 1, INFEASIBLE
    if least_residual < np.inf:
        prices[:number_of_all] = best_prices
        heads[:] = best_heads
    return least_residual, steps, FEASIBLE


@kernel
def _nearest_item(scores, rule, item, count, most_steps, tolerance, precision):
    """Solve one item, starting from given prices.

    Args:
        scores: ``(n, n+1)``.
        item: written.
        count: the last prices belong to ``count`` sets of words.
        precision: the residual at which Newton's method ends.

    Returns:
        The largest violation of a constraint, infinite if the item is not solved; the number of
        steps; the number of sets; and INFEASIBLE if there is no such average.
    """
    mean, prices, sets, heads, short = item
    n = len(scores)
    iterations, goal = 0, precision
    while True:
        steps = min(STEPS, most_steps - iterations)
        violation, done, status = _find_prices(scores, rule, item, count, steps, tolerance, goal)
        iterations += max(done, 1)
        if status == INFEASIBLE or not violation <= max(tolerance, goal):
            return np.inf, iterations, count, status
        for word in range(n):
            for head in range(n + 1):
                mean[head, word + 1] = heads[word, head]
        # The shortfall of a set that has a price already is within the violation.
        shortfall = max(min(tolerance, max(SHORTFALL, goal)), 2.0 * violation)
        more = entered_too_little(mean[: n + 1, : n + 1], shortfall, short)
        if more == 0 and goal <= precision:
            return violation, iterations, count, FEASIBLE
        if more == 0:
            goal = precision
            continue
        # More sets will change the prices, so these need not be precise.
        goal = max(precision, AT_THE_START)
        # Sets with price 0 need no constraint.
        kept = 0
        for c in range(count):
            if prices[n + 1 + c] > 0.0:
                sets[kept, : n + 1] = sets[c, : n + 1]
                prices[n + 1 + kept] = prices[n + 1 + c]
                kept += 1
        prices[n + 1 + kept : n + 1 + count] = 0.0
        count = kept
        if count + more > sets.shape[0] or iterations >= most_steps:
            return np.inf, iterations, count, FEASIBLE
        for c in range(more):
            sets[count + c, : n + 1] = short[c]
        count += more


@kernel
def _quarters(n, scores, result):
    """Write a quarter of the difference between each head of a word and its best one, at most 0.

    The difference of two quarters is finite in float64. The largest absolute value is returned, or
    −1 if a word has no head.
    """
    largest = 0.0
    for word in range(n):
        top = scores[: n + 1, word + 1].max()
        if not np.isfinite(top):
            return -1.0
        for head in range(n + 1):
            result[word, head] = 0.25 * scores[head, word + 1] - 0.25 * top
            if np.isfinite(result[word, head]):
                largest = max(largest, -result[word, head])
    return largest


@kernel
def _takes_worse(n, scores, heads, bound):
    """Return whether a word has a positive share of a head whose score is below the bound."""
    for word in range(n):
        for head in range(n + 1):
            if heads[word, head] > 0.0 and scores[word, head] < bound:
                return True
    return False


@kernel
def _nearest_by_fractions(scores, range_of_scores, rule, item, most_steps, tolerance):
    """Solve one item like :func:`_nearest_item`, for scores of large magnitude.

    The prices of such scores are large compared to a step. The prices for a small fraction of the
    scores are found soon, and then scaled up with the fraction.

    Args:
        range_of_scores: the largest difference between two heads of a word.
        item: its prices are 0 at the call.
    """
    n, prices = len(scores), item.prices
    given = np.empty((n, n + 1))
    fraction = SMALL / max(range_of_scores, SMALL)
    iterations, count = 0, 0
    while True:
        for word in range(n):
            for head in range(n + 1):
                given[word, head] = fraction * scores[word, head]
        last = fraction == 1.0
        bound = tolerance if last else AT_THE_START
        precision = PRECISION if last else AT_THE_START
        residual, done, count, status = _nearest_item(
            given, rule, item, count, most_steps - iterations, bound, precision
        )
        iterations += done
        if last or not residual <= bound:
            return residual, iterations, count, status
        if iterations >= most_steps:
            return np.inf, iterations, count, FEASIBLE
        # The last fraction is exactly 1, despite rounding.
        following = fraction * GROWTH if fraction * GROWTH < 1.0 else 1.0
        for c in range(n + 1 + count):
            prices[c] *= following / fraction
        fraction = following


@kernel
def nearest_items(start, stop, scores, lengths, rule, most_steps, tolerance, solution):
    """Solve items start .. stop−1 of scores ``(B, N+1, N+1)``, see :func:`nearest_average`."""
    mean, prices, sets, counts, residual, iterations, status = solution
    longest = 1
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    whole = np.empty((longest, longest + 1))
    for b in range(start, stop):
        n = lengths[b]
        residual[b], iterations[b], counts[b], status[b] = 0.0, 0, 0, FEASIBLE
        if n == 0:
            continue
        # Contiguous copies, which vectorise.
        own, heads = np.empty((n, n + 1)), np.empty((n, n + 1))
        short = np.empty((2 * n, n + 1), dtype=np.bool_)
        item = Prices(mean[b], prices[b], sets[b], heads, short)
        range_of_scores = _quarters(n, scores[b], whole)
        if range_of_scores < 0.0:
            residual[b], status[b] = np.inf, INFEASIBLE
            continue
        for word in range(n):
            for head in range(n + 1):
                own[word, head] = 4.0 * whole[word, head]
                if own[word, head] < -LARGEST and np.isfinite(whole[word, head]):
                    own[word, head] = -LARGEST
        residual[b], iterations[b], counts[b], status[b] = _nearest_by_fractions(
            own, min(4.0 * range_of_scores, LARGEST), rule, item, most_steps, tolerance
        )
        # Clipping the score of a head only matters if it has a share. Heads that have a share keep
        # their full score.
        if 4.0 * range_of_scores <= LARGEST or status[b] == INFEASIBLE:
            continue
        if np.isfinite(residual[b]) and not _takes_worse(n, whole, heads, -0.25 * LARGEST):
            continue
        if iterations[b] >= most_steps:
            residual[b] = np.inf
            continue
        for word in range(n):
            for head in range(n + 1):
                own[word, head] = whole[word, head] * (LARGEST / range_of_scores)
        prices[b] = 0.0
        residual[b], done, counts[b], status[b] = _nearest_by_fractions(
            own, LARGEST, rule, item, most_steps - iterations[b], tolerance
        )
        iterations[b] += done


@kernel
def nearest_gradient_items(start, stop, lengths, rule, solution, upstream, result):
    """Write the gradient of Σ upstream · mean with respect to the scores to ``result``.

    It is ``upstream`` less its mean over the heads of a word that have a share, projected so that a
    step along it keeps all active constraints. These are constraints with a price, and constraints
    that hold with equality and that a step along the gradient, or against it, would violate.
    """
    mean, prices, sets, counts = solution.mean, solution.prices, solution.sets, solution.counts
    for b in range(start, stop):
        n, count = lengths[b], counts[b]
        result[b] = 0.0
        heads, change = np.empty((n, n + 1)), np.empty((n, n + 1))
        # Maximum flows find at most two sets for each word, once for a step and once against it.
        own = np.zeros((count + 4 * n, n + 1), dtype=np.bool_)
        own[:count] = sets[b, :count, : n + 1]
        short = np.empty((2 * n, n + 1), dtype=np.bool_)
        chosen = np.empty(n + 1 + len(own), dtype=np.int64)
        number = 0
        for c in range(n + 1 + count):
            if prices[b, c] != 0.0 or (c == 0 and rule.single_root):
                chosen[number] = c
                number += 1
        for word in range(n):
            for head in range(n + 1):
                share = mean[b, head, word + 1]
                heads[word, head] = share if share > TIGHT else 0.0
        while True:
            for word in range(n):
                for head in range(n + 1):
                    change[word, head] = upstream[b, head, word + 1]
            _keep(n, heads, own, chosen, number, change)
            held = number
            number, count = _hold(heads, rule.budget, change, own, count, chosen, number, short)
            if number == held:
                break
        for word in range(n):
            for head in range(n + 1):
                result[b, head, word + 1] = change[word, head]


@kernel
def _keep(n, heads, sets, chosen, number, change):
    """Project ``change`` onto steps that keep the chosen constraints and the heads with a share."""
    _centre(n, heads, change)
    values, matrix = np.empty(number), np.empty((number, number))
    for i in range(number):
        values[i] = _change_of(n, sets, chosen[i], change)
    _second_derivatives(n, heads, sets, chosen, number, matrix)
    solve(matrix, number, 0.0, values)
    for i in range(number):
        c = chosen[i]
        for word in range(n):
            if c <= n:
                change[word, c] -= values[i]
            elif sets[c - n - 1, word + 1]:
                for head in range(n + 1):
                    if not sets[c - n - 1, head]:
                        change[word, head] += values[i]
    _centre(n, heads, change)


@kernel
def _hold(heads, budget, change, sets, count, chosen, number, short):
    """Choose constraints that hold with equality and are violated by a step along ``change``.

    A step against it is tested, too, since it may violate constraints that the first one leaves.
    The numbers of chosen constraints and of sets are returned.
    """
    n = len(heads)
    largest = 0.0
    for word in range(n):
        for head in range(n + 1):
            largest = max(largest, abs(change[word, head]))
    if largest == 0.0:
        return number, count
    held = number
    for c in range(n + 1):
        known = False
        for i in range(held):
            known |= chosen[i] == c
        total = -1.0 if c == 0 else -budget
        for word in range(n):
            total += heads[word, c]
        if not known and abs(total) <= TIGHT:
            if abs(_change_of(n, sets, c, change)) > SHARE_OF_STEP * largest:
                chosen[number] = c
                number += 1
    if number > held:
        return number, count
    moved = np.zeros((n + 1, n + 1))
    for sign in (-1.0, 1.0):
        for word in range(n):
            for head in range(n + 1):
                step = sign * STEP / largest * change[word, head]
                moved[head, word + 1] = max(heads[word, head] + step, 0.0)
        for place in range(entered_too_little(moved, SHARE_OF_STEP * STEP, short)):
            entered = -1.0
            for word in range(n):
                if short[place, word + 1]:
                    entered += _from_outside(heads[word], short[place], n + 1)
            if count < len(sets) and entered <= TIGHT:
                sets[count] = short[place]
                chosen[number] = n + 1 + count
                count += 1
                number += 1
    return number, count


@kernel
def _centre(n, heads, change):
    """Subtract from each row its mean over the heads with a share, and set the others to 0."""
    for word in range(n):
        size, total = 0, 0.0
        for head in range(n + 1):
            if heads[word, head] > 0.0:
                size += 1
                total += change[word, head]
        for head in range(n + 1):
            taken = heads[word, head] > 0.0
            change[word, head] = change[word, head] - total / size if taken else 0.0


@kernel
def _change_of(n, sets, c, change):
    """Return by how much ``change`` changes the left side of a constraint."""
    total = 0.0
    for word in range(n):
        if c <= n:
            total += change[word, c]
        elif sets[c - n - 1, word + 1]:
            for head in range(n + 1):
                if not sets[c - n - 1, head]:
                    total -= change[word, head]
    return total


class _NearestAverage(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        lengths: Tensor,
        max_modifiers: int,
        single_root: bool,
        max_iter: int,
        tolerance: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.save_for_backward(scores)
        array = scores.detach().to(torch.float64).contiguous().numpy()
        sizes = lengths.numpy().copy()
        batch, nodes = array.shape[:2]
        most_sets = SETS_PER_WORD * nodes
        mean, prices = np.zeros_like(array), np.zeros((batch, nodes + most_sets))
        sets = np.zeros((batch, most_sets, nodes), dtype=np.bool_)
        counts, iterations = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=np.int64)
        residual, status = np.zeros(batch), np.full(batch, FEASIBLE, dtype=np.int8)
        ctx.costs, ctx.dtype = COST * (sizes + 1.0) ** 2, scores.dtype
        tolerance = max(tolerance, PRECISION)
        rule = Rule(float(max_modifiers), single_root)
        solution = Solution(mean, prices, sets, counts, residual, iterations, status)
        given = (array, sizes, rule, max_iter, tolerance, solution)
        spread(nearest_items, ctx.costs, given)
        ctx.solution = (sizes, rule, solution)
        infeasible = torch.from_numpy(status == INFEASIBLE)
        results = torch.from_numpy(residual), torch.from_numpy(iterations), infeasible
        ctx.mark_non_differentiable(*results)
        # A copy, so that writing to the result does not change the gradient.
        return torch.from_numpy(mean).to(scores.dtype, copy=True), *results

    @staticmethod
    @last_derivative(SPARSEMAP_ONCE)
    def backward(ctx: Any, of_mean: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        upstream = of_mean.to(torch.float64).contiguous().numpy()
        result = np.empty_like(upstream)
        spread(nearest_gradient_items, ctx.costs, (*ctx.solution, upstream, result))
        return torch.from_numpy(result).to(ctx.dtype), None, None, None, None, None


def nearest_average(
    scores: Tensor,
    lengths: Tensor,
    max_modifiers: int,
    single_root: bool,
    max_iter: int,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the averages of dependency trees within the budget that are nearest to the scores.

    Averages satisfy the budget, and single trees in them may not. The result is once
    differentiable, and on the CPU.

    Args:
        scores: ``(B, N+1, N+1)``, ``[head, modifier]``; −inf if there is no arc, as for padding.
            Differences between the heads of a modifier should be at most 1e8. If the solution uses
            a head that is worse by more, the scores of the item are divided until no difference is
            larger. Averages whose values differ by less than a 1e8th may then be confused.
        lengths: ``(B,)``, int64.
        max_modifiers: bound for each word. The root has one modifier if ``single_root``, else any
            number.
        max_iter: bound on the steps of Newton's method for an item.
        tolerance: bound on the residual, at least ``PRECISION``.

    Returns:
        The averages; the largest violation of a constraint in each, float64; the number of steps,
        int64; and whether an item is proved to have no such average, bool. The violation is
        infinite for such items and for unsolved ones. An item is unsolved if ``max_iter`` steps
        were not enough, or no step makes progress, or more sets of words need a price than
        ``SETS_PER_WORD`` for each word. Its average is then invalid.
    """
    return _NearestAverage.apply(scores, lengths, max_modifiers, single_root, max_iter, tolerance)
