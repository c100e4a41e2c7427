"""Sums over constituency trees of LANES sentences side by side, see kernels.lanes; the sums and
what is trusted of them are those of kernels.constituency, which does what is not trusted here.

Charts are as in kernels.inside_outside_lanes: symmetric where they are read both ways, with rows
done in pairs i, m = i + 1. A word is a span of weight 1.

Each recurrence stands twice, for sums and for their derivatives. As one, with the number as an
argument (kernels.compilation.implements), results were the same bit for bit, but marginals of 32
items of 30 words took 0.41 ms in place of 0.30, with their gradient 1.14 in place of 0.95, and the
first call 13 % longer. Charts were fields of the number; as arguments beside it the first call took
19 % longer.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.compilation import kernel
from spacy_latent.kernels.lanes import (
    ALIGNMENT,
    FLOOR,
    HEADER,
    LOG_SMALLEST,
    LOWEST,
    add,
    add_product,
    begin_group,
    dots_from_before,
    dots_from_before_tangent,
    dots_of_rows,
    drop_lost,
    every,
    exponential_lanes,
    interleave,
    keep,
    lanes_shape,
    load,
    longest_beside,
    maximum,
    multiply,
    open_charts,
    separate_row,
    smaller_above,
    store,
    store_both,
    subtract,
    where_positive,
)
from spacy_latent.kernels.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.vector import LANES, aligned_empty

# Weights, inside, outside, outside times weight; their derivatives, the first that of the score.
WEIGHT, INSIDE, OUTSIDE, PASSED = range(4)
CHARTS = 4

_dots = dots_of_rows([[(0, 1)]], 1)
_dots_down = dots_of_rows([[(0, 1)]], -1, down=True)
_tangents = dots_of_rows([[(0, 3), (2, 1)]], 1, apart=True)
_tangents_down = dots_of_rows([[(0, 3), (2, 1)]], -1, down=True, apart=True)


@kernel
def read_spans(scores, n, s):
    """Copy the spans of one sentence to ``s``. RETURNS: status, sum of the words' scores."""
    wrong, total = 0, 0.0
    for i in range(n):
        for j in range(i, n):
            value = float(scores[i, j])
            s[i, j] = value
            wrong += 0 if value < np.inf else 1
        total += s[i, i]
    if wrong:
        return NOT_FINITE, 0.0
    return (FEASIBLE if total > -np.inf else INFEASIBLE), total


@kernel
def charts_size(n):
    """Float64 numbers that charts of LANES items of at most n words need."""
    rows, columns = lanes_shape(n)
    return CHARTS * rows * columns * LANES


@kernel
def lanes_size(n):
    """Float64 numbers that LANES items of at most n words may keep."""
    return HEADER + ALIGNMENT + charts_size(n)


@kernel
def _weights(w, n, sizes, centers, low):
    """Turn the scores in ``w`` to exp(score − center), with centers that are about what keeps the
    sum over trees near 1. centers, low: (1, 1, LANES), written; low: the smallest score."""
    high, least, mean = every(LOWEST), every(np.inf), every(0.0)
    for i in range(n):
        for j in range(i + 1, n):
            high = maximum(load(w, i, j), high)
            least = smaller_above(least, load(w, i, j))
    for i in range(n):
        for j in range(i + 1, n):
            value = exponential_lanes(subtract(load(w, i, j), high))
            store(w, i, j, value)
            mean = add(mean, value)
    store(low, 0, 0, least)
    store(centers, 0, 0, mean)
    factors = np.ones((1, 1, LANES))
    for lane in range(LANES):
        count = sizes[lane] * (sizes[lane] - 1) / 2
        if centers[0, 0, lane] > 0.0 and count > 0:
            # About 4 per word is how the number of trees grows.
            offset = np.log(centers[0, 0, lane] / count) + 1.3
            factors[0, 0, lane] = np.exp(-offset)
            centers[0, 0, lane] = offset
    store(centers, 0, 0, add(load(centers, 0, 0), high))
    scale = load(factors, 0, 0)
    for i in range(n):
        for j in range(i + 1, n):
            store(w, i, j, multiply(load(w, i, j), scale))


