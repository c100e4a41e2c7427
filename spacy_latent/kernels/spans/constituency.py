"""Binary constituency trees: CKY and inside-outside, O(n³) time and O(n²) memory, in float64.

The recurrences are from Baker (1979). Charts are ``(n, width)``, [first word, last word]. Rows are
filled from the last to the first. A finished span is pushed at once into all longer spans of its
row.

Every tree has the spans of single words, so their scores are added at the end. The weights of the
other spans are exp(score − c), with c chosen so that the sum over trees is near 1. If an overflow
or underflow could matter, :func:`sum_in_scaled_floats` solves the sentence with scaled floats, in
which each number has its own exponent. Samples are drawn from charts of scaled floats.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, TOO_LARGE, UNSOLVED
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.arc_scores import is_finite
from spacy_latent.kernels.simd.exponential import exponential
from spacy_latent.kernels.simd.lanes import FLOOR, LOG_SMALLEST, group_size, saved_size_in_lanes
from spacy_latent.kernels.simd.row_numbers import (
    Join,
    Maxima,
    Sums,
    Tangents,
    one,
    plus,
    pulls_of,
    pushes_of,
    read,
    times_weight,
    write,
)
from spacy_latent.kernels.simd.scaled_floats import LN2
from spacy_latent.kernels.simd.vector import LANES, aligned_empty, whole_vectors
from spacy_latent.kernels.spans.constituency_lanes import CHARTS as LANE_CHARTS
from spacy_latent.kernels.spans.constituency_lanes import read_spans, sum_in_lanes
from spacy_latent.kernels.spans.scaled_charts import (
    cell_of,
    draw_split,
    normalise,
    pull_row,
    push_row,
    scaled_charts,
    scaled_weights,
    set_one,
    start_outside,
    weigh,
    weigh_back,
)

HEADER = 8
# Charts: sums over splits, inside, outside, outside times weight, weights.
SPLITS, INSIDE, OUTSIDE, PASSED, WEIGHT = range(5)

# Joins over the last word of spans that start at i and are split after k.
JOINS = [Join(SPLITS, INSIDE, INSIDE)]
_push = pushes_of(JOINS)
_pull = pulls_of(JOINS, {SPLITS: PASSED, INSIDE: OUTSIDE})


@kernel(forceinline=True)
def _fill_spans(number, n):
    """Fill SPLITS and INSIDE, the inside pass; at the call they hold the empty sum."""
    for i in range(n - 1, -1, -1):
        total = write(number, INSIDE, i, i, one(number))
        for k in range(i + 1, n):
            _push(number, i, k - 1, (k,), (total,), k // LANES * LANES, n)
            splits = read(number, SPLITS, i, k)
            total = write(number, INSIDE, i, k, times_weight(number, splits, SPLITS, i, k, i, k))


@kernel(forceinline=True)
def _spread_spans(number, n):
    """Fill OUTSIDE and PASSED, the gradients of INSIDE and SPLITS.

    At the call they hold 0, except the gradient of the whole sentence.
    """
    for i in range(n - 1):
        for k in range(n - 1, i - 1, -1):
            total = read(number, OUTSIDE, i, k)
            if k < n - 1:
                (given,) = _pull(number, i, k, (k + 1,), (k + 1) // LANES * LANES, n)
                total = write(number, OUTSIDE, i, k, plus(number, total, given))
            write(number, PASSED, i, k, times_weight(number, total, OUTSIDE, i, k, i, k))


@kernel
def _inside(s, n, center, floor, charts):
    """Fill WEIGHT, SPLITS and INSIDE, and return the sum over trees.

    ``center`` is subtracted from each score, and ``floor`` added to each weight and span (see
    ``Sums``).
    """
    charts[SPLITS] = floor
    charts[INSIDE] = floor
    for i in range(n):
        source, target = s[i], charts[WEIGHT, i]
        for j in range(n):
            target[j] = exponential(source[j] - center) if j > i else 0.0
    _fill_spans(Sums(charts[WEIGHT], charts, floor), n)
    return charts[INSIDE, 0, n - 1]


@kernel
def _trusted_inside(s, n, center, smallest, charts):
    """Fill WEIGHT, SPLITS and INSIDE, and check the precision of the sum.

    The sum over trees is returned, 0 if it is not precise, or +inf after an overflow (see
    kernels.spans.inside_outside_rows). ``smallest`` is the lowest score.
    """
    bound = np.inf
    safe = (n - 1) * (smallest - center) >= LOG_SMALLEST
    if not safe:
        bound = _inside(s, n, center, FLOOR, charts)
    total = _inside(s, n, center, 0.0, charts)
    if not total < np.inf:
        return np.inf
    # A sum below FLOOR may itself have lost precision.
    return total if safe or (total > FLOOR and bound - total <= 1e-15 * total) else 0.0


@kernel
def _scaled_inside(s, n, charts):
    """Fill WEIGHT, SPLITS and INSIDE with a scaling for which the sum fits in float64.

    Returns:
        The constant subtracted from the scores, −inf if no score is above −inf; and the sum over
        trees, 0 if no scaling fits.
    """
    smallest, high, mean, count = np.inf, -np.inf, 0.0, 0
    for i in range(n):
        for j in range(i + 1, n):
            high = max(high, s[i, j])
            if s[i, j] > -np.inf:
                smallest = min(smallest, s[i, j])
    if high == -np.inf:
        return -np.inf, 0.0
    for i in range(n):
        for j in range(i + 1, n):
            mean += math.exp(s[i, j] - high)
            count += 1
    # The number of trees grows by a factor of about 4 per word.
    center = high + math.log(mean / count) + 1.3
    total = _trusted_inside(s, n, center, smallest, charts)
    if 0.0 < total < np.inf:
        return center, total
    # With this center the best tree has weight 1.
    charts[:OUTSIDE] = -np.inf
    _fill_spans(Maxima(s, charts[:OUTSIDE]), n)
    if charts[INSIDE, 0, n - 1] == -np.inf:
        return -np.inf, 0.0
    center = charts[INSIDE, 0, n - 1] / (n - 1)
    if high - center > -LOG_SMALLEST:
        return 0.0, 0.0
    total = _trusted_inside(s, n, center, smallest, charts)
    return center, total if total < np.inf else 0.0


@kernel(fastmath=ANY_ORDER)
def _outside(n, charts):
    """Fill OUTSIDE and PASSED.

    The sum over trees is returned, times the sum of the marginals of spans of two or more words.
    """
    charts[OUTSIDE] = 0.0
    charts[PASSED] = 0.0
    charts[OUTSIDE, 0, n - 1] = 1.0
    _spread_spans(Sums(charts[WEIGHT], charts, 0.0), n)
    total = 0.0
    for i in range(n - 1):
        inside, outside = charts[INSIDE, i], charts[OUTSIDE, i]
        for k in range(i + 1, n):
            total += outside[k] * inside[k]
    return total


@kernel
def _tangent(n, charts, dcharts):
    """Write the tangents of all charts along the tangent of the weights, dcharts[WEIGHT]."""
    number = Tangents(charts[WEIGHT], dcharts[WEIGHT], charts, dcharts)
    dcharts[:WEIGHT] = 0.0
    _fill_spans(number, n)
    _spread_spans(number, n)


@kernel
def _scaled_float_inside(weights, n):
    """Return charts SPLITS and INSIDE of scaled floats (see kernels.spans.scaled_charts)."""
    charts = scaled_charts(2, n, n)
    for i in range(n - 1, -1, -1):
        set_one(charts, INSIDE, i)
        for k in range(i, n):
            cell = cell_of(INSIDE, i, k)
            if k > i:
                normalise(charts, SPLITS, i, k)
                weigh(charts, cell, cell_of(SPLITS, i, k), weights, i, k)
            if k + 1 < n:
                push_row(charts, SPLITS, i, INSIDE, k + 1, cell, k + 1, n)
    return charts


@kernel
def _scaled_float_outside(weights, n, charts, marginals, products):
    """Write the marginals and their tangents, from the results of _scaled_float_inside."""
    start_outside(charts, cell_of(INSIDE, 0, n - 1))
    for i in range(n):
        for k in range(n - 1, i - 1, -1):
            cell = cell_of(INSIDE, i, k)
            if k + 1 < n:
                pull_row(charts, SPLITS, i, INSIDE, k + 1, cell, k + 1, n)
            if k > i:
                weigh_back(charts, cell, cell_of(SPLITS, i, k), weights, i, k, marginals, products)
            else:
                marginals[i, i] = charts.outer[cell]


def alone_size(n):
    """Return the float64 numbers that an item of n words may save if it is solved alone.

    They are a header with a flag and the sum over trees, then the charts. This is Python code,
    since n may be a symbolic size of torch.
    """
    width = (n + LANES - 1) // LANES * LANES
    return HEADER + 5 * n * width


_item_size = kernel(alone_size)


def kept_size(n):
    """Return the float64 numbers per item that items of up to n words may save, in whole vectors.

    n may be a symbolic size of torch.
    """
    return torch.sym_max(alone_size(n), saved_size_in_lanes(n, LANE_CHARTS))


@kernel
def sum_over_constituency_trees(start, stop, items, batch, along, operation, results):
    """Compute the sums over binary trees as ``Family.total`` of kernels.autograd.families.

    Scores are ``(B, N, N)``, [first, last].
    """
    scores, lengths, _ = batch
    log_partition, result, kept, status = results
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    spare = aligned_empty(_item_size(longest) if kept.shape[1] == 0 else 0)
    tangents = aligned_empty(
        5 * longest * whole_vectors(longest) if operation == HESSIAN_PRODUCT else 0
    )
    for b in items[start:stop]:
        n = lengths[b]
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = FEASIBLE
        if n == 0:
            continue
        record = kept[b] if kept.shape[1] > 0 else spare
        shape = (5, n, whole_vectors(n))
        area = 5 * n * whole_vectors(n)
        charts = record[HEADER : HEADER + area].reshape(shape)
        known = operation == HESSIAN_PRODUCT and kept.shape[1] > 0 and record[0] == 1.0
        words = 0.0
        if not known:
            record[0] = 0.0
            status[b], words = read_spans(scores[b], n, s)
            if status[b] != FEASIBLE:
                continue
        if n == 1:
            log_partition[b] = words
            if operation == MARGINALS:
                result[b, 0, 0] = 1.0
            continue
        if not known:
            center, total = _scaled_inside(s, n, charts)
            if center == -np.inf:
                status[b] = INFEASIBLE
                continue
            known = total > 0.0
            if known:
                log_partition[b] = math.log(total) + (n - 1) * center + words
            if known and operation != LOG_PARTITION:
                # The sum over trees times the expected number of spans, n − 1. It is smaller after
                # an overflow or underflow in the outside pass.
                expected = _outside(n, charts)
                known = abs(expected / total - (n - 1)) < 1e-11 * n
            if known:
                record[0], record[1] = 1.0, total
        if not known:
            status[b] = UNSOLVED
            continue
        total = record[1]
        if operation == MARGINALS:
            for i in range(n):
                result[b, i, i] = 1.0
                for j in range(i + 1, n):
                    result[b, i, j] = charts[INSIDE, i, j] * charts[OUTSIDE, i, j] / total
        elif operation == HESSIAN_PRODUCT:
            dcharts = tangents[:area].reshape(shape)
            for i in range(n):
                for j in range(whole_vectors(n)):
                    dcharts[WEIGHT, i, j] = 0.0
                for j in range(i + 1, n):
                    weight = charts[WEIGHT, i, j]
                    dcharts[WEIGHT, i, j] = weight * along[b, i, j] if weight > 0.0 else 0.0
            _tangent(n, charts, dcharts)
            relative = dcharts[INSIDE, 0, n - 1] / total
            for i in range(n):
                for j in range(i + 1, n):
                    inner, outer = charts[INSIDE, i, j], charts[OUTSIDE, i, j]
                    value = dcharts[OUTSIDE, i, j] * inner + outer * dcharts[INSIDE, i, j]
                    result[b, i, j] = value / total - inner * outer / total * relative
            # A sum over spans may be so small that its relative tangent overflows.
            if not is_finite(result[b], n):
                status[b] = UNSOLVED


@kernel
def _adds_up(marginals, n):
    """Return whether the marginals are probabilities that sum to the 2n − 1 spans of a tree."""
    total, right = 0.0, True
    for i in range(n):
        for j in range(i, n):
            total += marginals[i, j]
            right &= marginals[i, j] < 1.0 + 1e-6
    return right and abs(total - (2 * n - 1)) < 1e-6 * n


@kernel
def sum_in_scaled_floats(start, stop, items, batch, along, operation, results):
    """Compute the sums like :func:`sum_over_constituency_trees`, in scaled floats.

    All items must have words.
    """
    scores, lengths, _ = batch
    log_partition, result, _, status = results
    for b in items[start:stop]:
        n = lengths[b]
        if operation != LOG_PARTITION:
            result[b] = 0.0
        s = np.zeros((n, n))
        status[b], words = read_spans(scores[b], n, s)
        if status[b] != FEASIBLE:
            continue
        weights = scaled_weights(s, n, along[b] if operation == HESSIAN_PRODUCT else s[:0])
        charts = _scaled_float_inside(weights, n)
        value, power = charts.values[INSIDE, 0, n - 1], charts.powers[INSIDE, 0, n - 1]
        if not value > 0.0:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = math.log(value) + power * LN2 + words
        if operation != LOG_PARTITION:
            spare = np.zeros((n, n))
            marginals = result[b] if operation == MARGINALS else spare
            products = spare if operation == MARGINALS else result[b]
            _scaled_float_outside(weights, n, charts, marginals, products)
            if operation == MARGINALS and not _adds_up(marginals, n):
                status[b] = TOO_LARGE


@kernel
def _write_spans(charts, powers, n, draw, terms, stack, state, spans):
    """Write the spans of the best tree, or of a random one if ``draw``, from the longest span down.

    ``charts`` and ``powers`` are maxima and an empty array, or scaled floats.
    """
    stack[0, 0], stack[0, 1] = 0, n - 1
    depth, count = 1, 0
    while depth > 0:
        depth -= 1
        i, j = stack[depth, 0], stack[depth, 1]
        spans[count, 0], spans[count, 1] = i, j
        count += 1
        split, top = i, -np.inf
        if draw:
            split = draw_split(charts, powers, (INSIDE, i), (INSIDE, 1, j), i, j, terms, state)
        for k in range(i, i if draw else j):
            value = charts[INSIDE, i, k] + charts[INSIDE, k + 1, j]
            if value > top:
                split, top = k, value
        if split > i:
            stack[depth, 0], stack[depth, 1] = i, split
            depth += 1
        if split + 1 < j:
            stack[depth, 0], stack[depth, 1] = split + 1, j
            depth += 1


@kernel
def best_constituency_trees(start, stop, batch, spans, status):
    """Write the best trees as ``Family.best``.

    ``spans`` ``(B, N, 2)`` gets the spans of two or more words, −1 from the n-th on.
    """
    scores, lengths, _ = batch
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    workspace = aligned_empty(2 * longest * whole_vectors(longest))
    stack = np.empty((longest + 1, 2), dtype=np.int64)
    state = np.empty(1, dtype=np.uint64)
    for b in range(start, stop):
        n = lengths[b]
        spans[b] = -1
        status[b], _ = read_spans(scores[b], n, s)
        if n == 0:
            status[b] = FEASIBLE
        if status[b] != FEASIBLE or n < 2:
            continue
        charts = workspace[: 2 * n * whole_vectors(n)].reshape((2, n, whole_vectors(n)))
        charts[:] = -np.inf
        _fill_spans(Maxima(s, charts), n)
        if charts[INSIDE, 0, n - 1] == -np.inf:
            status[b] = INFEASIBLE
            continue
        _write_spans(charts, charts[:0], n, False, s[0], stack, state, spans[b])


@kernel
def sample_constituency_trees(start, stop, batch, seeds, samples, status):
    """Draw exact samples as ``Family.sample``, ``(K, B, N, 2)``."""
    scores, lengths, _ = batch
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    stack = np.empty((longest + 1, 2), dtype=np.int64)
    state = np.empty(1, dtype=np.uint64)
    for b in range(start, stop):
        n = lengths[b]
        samples[:, b] = -1
        status[b] = FEASIBLE
        if n == 0:
            continue
        status[b], _ = read_spans(scores[b], n, s)
        if status[b] != FEASIBLE or n < 2:
            continue
        charts = _scaled_float_inside(scaled_weights(s, n, s[:0]), n)
        if not charts.values[INSIDE, 0, n - 1] > 0.0:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for k in range(len(samples)):
            _write_spans(charts.values, charts.powers, n, True, s[0], stack, state, samples[k, b])


FAMILY = Family(
    name="ConstituencyTree",
    best=best_constituency_trees,
    total=sum_over_constituency_trees,
    sample=sample_constituency_trees,
    best_shape=lambda shape: (shape[0], shape[1], 2),
    best_cost=lambda n: 300 + 1.5 * n**2 + 0.04 * n**3,
    total_cost=lambda n: 300 + 2.5 * n**2 + 0.06 * n**3,
    kept_size=lambda shape: kept_size(shape[1]),
    fallback=sum_in_scaled_floats,
    lanes=sum_in_lanes,
    group=group_size,
    device=GpuKernels("constituency_tree"),
)
