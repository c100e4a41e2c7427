"""Binary constituency trees: CKY and inside-outside, O(n³) time and O(n²) memory, in float64.

The recurrences are from Baker (1979). Charts are ``(n, width)``, [first word, last word]. Rows are
filled from the last to the first. A finished span is pushed at once into all longer spans of its
row.

Every tree has the spans of single words, so their scores are added at the end. The weights of the
other spans are exp(score − c), with c chosen so that the sum over trees is near 1. If an overflow
or underflow could matter, :func:`sum_by_exponents` solves the sentence with scaled floats, in which
each number has its own exponent. Samples are drawn from charts of logarithms.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from spacy_latent.kernels.autograd.operators import Family
from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel
from spacy_latent.kernels.core.draws import uniform_of_splitmix
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, LARGE, TOO_LARGE, UNSOLVED
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.arc_scores import is_finite
from spacy_latent.kernels.simd.exponential import exponential
from spacy_latent.kernels.simd.lanes import FLOOR, LOG_SMALLEST, group_size, kept_beside
from spacy_latent.kernels.simd.logarithms import log_sum_of_pairs
from spacy_latent.kernels.simd.row_numbers import (
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
from spacy_latent.kernels.simd.scaled_floats import (
    EMPTY,
    LN2,
    normalised,
    pull,
    pull_tangent,
    push,
    push_tangent,
    split,
)
from spacy_latent.kernels.simd.vector import LANES, aligned_empty
from spacy_latent.kernels.spans.constituency_lanes import CHARTS as CHARTS_BESIDE
from spacy_latent.kernels.spans.constituency_lanes import read_spans, sum_side_by_side

HEADER = 8
# Charts: weights, sums over splits, inside, outside, outside times weight.
WEIGHT, SPLITS, INSIDE, OUTSIDE, PASSED = range(5)

# Joins over the last word of spans that start at i and are split after k (see
# kernels.simd.row_numbers).
JOINS = [(SPLITS, INSIDE, INSIDE)]
_push = pushes_of(JOINS)
_pull = pulls_of(JOINS, {SPLITS: PASSED, INSIDE: OUTSIDE})


@kernel
def _width(n):
    """Return the numbers in a row of a chart: whole vectors."""
    return (n + LANES - 1) // LANES * LANES


@kernel(forceinline=True)
def _fill_spans(number, n):
    """Fill SPLITS and INSIDE, the inside pass; at the call they hold the empty sum.

    Args:
        number: a number type of kernels.simd.row_numbers.
    """
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
    """Fill WEIGHT, SPLITS and INSIDE.

    Args:
        center: subtracted from each score.
        floor: added to each weight and span, see ``Sums``.

    Returns:
        The sum over trees.
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
def _trusted_inside(s, n, center, low, charts):
    """Fill WEIGHT, SPLITS and INSIDE, and check the precision of the sum.

    Args:
        low: the lowest score.

    Returns:
        The sum over trees, 0 if it is not precise, or +inf after an overflow (see
        kernels.spans.inside_outside).
    """
    bound = np.inf
    safe = (n - 1) * (low - center) >= LOG_SMALLEST
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
    low, high, mean, count = np.inf, -np.inf, 0.0, 0
    for i in range(n):
        for j in range(i + 1, n):
            high = max(high, s[i, j])
            if s[i, j] > -np.inf:
                low = min(low, s[i, j])
    if high == -np.inf:
        return -np.inf, 0.0
    for i in range(n):
        for j in range(i + 1, n):
            mean += math.exp(s[i, j] - high)
            count += 1
    # The number of trees grows by a factor of about 4 per word.
    center = high + math.log(mean / count) + 1.3
    total = _trusted_inside(s, n, center, low, charts)
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
    total = _trusted_inside(s, n, center, low, charts)
    return center, total if total < np.inf else 0.0