@kernel(forceinline=True)
def _column(charts, i, j, floor, of_i, of_m):
    """Finish the spans from i and m = i + 1 to j, from the sums over splits between m and j."""
    w, inside = charts[WEIGHT], charts[INSIDE]
    of_m = add(add(of_m, floor), load(inside, i + 1, j - 1))
    of_m = add_product(floor, of_m, add(load(w, i + 1, j), floor))
    store_both(inside, i + 1, j, of_m)
    of_i = add(add(add(of_i, floor), load(inside, i, j - 1)), of_m)
    store_both(inside, i, j, add_product(floor, of_i, add(load(w, i, j), floor)))


@kernel
def _inside(charts, n, smallest):
    """Fill the inside chart of n words, an even number. smallest: added to each weight, sum over
    splits and span."""
    w, inside = charts[WEIGHT], charts[INSIDE]
    width, floor = inside.shape[1], every(smallest)
    for i in range(n - 2, -1, -2):
        m, above = i + 1, i * width
        store(inside, i, i, every(1.0))
        store(inside, m, m, every(1.0))
        of_pair = add(every(1.0), floor)
        store_both(inside, i, m, add_product(floor, of_pair, add(load(w, i, m), floor)))
        for j in range(m + 1, n, 2):
            of_i, more_i, of_m, more_m = _dots((inside, inside), (above - 1, j * width), m + 1, j)
            _column(charts, i, j, floor, of_i, of_m)
            # The split at j itself.
            last = load(inside, j, j + 1)
            more_i = add_product(more_i, load(inside, i, j - 1), last)
            more_m = add_product(more_m, load(inside, m, j - 1), last)
            _column(charts, i, j + 1, floor, more_i, more_m)


@kernel(forceinline=True)
def _of_column(charts, sums, i, k, of_i, of_m):
    """Finish the gradients of the spans from i and m = i + 1 to k."""
    w, outside, passed = charts[WEIGHT], charts[OUTSIDE], charts[PASSED]
    of_i = add(add(of_i, load(sums, 0, k)), load(outside, i, k))
    store(outside, i, k, of_i)
    of_i = multiply(of_i, load(w, i, k))
    store_both(passed, i, k, of_i)
    if k > i + 1:
        of_m = add(add(add(of_m, load(sums, 1, k)), load(outside, i + 1, k)), of_i)
        store(outside, i + 1, k, of_m)
        store_both(passed, i + 1, k, multiply(of_m, load(w, i + 1, k)))


@kernel
def _outside(charts, n, sums):
    """Fill the last two charts, from the seeds in OUTSIDE, which is 0 elsewhere. sums: (2, columns,
    LANES) workspace."""
    inside, passed = charts[INSIDE], charts[PASSED]
    width = inside.shape[1]
    for i in range(0, n, 2):
        m, above = i + 1, i * width
        dots_from_before(sums, 0, inside, passed, above - width, 0, i, n - 1)
        # What is left is from spans that end after k.
        for k in range(n - 1, i, -2):
            of_i, more_i, of_m, more_m = _dots_down(
                (passed, inside), (above, (k + 1) * width), k + 1, n
            )
            _of_column(charts, sums, i, k, of_i, of_m)
            if k > m:
                more_i = add(more_i, load(passed, i, k))
                more_m = add(more_m, load(passed, m, k))
                _of_column(charts, sums, i, k - 1, more_i, more_m)


@kernel(forceinline=True)
def _tangent_of(charts, change, i, j, of_splits):
    """RETURNS: the derivative of a span, which it writes, from that of the sum over its splits."""
    value = multiply(load(charts[INSIDE], i, j), load(change[WEIGHT], i, j))
    value = add_product(value, of_splits, load(charts[WEIGHT], i, j))
    store_both(change[INSIDE], i, j, value)
    return value


@kernel
def _inside_tangent(charts, change, n):
    """Derivatives of the inside chart along change[WEIGHT], that of the scores."""
    inside, d_inside = charts[INSIDE], change[INSIDE]
    width = inside.shape[1]
    for i in range(n - 2, -1, -2):
        m, above = i + 1, i * width
        store(d_inside, i, i, every(0.0))
        store(d_inside, m, m, every(0.0))
        _tangent_of(charts, change, i, m, every(0.0))
        for j in range(m + 1, n, 2):
            of_i, more_i, of_m, more_m = _tangents(
                (inside, inside, d_inside, d_inside),
                (above - 1, j * width, above - 1, j * width),
                m + 1,
                j,
            )
            of_m = _tangent_of(charts, change, m, j, add(of_m, load(d_inside, m, j - 1)))
            of_i = add(add(of_i, load(d_inside, i, j - 1)), of_m)
            _tangent_of(charts, change, i, j, of_i)
            last, d_last = load(inside, j, j + 1), load(d_inside, j, j + 1)
            more_m = add_product(more_m, load(inside, m, j - 1), d_last)
            more_m = add_product(more_m, load(d_inside, m, j - 1), last)
            more_m = _tangent_of(charts, change, m, j + 1, add(more_m, load(d_inside, m, j)))
            more_i = add_product(more_i, load(inside, i, j - 1), d_last)
            more_i = add_product(more_i, load(d_inside, i, j - 1), last)
            more_i = add(add(more_i, load(d_inside, i, j)), more_m)
            _tangent_of(charts, change, i, j + 1, more_i)


