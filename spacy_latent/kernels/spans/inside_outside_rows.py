"""Sums over projective trees, row by row, in plain float64 (see kernels.spans.inside_outside)."""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.core.compilation import ANY_ORDER, FUSED, kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, UNSOLVED
from spacy_latent.kernels.simd.arc_scores import is_finite, read_arc_scores
from spacy_latent.kernels.simd.exponential import exponential
from spacy_latent.kernels.simd.lanes import FLOOR, LOG_SMALLEST
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
from spacy_latent.kernels.simd.vector import LANES, aligned_empty
from spacy_latent.kernels.spans.eisner import (
    CHARTS,
    JOINS,
    LEFT,
    RIGHT,
    TO_LEFT,
    TO_RIGHT,
    best_projective_tree,
    chart_width,
    fill_spans,
    float_workspace_size,
    integer_workspace_size,
)

HEADER = 8
# Charts of gradients, after the inside charts.
OUTER_BETWEEN, OUTER_TO_RIGHT, OUTER_TO_LEFT, OUTER_RIGHT, OUTER_LEFT = range(CHARTS, 2 * CHARTS)
_pull = pulls_of(JOINS, {chart: CHARTS + chart for chart in range(CHARTS)})


@kernel(fastmath=FUSED)
def _weights(scores, n, log_gamma, w, column):
    """Write γ·(column softmax of ``scores``).

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
    log_smallest = 0.0
    for h in range(n + 1):
        source, target = scores[h], w[h]
        for m in range(n + 1):
            target[m] *= total[m]
            value = source[m] - top[m]
            log_smallest = value if value < log_smallest and source[m] > -np.inf else log_smallest
    return shift, log_smallest


@kernel(fastmath=FUSED)
def _weights_relative_to_best(scores, n, heads, w):
    """Write exp(score − the score of the token's arc in the given tree).

    Returns:
        The two results of :func:`_weights`. The first is −inf if the weights do not fit in float64.
    """
    shift, log_smallest, largest = 0.0, 0.0, 0.0
    for m in range(1, n + 1):
        shift += scores[heads[m], m]
    for h in range(n + 1):
        source, target = scores[h], w[h]
        for m in range(1, n + 1):
            value = source[m] - scores[heads[m], m]
            largest = max(largest, value)
            log_smallest = value if value < log_smallest and source[m] > -np.inf else log_smallest
            target[m] = exponential(min(value, 709.0))
    return shift if largest < 640.0 else -np.inf, log_smallest


@kernel
def _trusted_inside(w, n, first_node, log_smallest, charts):
    """Fill ``charts`` like :func:`_inside`, and check the precision of the sum.

    Numbers that have underflowed are below FLOOR. The plain sum is a lower bound. The sum with
    FLOOR added wherever an underflow is possible is an upper bound. An overflow shows in both.

    Returns:
        The sum over trees, 0 if it is not precise, or +inf after an overflow.
    """
    bound = np.inf
    safe = n * log_smallest >= LOG_SMALLEST
    if not safe:
        bound = _inside(w, n, first_node, FLOOR, charts)
    partition = _inside(w, n, first_node, 0.0, charts)
    if not partition < np.inf:
        return np.inf
    # A sum below FLOOR may itself have lost precision.
    known = partition > FLOOR and bound - partition <= 1e-15 * partition
    return partition if safe or known else 0.0


@kernel
def inside_by_columns(s, n, first_node, w, column, charts):
    """Fill ``w`` and ``charts``, with the weights of each token divided by their sum.

    Returns:
        The log of the product of the divisors, −inf if a token has no head; and the sum over trees
        of the weights, 0 if it is not precise.
    """
    shift, partition = -np.inf, 0.0
    # The number of trees grows by a factor of about 6.75 per token. If few arcs have all the
    # weight, most choices of heads are trees. Then γ = 1 is tried.
    for log_gamma in (max(math.log(n) - 1.91, 0.0), 0.0):
        shift, log_smallest = _weights(s, n, log_gamma, w, column)
        if shift == -np.inf:
            return shift, 0.0
        partition = _trusted_inside(w, n, first_node, log_smallest, charts)
        if partition < np.inf:
            break
    return shift, partition if partition < np.inf else 0.0


@kernel
def _scaled_inside(s, n, first_node, w, column, heads, integers, charts):
    """Fill ``w`` and ``charts`` with a scaling for which the sum fits in float64.

    Returns:
        The log of the product of the divisors, −inf if there is no tree; and the sum over trees, 0
        if no scaling fits.
    """
    shift, partition = inside_by_columns(s, n, first_node, w, column, charts)
    if shift == -np.inf or partition > 0.0:
        return shift, partition
    # The best heads of the tokens form no tree. Divide by the weights of the best tree's arcs.
    floats = charts.reshape(-1)[: float_workspace_size(n)]
    if not best_projective_tree(s, n, first_node == 1, heads, integers, floats):
        return -np.inf, 0.0
    shift, log_smallest = _weights_relative_to_best(s, n, heads, w)
    if shift == -np.inf:
        return 0.0, 0.0
    partition = _trusted_inside(w, n, first_node, log_smallest, charts)
    return shift, partition if partition < np.inf else 0.0


@kernel(forceinline=True)
def _spread_spans(number, n, first_node, result):
    """Run the outside pass: fill the charts of gradients and write the marginals.

    At the call the charts of gradients are 0, except the gradients of the sum over trees.
    """
    for i in range(first_node, n + 1):
        for k in range(n, i, -1):
            outer_right, outer_arc, outer_left = _pull(number, i, k, (k + 1, k, k), k + 1, n + 1)
            outer_right = plus(number, read(number, OUTER_RIGHT, i, k), outer_right)
            write(number, OUTER_RIGHT, i, k, outer_right)
            outer_left = plus(number, read(number, OUTER_LEFT, i, k), outer_left)
            write(number, OUTER_LEFT, i, k, outer_left)
            outer_arc = write(number, OUTER_TO_RIGHT, i, k, plus(number, outer_arc, outer_right))
            result[i, k] = marginal(number, outer_arc, OUTER_TO_RIGHT, TO_RIGHT, i, k)
            given = times_weight(number, outer_arc, OUTER_TO_RIGHT, i, k, i, k)
            if i > 0:
                outer_other = plus(number, read(number, OUTER_TO_LEFT, i, k), outer_left)
                write(number, OUTER_TO_LEFT, i, k, outer_other)
                result[k, i] = marginal(number, outer_other, OUTER_TO_LEFT, TO_LEFT, i, k)
                other = times_weight(number, outer_other, OUTER_TO_LEFT, i, k, k, i)
                given = plus(number, given, other)
            write(number, OUTER_BETWEEN, i, k, given)
        add_row(number, OUTER_LEFT, i + 1, OUTER_BETWEEN, i, i + 1, n + 1)


@kernel(fastmath=ANY_ORDER)
def _inside(w, n, first_node, floor, charts):
    """Fill the inside charts, the first of (5 or 10, n+2, stride), and return the sum over trees.

    ``floor`` is added to each weight, arc and span, see ``Sums``.
    """
    charts[:CHARTS] = floor
    fill_spans(Sums(w, charts, floor), n, first_node)
    right, left = charts[RIGHT], charts[LEFT]
    if first_node == 0:
        return right[0, n]
    total = 0.0
    for r in range(1, n + 1):
        total += left[1, r] * right[r, n] * (w[0, r] + floor)
    return total


@kernel(fastmath=ANY_ORDER)
def _outside(w, n, first_node, charts, partition, result):
    """Write the marginals, and the gradients of log Z to the last charts, after _inside."""
    charts[CHARTS:] = 0.0
    right, left = charts[RIGHT], charts[LEFT]
    if first_node == 0:
        charts[OUTER_RIGHT, 0, n] = 1.0 / partition
    else:
        for r in range(1, n + 1):
            weight = w[0, r] / partition
            charts[OUTER_LEFT, 1, r] = weight * right[r, n]
            charts[OUTER_RIGHT, r, n] = weight * left[1, r]
            result[0, r] = weight * left[1, r] * right[r, n]
    _spread_spans(Sums(w, charts, 0.0), n, first_node, result)


@kernel(fastmath=ANY_ORDER)
def _inside_tangent(number, n, first_node):
    """Write the tangents of the inside charts, and return the tangent of the sum."""
    w, dw, charts, tangents = number
    tangents[:CHARTS] = 0.0
    fill_spans(number, n, first_node)
    if first_node == 0:
        return tangents[RIGHT, 0, n]
    right, left, total = charts[RIGHT], charts[LEFT], 0.0
    for r in range(1, n + 1):
        total += (tangents[LEFT, 1, r] * right[r, n] + left[1, r] * tangents[RIGHT, r, n]) * w[0, r]
        total += left[1, r] * right[r, n] * dw[0, r]
    return total


@kernel(fastmath=ANY_ORDER)
def _outside_tangent(number, n, first_node, partition, d_partition, out):
    """Write the tangent of the marginals, from the results of the other passes."""
    w, dw, charts, tangents = number
    tangents[CHARTS:] = 0.0
    right, left = charts[RIGHT], charts[LEFT]
    relative = d_partition / partition
    if first_node == 0:
        tangents[OUTER_RIGHT, 0, n] = -relative / partition
    else:
        for r in range(1, n + 1):
            weight = w[0, r] / partition
            d_weight = dw[0, r] / partition - weight * relative
            a, b = left[1, r], right[r, n]
            da, db = tangents[LEFT, 1, r], tangents[RIGHT, r, n]
            tangents[OUTER_LEFT, 1, r] = d_weight * b + weight * db
            tangents[OUTER_RIGHT, r, n] = d_weight * a + weight * da
            out[0, r] = d_weight * a * b + weight * (da * b + a * db)
    _spread_spans(number, n, first_node, out)


@kernel
def adds_up(marginals, n, totals, tolerance):
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


@kernel
def sum_over_projective_trees(start, stop, items, batch, along, operation, results):
    """Compute the sums over projective trees as ``Family.total`` of kernels.autograd.families.

    Scores are ``(B, N+1, N+1)``, [head, modifier].
    """
    scores, lengths, (direction, max_arc_length, single_root) = batch
    log_partition, result, kept, status = results
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    side, width = longest + 2, chart_width(longest)
    s = np.empty((side, side))
    dw = np.zeros((side, side))
    column = np.empty((2, side))
    heads, integers = np.empty(side, np.int32), np.empty(integer_workspace_size(longest), np.int32)
    spare = aligned_empty(_item_size(longest) if kept.shape[1] == 0 else 0)
    tangents_workspace = aligned_empty(10 * side * width if operation == HESSIAN_PRODUCT else 0)
    first_node = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = FEASIBLE
        if n == 0:
            continue
        record = kept[b] if kept.shape[1] > 0 else spare
        area = (n + 2) * chart_width(n)
        shape = (n + 2, chart_width(n))
        w = record[HEADER : HEADER + area].reshape(shape)
        charts = record[HEADER + area : HEADER + 11 * area].reshape((2 * CHARTS, *shape))
        known = operation == HESSIAN_PRODUCT and kept.shape[1] > 0 and record[0] == 1.0
        partition = record[1]
        if not known:
            record[0] = 0.0
            status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
            if status[b] != FEASIBLE:
                continue
            shift, partition = _scaled_inside(s, n, first_node, w, column, heads, integers, charts)
            if shift == -np.inf:
                status[b] = INFEASIBLE
                continue
            known = partition > 0.0
            if known:
                log_partition[b] = shift + math.log(partition)
            if known and operation != LOG_PARTITION:
                _outside(w, n, first_node, charts, partition, result[b])
                known = adds_up(result[b], n, column[0], 1e-11)
            if known:
                record[0], record[1] = 1.0, partition
        if not known:
            status[b] = UNSOLVED
        elif operation == HESSIAN_PRODUCT:
            for h in range(n + 1):
                for m in range(1, n + 1):
                    dw[h, m] = w[h, m] * along[b, h, m] if w[h, m] > 0.0 else 0.0
            tangents = tangents_workspace[: 10 * area].reshape((2 * CHARTS, *shape))
            number = Tangents(w, dw, charts, tangents)
            d_partition = _inside_tangent(number, n, first_node)
            _outside_tangent(number, n, first_node, partition, d_partition, result[b])
            # A sum over spans may be so small that its relative tangent overflows.
            if not is_finite(result[b], n + 1):
                status[b] = UNSOLVED