@kernel(fastmath=ANY_ORDER)
def _outside(n, charts):
    """Fill OUTSIDE and PASSED.

    Returns:
        The sum over trees, times the sum of the marginals of spans of two or more words.
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
    dcharts[SPLITS:] = 0.0
    _fill_spans(number, n)
    _spread_spans(number, n)


@kernel
def _log_inside(s, ds, n, inside, dinside, turned, dturned):
    """Run the inside pass on logarithms, with tangents along ``ds``; single words have score 0.

    Args:
        turned, dturned: written: the transposed charts, [last, first].
    """
    for i in range(n - 1, -1, -1):
        inside[i, i] = turned[i, i] = 0.0
        dinside[i, i] = dturned[i, i] = 0.0
        for j in range(i + 1, n):
            value, change = log_sum_of_pairs(
                inside[i, i:j],
                turned[j, i + 1 : j + 1],
                dinside[i, i:j],
                dturned[j, i + 1 : j + 1],
            )
            inside[i, j] = turned[j, i] = value + s[i, j]
            dinside[i, j] = dturned[j, i] = change + ds[i, j]


@kernel
def _scaled_float_inside(s, ds, n, charts, change, powers):
    """Run :func:`_inside` in scaled floats, with its tangent along ``ds``.

    The tangent is left out if ``change`` is empty.

    Args:
        charts, change, powers: mantissas, their tangents, and exponents, each (2, n, n): sums over
            splits, and inside.
    """
    charts[:] = 0.0
    change[:] = 0.0
    powers[:] = EMPTY
    tangent = len(change) > 0
    for i in range(n - 1, -1, -1):
        split_row, spans = charts[0, i], charts[1, i]
        spans[i], powers[1, i, i] = 1.0, 0.0
        for k in range(i, n):
            if k > i:
                factor, powers[0, i, k] = normalised(split_row[k], powers[0, i, k])
                split_row[k] *= factor
                weight, exponent = split(s[i, k])
                spans[k] = split_row[k] * weight
                powers[1, i, k] = powers[0, i, k] + exponent
                if tangent:
                    change[0, i, k] *= factor
                    change[1, i, k] = (change[0, i, k] + split_row[k] * ds[i, k]) * weight
            size, begin = n - 1 - k, k + 1
            if size > 0 and tangent:
                push_tangent(
                    *(split_row[begin:], change[0, i, begin:], powers[0, i, begin:]),
                    *(charts[1, begin, begin:], change[1, begin, begin:], powers[1, begin, begin:]),
                    *(spans[k], change[1, i, k], powers[1, i, k], size),
                )
            elif size > 0:
                push(
                    *(split_row[begin:], powers[0, i, begin:], charts[1, begin, begin:]),
                    *(powers[1, begin, begin:], spans[k], powers[1, i, k], size),
                )


@kernel
def _scaled_float_outside(s, ds, n, charts, change, powers, outer, d_outer, out, d_out):
    """Write the marginals and their tangents, from the results of _scaled_float_inside.

    Args:
        outer, d_outer: adjoints of charts and change; their exponents are the negated ``powers``.
    """
    outer[:] = 0.0
    d_outer[:] = 0.0
    tangent = len(change) > 0
    whole = charts[1, 0, n - 1]
    outer[1, 0, n - 1] = 1.0 / whole
    if tangent:
        d_outer[1, 0, n - 1] = -change[1, 0, n - 1] / whole**2
    for i in range(n):
        for k in range(n - 1, i - 1, -1):
            size, begin = n - 1 - k, k + 1
            of_span, d_of_span = outer[1, i, k], 0.0
            if tangent:
                d_of_span = d_outer[1, i, k]
            if size > 0 and tangent:
                given, d_given = pull_tangent(
                    *(outer[0, i, begin:], d_outer[0, i, begin:], powers[0, i, begin:]),
                    *(charts[1, begin, begin:], change[1, begin, begin:]),
                    *(outer[1, begin, begin:], d_outer[1, begin, begin:]),
                    *(powers[1, begin, begin:], charts[1, i, k], change[1, i, k]),
                    *(powers[1, i, k], size),
                )
                of_span += given
                d_of_span += d_given
            elif size > 0:
                of_span += pull(
                    *(outer[0, i, begin:], powers[0, i, begin:], charts[1, begin, begin:]),
                    *(outer[1, begin, begin:], powers[1, begin, begin:]),
                    *(charts[1, i, k], powers[1, i, k], size),
                )
            out[i, k] = of_span * charts[1, i, k]
            if k > i:
                weight, _ = split(s[i, k])
                outer[0, i, k] = of_span * weight
                if tangent:
                    d_outer[0, i, k] = (d_of_span + of_span * ds[i, k]) * weight
                    d_out[i, k] = d_of_span * charts[1, i, k] + of_span * change[1, i, k]


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
    return torch.sym_max(alone_size(n), kept_beside(n, CHARTS_BESIDE))


@kernel
def sum_over_constituency_trees(
    start, stop, items, scores, lengths, along, operation, log_partition, result, kept, status
):
    """Compute the sums over binary trees as ``Family.total`` of kernels.autograd.operators.

    Scores are ``(B, N, N)``, [first, last].
    """
    longest = 0
    for b in items[start:stop]:
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    spare = aligned_empty(_item_size(longest) if kept.shape[1] == 0 else 0)
    tangents = aligned_empty(5 * longest * _width(longest) if operation == HESSIAN_PRODUCT else 0)
    for b in items[start:stop]:
        n = lengths[b]
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        status[b] = FEASIBLE
        if n == 0:
            continue
        record = kept[b] if kept.shape[1] > 0 else spare
        shape = (5, n, _width(n))
        area = 5 * n * _width(n)
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
                for j in range(_width(n)):
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
def sum_by_exponents(
    start, stop, items, scores, lengths, along, operation, log_partition, result, kept, status
):
    """Compute the sums like :func:`sum_over_constituency_trees`, in scaled floats.

    All items must have words.
    """
    for b in items[start:stop]:
        n = lengths[b]
        if operation != LOG_PARTITION:
            result[b] = 0.0
        s = np.zeros((n, n))
        status[b], words = read_spans(scores[b], n, s)
        if status[b] != FEASIBLE:
            continue
        ds = np.zeros((n, n))
        if operation == HESSIAN_PRODUCT:
            for i in range(n):
                for j in range(i + 1, n):
                    if s[i, j] > -np.inf:
                        ds[i, j] = along[b, i, j]
        own_charts, powers = np.empty((2, n, n)), np.empty((2, n, n))
        change = np.empty((2 if operation == HESSIAN_PRODUCT else 0, n, n))
        _scaled_float_inside(s, ds, n, own_charts, change, powers)
        if not own_charts[1, 0, n - 1] > 0.0:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = math.log(own_charts[1, 0, n - 1]) + powers[1, 0, n - 1] * LN2 + words
        if operation != LOG_PARTITION:
            nowhere = np.zeros((n, n))
            marginals = result[b] if operation == MARGINALS else nowhere
            products = nowhere if operation == MARGINALS else result[b]
            _scaled_float_outside(
                *(s, ds, n, own_charts, change, powers),
                *(np.empty_like(own_charts), np.empty_like(change), marginals, products),
            )
            if operation == MARGINALS and not _adds_up(marginals, n):
                status[b] = TOO_LARGE


@kernel
def best_constituency_trees(start, stop, scores, lengths, spans, status):
    """Write the best trees.

    Args:
        spans: ``(B, N, 2)`` int32, written: the spans of two or more words, −1 from the n-th on.
    """
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    room = aligned_empty(3 * longest * _width(longest))
    stack = np.empty((longest + 1, 2), dtype=np.int64)
    for b in range(start, stop):
        n = lengths[b]
        spans[b] = -1
        status[b], _ = read_spans(scores[b], n, s)
        if n == 0:
            status[b] = FEASIBLE
        if status[b] != FEASIBLE or n < 2:
            continue
        width = _width(n)
        charts = room[: 3 * n * width].reshape((3, n, width))
        charts[:] = -np.inf
        _fill_spans(Maxima(s, charts), n)
        best = charts[INSIDE]
        if best[0, n - 1] == -np.inf:
            status[b] = INFEASIBLE
            continue
        stack[0, 0], stack[0, 1] = 0, n - 1
        depth, count = 1, 0
        while depth > 0:
            depth -= 1
            i, j = stack[depth, 0], stack[depth, 1]
            spans[b, count, 0], spans[b, count, 1] = i, j
            count += 1
            split, top = i, -np.inf
            for k in range(i, j):
                value = best[i, k] + best[k + 1, j]
                if value > top:
                    split, top = k, value
            if split > i:
                stack[depth, 0], stack[depth, 1] = i, split
                depth += 1
            if split + 1 < j:
                stack[depth, 0], stack[depth, 1] = split + 1, j
                depth += 1


@kernel
def sample_constituency_trees(start, stop, scores, lengths, seeds, samples, status):
    """Draw exact samples, from the longest span down.

    Args:
        samples: ``(K, B, N, 2)``, in the format of ``spans`` in best_constituency_trees.
    """
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    nothing = np.zeros((longest, longest))
    logs = np.empty((4, longest, longest))
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
        inside, turned = logs[0], logs[1]
        _log_inside(s, nothing, n, inside, logs[2], turned, logs[3])
        if inside[0, n - 1] == -np.inf:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for draw in range(samples.shape[0]):
            stack[0, 0], stack[0, 1] = 0, n - 1
            depth, count = 1, 0
            while depth > 0:
                depth -= 1
                i, j = stack[depth, 0], stack[depth, 1]
                samples[draw, b, count, 0], samples[draw, b, count, 1] = i, j
                count += 1
                top, total = inside[i, j] - s[i, j], 1.0
                if abs(inside[i, j]) > LARGE or abs(s[i, j]) > LARGE:
                    # The difference of these numbers has lost too many digits.
                    top, total = -np.inf, 0.0
                    for k in range(i, j):
                        top = max(top, inside[i, k] + turned[j, k + 1])
                    for k in range(i, j):
                        total += math.exp(inside[i, k] + turned[j, k + 1] - top)
                left, split = uniform_of_splitmix(state) * total, -1
                for k in range(i, j):
                    share = math.exp(inside[i, k] + turned[j, k + 1] - top)
                    if share > 0.0:
                        split = k
                        left -= share
                        if left < 0.0:
                            break
                if split > i:
                    stack[depth, 0], stack[depth, 1] = i, split
                    depth += 1
                if split + 1 < j:
                    stack[depth, 0], stack[depth, 1] = split + 1, j
                    depth += 1


FAMILY = Family(
    name="ConstituencyTree",
    best=best_constituency_trees,
    total=sum_over_constituency_trees,
    sample=sample_constituency_trees,
    best_shape=lambda shape: (shape[0], shape[1], 2),
    best_cost=lambda n: 300 + 1.5 * n**2 + 0.04 * n**3,
    total_cost=lambda n: 300 + 2.5 * n**2 + 0.06 * n**3,
    kept_size=lambda shape: kept_size(shape[1]),
    fallback=sum_by_exponents,
    beside=sum_side_by_side,
    group=group_size,
    device=GpuKernels("constituency_tree"),
)