@kernel(forceinline=True)
def _of_tangent(charts, change, i, k, value):
    """Write the derivatives of a span's gradients. RETURNS: the second."""
    w = load(charts[WEIGHT], i, k)
    store(change[OUTSIDE], i, k, value)
    # In this order: gradients may be as large as float64 holds where weights are small.
    value = multiply(value, w)
    passed = load(charts[OUTSIDE], i, k)
    value = add_product(value, passed, multiply(w, load(change[WEIGHT], i, k)))
    store_both(change[PASSED], i, k, value)
    return value


@kernel(forceinline=True)
def _of_column_tangent(charts, change, sums, i, k, of_i, of_m):
    """As :func:`_of_column`."""
    d_outside = change[OUTSIDE]
    of_i = add(add(of_i, load(sums, 0, k)), load(d_outside, i, k))
    of_i = _of_tangent(charts, change, i, k, of_i)
    if k > i + 1:
        of_m = add(add(add(of_m, load(sums, 1, k)), load(d_outside, i + 1, k)), of_i)
        _of_tangent(charts, change, i + 1, k, of_m)


@kernel
def _outside_tangent(charts, change, n, sums):
    """Derivatives of what _outside writes, from those of the seeds."""
    inside, passed = charts[INSIDE], charts[PASSED]
    d_inside, d_passed = change[INSIDE], change[PASSED]
    width = inside.shape[1]
    for i in range(0, n, 2):
        m, above = i + 1, i * width
        dots_from_before_tangent(
            sums, 0, inside, passed, d_inside, d_passed, above - width, 0, i, n - 1
        )
        for k in range(n - 1, i, -2):
            below = (k + 1) * width
            of_i, more_i, of_m, more_m = _tangents_down(
                (passed, inside, d_passed, d_inside), (above, below, above, below), k + 1, n
            )
            _of_column_tangent(charts, change, sums, i, k, of_i, of_m)
            if k > m:
                more_i = add(more_i, load(d_passed, i, k))
                more_m = add(more_m, load(d_passed, m, k))
                _of_column_tangent(charts, change, sums, i, k - 1, more_i, more_m)


@kernel
def _write(row, i, n, sizes, items, result, starts):
    for lane in range(LANES):
        first = (items[lane] * result.shape[1] + i) * result.shape[2]
        starts[lane] = first if sizes[lane] > 0 else -1
    separate_row(row, i + 1, n, result.reshape(-1), starts)


