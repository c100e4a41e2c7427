"""Sums over projective dependency trees: inside-outside on Eisner's charts.

The recurrences are from Eisner (1996) and Paskin (2001): O(n³) time and O(n²) memory, in float64.
Charts are laid out as in kernels.spans.eisner.

Weights are exp(score) divided by the sum of their column. A cell is then the probability that
independently drawn heads form its span, and at most 1. Few choices of heads for a long sentence are
trees, so each weight is also multiplied by some γ ≥ 1. If an overflow or underflow could matter
(see :func:`_trusted_inside`), :func:`sum_by_exponents` solves the sentence with scaled floats, in
which each number has its own exponent. All inner loops are multiply-adds on contiguous rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from spacy_latent.kernels.autograd.operators import Family
from spacy_latent.kernels.core.compilation import ANY_ORDER, FUSED, kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, TOO_LARGE, UNSOLVED
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.arc_scores import is_finite, read_arc_scores
from spacy_latent.kernels.simd.exponential import exponential
from spacy_latent.kernels.simd.lanes import (
    FLOOR,
    LOG_SMALLEST,
    LONGEST,
    group_size,
    kept_beside,
    longest_beside,
)
from spacy_latent.kernels.simd.row_numbers import (
    Sums,
    Tangents,
    add_row,
    marginal,
    plus,
    pulls_of,
    read,
    times_weight,
    write,
)
from spacy_latent.kernels.simd.scaled_floats import LN2
from spacy_latent.kernels.simd.vector import LANES, aligned_empty
from spacy_latent.kernels.spans.eisner import (
    BETWEEN,
    CHARTS,
    JOINS,
    LEFT,
    RIGHT,
    TO_LEFT,
    TO_RIGHT,
    best_projective_tree,
    fill_spans,
    float_workspace_size,
    integer_workspace_size,
)
from spacy_latent.kernels.spans.eisner_lanes import (
    best_trees_beside,
    charts_of_trees,
    set_scores,
)
from spacy_latent.kernels.spans.inside_outside_lanes import CHARTS as CHARTS_BESIDE
from spacy_latent.kernels.spans.inside_outside_lanes import sum_side_by_side
from spacy_latent.kernels.spans.scaled_charts import (
    draw_split,
    normalise,
    pull_row,
    push_row,
    scaled_charts,
    scaled_weights,
    seed,
    set_one,
    weigh,
    weigh_back,
)

HEADER = 8
# Charts of gradients, after the inside charts.
OF_BETWEEN, OF_TO_RIGHT, OF_TO_LEFT, OF_RIGHT, OF_LEFT = range(CHARTS, 2 * CHARTS)
_pull = pulls_of(JOINS, {chart: CHARTS + chart for chart in range(CHARTS)})


@kernel
def _stride(n):
    """Return the numbers in a row of a chart: whole vectors."""
    return (n + 1 + LANES) // LANES * LANES


@kernel(fastmath=FUSED)
def _weights(scores, n, log_gamma, w, column):
    """Write γ·(column softmax of ``scores``).

    Args:
        column: ``(2, n+1)`` workspace.

    Returns:
        The log of the product of the divisors of the weights, −inf if a token has no head; and the
        log of the smallest weight.
    """
    top, total = column[0], column[1]
    for m in range(n + 1):
        top[m] = -np.inf
        total[m] = 0.0
    for h in range(n + 1):
        source = scores[h]
        for m in range(n + 1):
            top[m] = source[m] if source[m] > top[m] else top[m]
    for m in range(1, n + 1):
        if top[m] == -np.inf:
            return -np.inf, 0.0
    top[0] = 0.0
    for h in range(n + 1):
        source, target = scores[h], w[h]
        for m in range(n + 1):
            value = exponential(source[m] - top[m])
            target[m] = value
            total[m] += value
    total[0] = 1.0
    gamma, shift = math.exp(log_gamma), 0.0
    for m in range(1, n + 1):
        column_sum = top[m] + math.log(total[m]) - log_gamma
        shift += column_sum
        # From here on: the logarithm of the divisor, and the factor of the exponentials.
        top[m] = column_sum
        total[m] = gamma / total[m]
    smallest = 0.0
    for h in range(n + 1):
        source, target = scores[h], w[h]
        for m in range(n + 1):
            target[m] *= total[m]
            value = source[m] - top[m]
            smallest = value if value < smallest and source[m] > -np.inf else smallest
    return shift, smallest


@kernel(fastmath=FUSED)
def _weights_beside(scores, n, heads, w):
    """Write exp(score − the score of the token's arc in the given tree).

    Returns:
        The two results of :func:`_weights`. The first is −inf if the weights do not fit in float64.
    """
    shift, smallest, largest = 0.0, 0.0, 0.0
    for m in range(1, n + 1):
        shift += scores[heads[m], m]
    for h in range(n + 1):
        source, target = scores[h], w[h]
        for m in range(1, n + 1):
            value = source[m] - scores[heads[m], m]
            largest = max(largest, value)
            smallest = value if value < smallest and source[m] > -np.inf else smallest
            target[m] = exponential(min(value, 709.0))
    return shift if largest < 640.0 else -np.inf, smallest


@kernel
def _trusted_inside(w, n, first, smallest, charts):
    """Fill ``charts`` like :func:`_inside`, and check the precision of the sum.

    Numbers that have underflowed are below FLOOR. The plain sum is a lower bound. The sum with
    FLOOR added wherever an underflow is possible is an upper bound. An overflow shows in both.

    Returns:
        The sum over trees, 0 if it is not precise, or +inf after an overflow.
    """
    bound = np.inf
    safe = n * smallest >= LOG_SMALLEST
    if not safe:
        bound = _inside(w, n, first, FLOOR, charts)
    partition = _inside(w, n, first, 0.0, charts)
    if not partition < np.inf:
        return np.inf
    # A sum below FLOOR may itself have lost precision.
    known = partition > FLOOR and bound - partition <= 1e-15 * partition
    return partition if safe or known else 0.0


@kernel
def _inside_by_columns(s, n, first, w, column, charts):
    """Fill ``w`` and ``charts``, with the weights of each token divided by their sum.

    Returns:
        The log of the product of the divisors, −inf if a token has no head; and the sum over trees
        of the weights, 0 if it is not precise.
    """
    shift, partition = -np.inf, 0.0
    # The number of trees grows by a factor of about 6.75 per token. If few arcs have all the
    # weight, most choices of heads are trees. Then γ = 1 is tried.
    for log_gamma in (max(math.log(n) - 1.91, 0.0), 0.0):
        shift, smallest = _weights(s, n, log_gamma, w, column)
        if shift == -np.inf:
            return shift, 0.0
        partition = _trusted_inside(w, n, first, smallest, charts)
        if partition < np.inf:
            break
    return shift, partition if partition < np.inf else 0.0


@kernel
def _scaled_inside(s, n, first, w, column, heads, integers, charts):
    """Fill ``w`` and ``charts`` with a scaling for which the sum fits in float64.

    Args:
        heads: workspace.

    Returns:
        The log of the product of the divisors, −inf if there is no tree; and the sum over trees, 0
        if no scaling fits.
    """
    shift, partition = _inside_by_columns(s, n, first, w, column, charts)
    if shift == -np.inf or partition > 0.0:
        return shift, partition
    # The best heads of the tokens form no tree. Divide by the weights of the best tree's arcs.
    floats = charts.reshape(-1)[: float_workspace_size(n)]
    if not best_projective_tree(s, n, first == 1, heads, integers, floats):
        return -np.inf, 0.0
    shift, smallest = _weights_beside(s, n, heads, w)
    if shift == -np.inf:
        return 0.0, 0.0
    partition = _trusted_inside(w, n, first, smallest, charts)
    return shift, partition if partition < np.inf else 0.0


@kernel(forceinline=True)
def _spread_spans(number, n, first, result):
    """Run the outside pass: fill the charts of gradients and write the marginals.

    At the call the charts of gradients are 0, except the gradients of the sum over trees.
    """
    for i in range(first, n + 1):
        for k in range(n, i, -1):
            of_right, of_arc, of_left = _pull(number, i, k, (k + 1, k, k), k + 1, n + 1)
            of_right = plus(number, read(number, OF_RIGHT, i, k), of_right)
            write(number, OF_RIGHT, i, k, of_right)
            of_left = plus(number, read(number, OF_LEFT, i, k), of_left)
            write(number, OF_LEFT, i, k, of_left)
            of_arc = write(number, OF_TO_RIGHT, i, k, plus(number, of_arc, of_right))
            result[i, k] = marginal(number, of_arc, OF_TO_RIGHT, TO_RIGHT, i, k)
            given = times_weight(number, of_arc, OF_TO_RIGHT, i, k, i, k)
            if i > 0:
                of_other = plus(number, read(number, OF_TO_LEFT, i, k), of_left)
                write(number, OF_TO_LEFT, i, k, of_other)
                result[k, i] = marginal(number, of_other, OF_TO_LEFT, TO_LEFT, i, k)
                other = times_weight(number, of_other, OF_TO_LEFT, i, k, k, i)
                given = plus(number, given, other)
            write(number, OF_BETWEEN, i, k, given)
        add_row(number, OF_LEFT, i + 1, OF_BETWEEN, i, i + 1, n + 1)


@kernel(fastmath=ANY_ORDER)
def _inside(w, n, first, floor, charts):
    """Fill the inside charts, the first of (5 or 10, n+2, stride).

    Args:
        floor: added to each weight, arc and span, see ``Sums``.

    Returns:
        The sum over trees.
    """
    charts[:CHARTS] = floor
    fill_spans(Sums(w, charts, floor), n, first)
    right, left = charts[RIGHT], charts[LEFT]
    if first == 0:
        return right[0, n]
    total = 0.0
    for r in range(1, n + 1):
        total += left[1, r] * right[r, n] * (w[0, r] + floor)
    return total


@kernel(fastmath=ANY_ORDER)
def _outside(w, n, first, charts, partition, result):
    """Write the marginals, and the gradients of log Z to the last charts, after _inside."""
    charts[CHARTS:] = 0.0
    right, left = charts[RIGHT], charts[LEFT]
    if first == 0:
        charts[OF_RIGHT, 0, n] = 1.0 / partition
    else:
        for r in range(1, n + 1):
            weight = w[0, r] / partition
            charts[OF_LEFT, 1, r] = weight * right[r, n]
            charts[OF_RIGHT, r, n] = weight * left[1, r]
            result[0, r] = weight * left[1, r] * right[r, n]
    _spread_spans(Sums(w, charts, 0.0), n, first, result)


@kernel(fastmath=ANY_ORDER)
def _inside_tangent(w, dw, n, first, charts, change):
    """Write the tangent ``change`` of ``charts`` along ``dw``.

    Returns:
        The tangent of the sum.
    """
    change[:CHARTS] = 0.0
    fill_spans(Tangents(w, dw, charts, change), n, first)
    if first == 0:
        return change[RIGHT, 0, n]
    right, left, total = charts[RIGHT], charts[LEFT], 0.0
    for r in range(1, n + 1):
        total += (change[LEFT, 1, r] * right[r, n] + left[1, r] * change[RIGHT, r, n]) * w[0, r]
        total += left[1, r] * right[r, n] * dw[0, r]
    return total


@kernel(fastmath=ANY_ORDER)
def _outside_tangent(w, dw, n, first, charts, change, partition, d_partition, out):
    """Write the tangent of the marginals, from the results of the other passes."""
    change[CHARTS:] = 0.0
    right, left = charts[RIGHT], charts[LEFT]
    relative = d_partition / partition
    if first == 0:
        change[OF_RIGHT, 0, n] = -relative / partition
    else:
        for r in range(1, n + 1):
            weight = w[0, r] / partition
            d_weight = dw[0, r] / partition - weight * relative
            a, b = left[1, r], right[r, n]
            da, db = change[LEFT, 1, r], change[RIGHT, r, n]
            change[OF_LEFT, 1, r] = d_weight * b + weight * db
            change[OF_RIGHT, r, n] = d_weight * a + weight * da
            out[0, r] = d_weight * a * b + weight * (da * b + a * db)
    _spread_spans(Tangents(w, dw, charts, change), n, first, out)


@kernel
def _subtract_best(s, n):
    """Subtract the best score of each column.

    Returns:
        The sum of the best scores, or −inf if a token has no head.
    """
    shift = 0.0
    for m in range(1, n + 1):
        best = -np.inf
        for h in range(n + 1):
            best = max(best, s[h, m])
        shift += best
        for h in range(n + 1):
            s[h, m] -= best if s[h, m] > -np.inf else 0.0
    return shift


@kernel
def _scaled_float_inside(weights, n, first):
    """Return charts (see kernels.spans.scaled_charts), whose RIGHT[0, n] is the sum over trees."""
    charts = scaled_charts(CHARTS, n + 2, n + 1)
    end = n + 1
    for i in range(n, first - 1, -1):
        set_one(charts, RIGHT, i)
        set_one(charts, LEFT, i)
        charts.values[BETWEEN, i] = charts.values[LEFT, i + 1]
        charts.powers[BETWEEN, i] = charts.powers[LEFT, i + 1]
        charts.change[BETWEEN, i] = charts.change[LEFT, i + 1]
        for k in range(i + 1, end):
            right, left, between = (RIGHT, i, k), (LEFT, i, k), (BETWEEN, i, k)
            to_right = (TO_RIGHT, i, k)
            normalise(charts, BETWEEN, i, k)
            weigh(charts, to_right, between, weights, i, k)
            if i > 0:
                weigh(charts, (TO_LEFT, i, k), between, weights, k, i)
            push_row(charts, RIGHT, i, RIGHT, k, to_right, k, end)
            normalise(charts, RIGHT, i, k)
            push_row(charts, LEFT, i, TO_LEFT, i, (RIGHT, i, i), k, k + 1)
            normalise(charts, LEFT, i, k)
            push_row(charts, BETWEEN, i, LEFT, k + 1, right, k + 1, end)
            push_row(charts, LEFT, i, TO_LEFT, k, left, k + 1, end)
    for r in range(1, first * n + 1):
        weigh(charts, (TO_RIGHT, 0, r), (LEFT, 1, r), weights, 0, r)
        push_row(charts, RIGHT, 0, RIGHT, r, (TO_RIGHT, 0, r), n, end)
    return charts


@kernel
def _scaled_float_outside(weights, n, first, charts, marginals, products):
    """Write the marginals and their tangents, from the results of _scaled_float_inside."""
    end = n + 1
    seed(charts, (RIGHT, 0, n))
    for r in range(1, first * n + 1):
        to_right = (TO_RIGHT, 0, r)
        pull_row(charts, RIGHT, 0, RIGHT, r, to_right, n, end)
        weigh_back(charts, to_right, (LEFT, 1, r), weights, 0, r, marginals, products)
    for i in range(first, end):
        for k in range(n, i, -1):
            right, left, between = (RIGHT, i, k), (LEFT, i, k), (BETWEEN, i, k)
            to_right = (TO_RIGHT, i, k)
            pull_row(charts, BETWEEN, i, LEFT, k + 1, right, k + 1, end)
            pull_row(charts, LEFT, i, TO_LEFT, k, left, k + 1, end)
            pull_row(charts, LEFT, i, TO_LEFT, i, (RIGHT, i, i), k, k + 1)
            pull_row(charts, RIGHT, i, RIGHT, k, to_right, k, end)
            weigh_back(charts, to_right, between, weights, i, k, marginals, products)
            if i > 0:
                to_left = (TO_LEFT, i, k)
                weigh_back(charts, to_left, between, weights, k, i, marginals, products)
            pull_row(charts, BETWEEN, i, LEFT, i + 1, (RIGHT, i, i), k, k + 1)


@kernel
def _adds_up(marginals, n, totals, tolerance):
    """Return whether the marginals of each token sum to 1, as they do without lost precision."""
    totals[:] = 0.0
    for h in range(n + 1):
        source = marginals[h]
        for m in range(n + 1):
            totals[m] += source[m]
    right = True
    for m in range(1, n + 1):
        right &= abs(totals[m] - 1.0) < tolerance
    return right


def alone_size(n):
    """Return the float64 numbers that an item of n tokens may save if it is solved alone.

    They are a flag, the sum over trees, the weights, the charts and their gradients. This is Python
    code, since n may be a symbolic size of torch.
    """
    stride = (n + 1 + LANES) // LANES * LANES
    return HEADER + 11 * (n + 2) * stride


_item_size = kernel(alone_size)


def kept_size(n):
    """Return the float64 numbers per item that items of up to n tokens may save, in whole vectors.

    n may be a symbolic size of torch.
    """
    return torch.sym_max(alone_size(n), kept_beside(n, CHARTS_BESIDE))


@kernel
def sum_over_projective_trees(
    start,
    stop,
    items,
    scores,
    lengths,
    direction,
    max_arc_length,
    single_root,
    along,
    operation,
    log_partition,
    result,
    kept,
    status,
):
    """Compute the sums over projective trees as ``Family.total`` of kernels.autograd.operators.

    Scores are ``(B, N+1, N+1)``, [head, modifier].
    """
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    room, wide = longest + 2, _stride(longest)
    s = np.empty((room, room))
    dw = np.zeros((room, room))
    column = np.empty((2, room))
    heads, integers = np.empty(room, np.int32), np.empty(integer_workspace_size(longest), np.int32)
    own_room = aligned_empty(_item_size(longest) if kept.shape[1] == 0 else 0)
    tangents = aligned_empty(10 * room * wide if operation == HESSIAN_PRODUCT else 0)
    first = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = FEASIBLE
        if n == 0:
            continue
        record = kept[b] if kept.shape[1] > 0 else own_room
        area = (n + 2) * _stride(n)
        shape = (n + 2, _stride(n))
        w = record[HEADER : HEADER + area].reshape(shape)
        charts = record[HEADER + area : HEADER + 11 * area].reshape((2 * CHARTS, *shape))
        known = operation == HESSIAN_PRODUCT and kept.shape[1] > 0 and record[0] == 1.0
        partition = record[1]
        if not known:
            record[0] = 0.0
            status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
            if status[b] != FEASIBLE:
                continue
            shift, partition = _scaled_inside(s, n, first, w, column, heads, integers, charts)
            if shift == -np.inf:
                status[b] = INFEASIBLE
                continue
            known = partition > 0.0
            if known:
                log_partition[b] = shift + math.log(partition)
            if known and operation != LOG_PARTITION:
                _outside(w, n, first, charts, partition, result[b])
                known = _adds_up(result[b], n, column[0], 1e-11)
            if known:
                record[0], record[1] = 1.0, partition
        if not known:
            status[b] = UNSOLVED
        elif operation == HESSIAN_PRODUCT:
            for h in range(n + 1):
                for m in range(1, n + 1):
                    dw[h, m] = w[h, m] * along[b, h, m] if w[h, m] > 0.0 else 0.0
            change = tangents[: 10 * area].reshape((2 * CHARTS, *shape))
            d_partition = _inside_tangent(w, dw, n, first, charts, change)
            _outside_tangent(*(w, dw, n, first, charts, change, partition, d_partition), result[b])
            # A sum over spans may be so small that its relative tangent overflows.
            if not is_finite(result[b], n + 1):
                status[b] = UNSOLVED


@kernel
def sum_by_exponents(
    start,
    stop,
    items,
    scores,
    lengths,
    direction,
    max_arc_length,
    single_root,
    along,
    operation,
    log_partition,
    result,
    kept,
    status,
):
    """Compute the sums like :func:`sum_over_projective_trees`, in scaled floats.

    All items must have tokens.
    """
    first = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        if operation != LOG_PARTITION:
            result[b] = 0.0
        s = np.empty((n + 2, n + 2))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
        if status[b] != FEASIBLE:
            continue
        size = n + 1
        shift = _subtract_best(s, n)
        weights = scaled_weights(s, size, along[b] if operation == HESSIAN_PRODUCT else s[:0])
        charts = _scaled_float_inside(weights, n, first)
        value, power = charts.values[RIGHT, 0, n], charts.powers[RIGHT, 0, n]
        if not value > 0.0:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = shift + math.log(value) + power * LN2
        if operation != LOG_PARTITION:
            spare = np.zeros((size, size))
            marginals = result[b] if operation == MARGINALS else spare
            products = spare if operation == MARGINALS else result[b]
            _scaled_float_outside(weights, n, first, charts, marginals, products)
            if operation == MARGINALS and not _adds_up(marginals, n, np.empty(size), 1e-6):
                status[b] = TOO_LARGE


@kernel
def _draw(n, first, charts, powers, terms, stack, state, heads):
    """Draw one tree from the inside charts, from the longest span down.

    With a single root (``first`` = 1), row 0 of TO_RIGHT holds, for each token, the sum over its
    modifiers on the left times the weight of its root arc.

    Args:
        powers: exponents of the charts, or an empty array for charts of plain numbers.
        terms, stack: workspaces.
    """
    if first == 0:
        stack[0], stack[1], stack[2] = 0, n, 1
        depth = 1
    else:
        root = draw_split(charts, powers, (TO_RIGHT, 0), (RIGHT, 0, n), 1, n + 1, terms, state)
        heads[root] = 0
        stack[0], stack[1], stack[2] = 1, root, 0
        stack[3], stack[4], stack[5] = root, n, 1
        depth = 2
    while depth > 0:
        depth -= 1
        i, j = stack[3 * depth], stack[3 * depth + 1]
        if i == j:
            continue
        if stack[3 * depth + 2] == 1:
            k = draw_split(charts, powers, (TO_RIGHT, i), (RIGHT, 0, j), i + 1, j + 1, terms, state)
            heads[k] = i
            low, high = i, k
            stack[3 * depth], stack[3 * depth + 1] = k, j
        else:
            k = draw_split(charts, powers, (LEFT, i), (TO_LEFT, 0, j), i, j, terms, state)
            heads[k] = j
            low, high = k, j
            stack[3 * depth], stack[3 * depth + 1] = i, k
        split = draw_split(charts, powers, (RIGHT, low), (LEFT, 1, high), low, high, terms, state)
        depth += 1
        stack[3 * depth], stack[3 * depth + 1], stack[3 * depth + 2] = low, split, 1
        stack[3 * depth + 3], stack[3 * depth + 4] = split + 1, high
        stack[3 * depth + 5] = 0
        depth += 2


@kernel
def sample_projective_trees(
    start, stop, scores, lengths, direction, max_arc_length, single_root, seeds, samples, status
):
    """Write the heads of exact samples to ``samples`` (K, B, N+1), −1 for node 0 and padding.

    Items whose sums lose precision with the weights of :func:`_weights` get the status UNSOLVED.
    """
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    room, wide = longest + 2, _stride(longest)
    s = np.empty((room, room))
    column = np.empty((2, room))
    record = aligned_empty(6 * room * wide)
    stack = np.empty(6 * room, np.int64)
    state = np.empty(1, np.uint64)
    first = 1 if single_root else 0
    for b in range(start, stop):
        n = lengths[b]
        samples[:, b] = -1
        if n == 0:
            continue
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
        if status[b] != FEASIBLE:
            continue
        area, shape = (n + 2) * _stride(n), (n + 2, _stride(n))
        w = record[:area].reshape(shape)
        charts = record[area : 6 * area].reshape((5, *shape))
        shift, partition = _inside_by_columns(s, n, first, w, column, charts)
        if shift == -np.inf or not partition > 0.0:
            status[b] = INFEASIBLE if shift == -np.inf else UNSOLVED
            continue
        for r in range(1, first * n + 1):
            charts[TO_RIGHT, 0, r] = charts[LEFT, 1, r] * w[0, r]
        state[0] = seeds[b]
        for k in range(len(samples)):
            _draw(n, first, charts, charts[:0], column[0], stack, state, samples[k, b])


@kernel
def sample_by_exponents(
    start,
    stop,
    items,
    scores,
    lengths,
    direction,
    max_arc_length,
    single_root,
    seeds,
    samples,
    status,
):
    """Draw samples like :func:`sample_projective_trees`, in scaled floats.

    All items must have tokens.
    """
    state = np.empty(1, np.uint64)
    first = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        s, stack = np.empty((n + 2, n + 2)), np.empty(6 * (n + 2), np.int64)
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
        if status[b] != FEASIBLE:
            continue
        _subtract_best(s, n)
        charts = _scaled_float_inside(scaled_weights(s, n + 1, s[:0]), n, first)
        if not charts.values[RIGHT, 0, n] > 0.0:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for k in range(len(samples)):
            _draw(n, first, charts.values, charts.powers, s[0], stack, state, samples[k, b])


@kernel
def best_projective_trees(
    start, stop, scores, lengths, direction, max_arc_length, single_root, heads, status
):
    """Write the heads of the best trees to ``heads`` (B, N+1), −1 for node 0 and padding."""
    room = 1
    for b in range(start, stop):
        room = max(room, lengths[b])
    flat = np.empty((LANES, (room + 1) ** 2 + LANES))
    integers = np.empty(integer_workspace_size(room), np.int32)
    floats = aligned_empty(float_workspace_size(room))
    charts = charts_of_trees(room if stop - start > 1 and room <= LONGEST else 0)
    trees = np.empty((LANES, room + 1), np.int32)
    items, sizes = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    rows = np.empty((2, LANES), np.int64)
    solved = np.zeros(LANES, np.bool_)
    for first in range(start, stop, LANES):
        for lane in range(LANES):
            b = first + lane
            items[lane] = sizes[lane] = -1
            if b >= stop:
                continue
            s = flat[lane, : (lengths[b] + 1) ** 2].reshape((lengths[b] + 1, lengths[b] + 1))
            status[b] = read_arc_scores(scores[b], lengths[b], direction, max_arc_length, s)
            if status[b] == FEASIBLE:
                items[lane], sizes[lane] = b, lengths[b]
        longest = longest_beside(items, lengths) if room <= LONGEST else 0
        if longest > 0:
            set_scores(charts, flat, sizes, longest, rows)
            best_trees_beside(sizes, longest, single_root, charts, trees, integers, solved)
        for lane in range(LANES):
            b, n = first + lane, sizes[lane]
            if b >= stop:
                continue
            if longest == 0 and n >= 0:
                s = flat[lane, : (n + 1) ** 2].reshape((n + 1, n + 1))
                solved[lane] = best_projective_tree(
                    s, n, single_root, trees[lane], integers, floats
                )
            if n >= 0 and not solved[lane]:
                status[b], n = INFEASIBLE, -1
            for m in range(heads.shape[1]):
                heads[b, m] = trees[lane, m] if 0 < m <= n else -1


FAMILY = Family(
    name="ProjectiveTree",
    best=best_projective_trees,
    total=sum_over_projective_trees,
    sample=sample_projective_trees,
    sample_rest=sample_by_exponents,
    best_shape=lambda shape: tuple(shape[:2]),
    best_cost=lambda n: 400 + 20 * n + 0.06 * n**3,
    total_cost=lambda n: 300 + 1.5 * n**2 + 0.14 * n**3,
    kept_size=lambda shape: kept_size(shape[1] - 1),
    fallback=sum_by_exponents,
    beside=sum_side_by_side,
    group=group_size,
    device=GpuKernels("projective_tree"),
)