@kernel
def sum_side_by_side(
    start, stop, groups, scores, lengths, along, operation, log_partition, result, kept, status
):
    """``Family.beside`` of kernels.operators."""
    beside = 0
    for group in range(start, stop):
        beside = max(beside, longest_beside(groups[group], lengths))
    spare = np.empty(lanes_size(beside) if kept.shape[1] == 0 else 0)
    flat = np.empty(LANES * (beside + 2) ** 2)
    room = aligned_empty(charts_size(beside) if operation == HESSIAN_PRODUCT else 0)
    sizes, partitions = np.empty(LANES, np.int64), np.empty(LANES)
    starts = np.empty(LANES, np.int64)
    for group in range(start, stop):
        items = groups[group]
        longest = begin_group(
            items, lengths, operation, sizes, partitions, log_partition, result, status
        )
        if longest == 0:
            continue
        charts, header, known = open_charts(
            group, longest, CHARTS, operation, kept, spare, partitions
        )
        n = longest + longest % 2
        rows = flat[: LANES * n * n].reshape((LANES, n, n))
        row, sums = np.zeros((1, n, LANES)), np.empty((2, n, LANES))
        if not known:
            words = np.zeros(LANES)
            for lane in range(LANES):
                size, b = sizes[lane], items[lane]
                own_rows = rows[lane]
                own_rows[:] = -np.inf
                if size > 0:
                    state, words[lane] = read_spans(scores[b], size, own_rows)
                    if state != FEASIBLE:
                        own_rows[:] = -np.inf
                        sizes[lane] = 0
            interleave(rows, n, charts[WEIGHT])
            centers, low = np.empty((1, 1, LANES)), np.empty((1, 1, LANES))
            _weights(charts[WEIGHT], n, sizes, centers, low)
            bounds, safe = np.zeros(LANES), True
            for lane in range(LANES):
                # One word has no weight.
                if sizes[lane] > 1:
                    bounds[lane] = (sizes[lane] - 1) * (low[0, 0, lane] - centers[0, 0, lane])
                    safe &= bounds[lane] >= LOG_SMALLEST
            if not safe:
                _inside(charts, n, FLOOR)
                for lane in range(LANES):
                    if bounds[lane] < LOG_SMALLEST:
                        bounds[lane] = charts[INSIDE, 0, sizes[lane] - 1, lane]
                    else:
                        bounds[lane] = 0.0
            _inside(charts, n, 0.0)
            for lane in range(LANES):
                size, b = sizes[lane], items[lane]
                total = charts[INSIDE, 0, size - 1, lane] if size > 0 else 0.0
                trusted = 0.0 < total < np.inf
                if not safe and not bounds[lane] <= 0.0:
                    trusted &= total > FLOOR and bounds[lane] - total <= 1e-15 * total
                if trusted:
                    partitions[lane] = total
                    center = centers[0, 0, lane]
                    log_partition[b] = np.log(total) + (size - 1) * center + words[lane]
            if operation != LOG_PARTITION:
                charts[OUTSIDE] = 0.0
                for lane in range(LANES):
                    if partitions[lane] > 0.0:
                        charts[OUTSIDE, 0, sizes[lane] - 1, lane] = 1.0 / partitions[lane]
                _outside(charts, n, sums)
                expected = every(0.0)
                for i in range(n):
                    for j in range(i + 1, n):
                        value = multiply(load(charts[INSIDE], i, j), load(charts[OUTSIDE], i, j))
                        expected = add(expected, value)
                        store(row, 0, j, value)
                    if operation == MARGINALS:
                        _write(row[0], i, longest, sizes, items, result, starts)
                # Less where something under- or overflowed on the way out.
                store(row, 0, 0, expected)
                for lane in range(LANES):
                    size = sizes[lane]
                    if not abs(row[0, 0, lane] - (size - 1)) < 1e-11 * size:
                        partitions[lane] = 0.0
                    elif operation == MARGINALS:
                        for i in range(size):
                            result[items[lane], i, i] = 1.0
                keep(header, partitions)
        if operation == HESSIAN_PRODUCT:
            change = room[: charts.size].reshape(charts.shape)
            for lane in range(LANES):
                own_rows = rows[lane]
                own_rows[:] = 0.0
                size = sizes[lane] if partitions[lane] > 0.0 else 0
                for i in range(size):
                    source, target = along[items[lane], i], own_rows[i]
                    for j in range(i + 1, size):
                        target[j] = source[j]
            interleave(rows, n, change[WEIGHT])
            for i in range(n):
                for j in range(i + 1, n):
                    value = where_positive(load(charts[WEIGHT], i, j), load(change[WEIGHT], i, j))
                    store(change[WEIGHT], i, j, value)
            _inside_tangent(charts, change, n)
            change[OUTSIDE] = 0.0
            for lane in range(LANES):
                if partitions[lane] > 0.0:
                    relative = change[INSIDE, 0, sizes[lane] - 1, lane] / partitions[lane]
                    change[OUTSIDE, 0, sizes[lane] - 1, lane] = -relative / partitions[lane]
            _outside_tangent(charts, change, n, sums)
            lost = every(0.0)
            for i in range(longest):
                for j in range(i + 1, longest):
                    value = multiply(load(change[OUTSIDE], i, j), load(charts[INSIDE], i, j))
                    other = load(charts[OUTSIDE], i, j)
                    value = add_product(value, other, load(change[INSIDE], i, j))
                    lost = add_product(lost, every(0.0), value)
                    store(row, 0, j, value)
                _write(row[0], i, longest, sizes, items, result, starts)
            drop_lost(lost, row, partitions)
        for lane in range(LANES):
            if partitions[lane] > 0.0:
                status[items[lane]] = FEASIBLE
