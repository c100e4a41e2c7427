"""Sums over constituency trees, for LANES sentences at a time (see kernels.simd.lanes).

The sums, and the checks of their precision, are the same as in kernels.spans.constituency.
Sentences that fail the checks are solved there.

Charts are laid out as in kernels.spans.inside_outside_lanes: charts that are read by row and by
column are symmetric, and rows are filled in pairs i, m = i + 1. A single word is a span of weight
1.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.simd.lane_numbers import (
    WEIGHT,
    Maxima,
    Sums,
    Tangents,
    columns_of,
    dots_from_before,
    dots_of_rows,
    one,
    plus,
    plus_floor,
    plus_product,
    read,
    times_weight,
    write,
    write_both,
    write_weighted,
)
from spacy_latent.kernels.simd.lanes import (
    FLOOR,
    LOG_SMALLEST,
    LOWEST,
    SPARE,
    add,
    add_product,
    begin_group,
    charts_size,
    drop_lost,
    every,
    exponential_lanes,
    group_length,
    interleave,
    keep,
    keep_trusted,
    load,
    maximum,
    multiply,
    open_charts,
    separate_row,
    smaller_above,
    store,
    subtract,
    where_positive,
)
from spacy_latent.kernels.simd.vector import LANES, aligned_empty

# Charts after WEIGHT: inside, outside, outside times weight.
INSIDE, OUTSIDE, PASSED = range(1, 4)
CHARTS = 4

_dots = dots_of_rows([(INSIDE, INSIDE)], 1, apart=True)
_dots_down = dots_of_rows([(PASSED, INSIDE)], -1, down=True, apart=True)


@kernel
def read_spans(scores, n, s):
    """Copy the span scores of one sentence; return the status and the sum of the words' scores."""
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
def _weights(w, n, sizes, centers, smallest):
    """Replace the scores in ``w`` by exp(score − center), so that the sum over trees is near 1.

    ``centers`` and the smallest scores are written, (1, 1, LANES).
    """
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
    store(smallest, 0, 0, least)
    store(centers, 0, 0, mean)
    factors = np.ones((1, 1, LANES))
    for lane in range(LANES):
        count = sizes[lane] * (sizes[lane] - 1) / 2
        if centers[0, 0, lane] > 0.0 and count > 0:
            # The number of trees grows by a factor of about 4 per word.
            offset = np.log(centers[0, 0, lane] / count) + 1.3
            factors[0, 0, lane] = np.exp(-offset)
            centers[0, 0, lane] = offset
    store(centers, 0, 0, add(load(centers, 0, 0), high))
    scale = load(factors, 0, 0)
    for i in range(n):
        for j in range(i + 1, n):
            store(w, i, j, multiply(load(w, i, j), scale))


@kernel(forceinline=True)
def _column(number, i, j, of_i, of_m):
    """Finish the spans from i and m = i + 1 to j, from the sums over splits between m and j."""
    of_m = plus(number, plus_floor(number, of_m), read(number, INSIDE, i + 1, j - 1))
    span = write_weighted(number, INSIDE, i + 1, j, of_m, i + 1, j)
    of_i = plus(number, plus_floor(number, of_i), read(number, INSIDE, i, j - 1))
    write_weighted(number, INSIDE, i, j, plus(number, of_i, span), i, j)


@kernel(forceinline=True)
def _inside(number, n):
    """Fill the inside chart of n words, an even number, for any type of number."""
    columns = columns_of(number)
    for i in range(n - 2, -1, -2):
        m, above = i + 1, i * columns
        write(number, INSIDE, i, i, one(number))
        write(number, INSIDE, m, m, one(number))
        write_weighted(number, INSIDE, i, m, plus_floor(number, one(number)), i, m)
        for j in range(m + 1, n, 2):
            at = j * columns
            of_i, more_i, of_m, more_m = _dots(number, (above - 1, at), m + 1, j)
            _column(number, i, j, of_i, of_m)
            # Add the split at j itself.
            last = read(number, INSIDE, j, j + 1)
            more_i = plus_product(number, more_i, read(number, INSIDE, i, j - 1), last)
            more_m = plus_product(number, more_m, read(number, INSIDE, m, j - 1), last)
            _column(number, i, j + 1, more_i, more_m)


@kernel
def _weights_relative_to_best(charts, n, sizes, centers, smallest):
    """Replace scores like :func:`_weights`, with centers for which the best tree has weight 1.

    The sums of the most likely spans are then near 1, whatever the scale of the scores.
    """
    w = charts[WEIGHT]
    _inside(Maxima(charts), n)
    least, high = every(np.inf), every(LOWEST)
    for i in range(n):
        for j in range(i + 1, n):
            least = smaller_above(least, load(w, i, j))
            high = maximum(load(w, i, j), high)
    store(smallest, 0, 0, least)
    highest = np.empty((1, 1, LANES))
    store(highest, 0, 0, high)
    for lane in range(LANES):
        center = 0.0
        if sizes[lane] > 1 and charts[INSIDE, 0, sizes[lane] - 1, lane] > -np.inf:
            center = charts[INSIDE, 0, sizes[lane] - 1, lane] / (sizes[lane] - 1)
        # A span with a much larger score is in no tree of similar probability. Its weight is
        # bounded, since it would overflow.
        centers[0, 0, lane] = max(center, highest[0, 0, lane] + LOG_SMALLEST)
    center = load(centers, 0, 0)
    for i in range(n):
        for j in range(i + 1, n):
            store(w, i, j, exponential_lanes(subtract(load(w, i, j), center)))


@kernel
def _trusted_sums(charts, n, sizes, centers, smallest, partitions):
    """Fill the inside charts from the weights, and return whether all sums are precise.

    The sums over trees are written to ``partitions``, 0 if they are not precise.
    """
    bounds, logs = np.zeros(LANES), np.zeros(LANES)
    for lane in range(LANES):
        # A sentence of one word needs no weights.
        if sizes[lane] > 1:
            logs[lane] = (sizes[lane] - 1) * (smallest[0, 0, lane] - centers[0, 0, lane])
    if logs.min() < LOG_SMALLEST:
        _inside(Sums(charts, FLOOR), n)
        for lane in range(LANES):
            if logs[lane] < LOG_SMALLEST:
                bounds[lane] = charts[INSIDE, 0, sizes[lane] - 1, lane]
    _inside(Sums(charts, 0.0), n)
    for lane in range(LANES):
        partitions[lane] = charts[INSIDE, 0, sizes[lane] - 1, lane] if sizes[lane] > 0 else 0.0
    return keep_trusted(bounds, sizes, partitions)


@kernel(forceinline=True)
def _outer_span(number, i, k, total):
    """Write the gradient of a span, and return its product with the weight of the span."""
    gradient = write(number, OUTSIDE, i, k, plus(number, total, read(number, OUTSIDE, i, k)))
    return write_both(number, PASSED, i, k, times_weight(number, gradient, i, k))


@kernel(forceinline=True)
def _outer_column(number, sums, i, k, outer_i, outer_m):
    """Finish the gradients of the spans from i and m = i + 1 to k > m."""
    m = i + 1
    given = _outer_span(number, i, k, plus(number, outer_i, load(sums, 0, k)))
    outer_m = plus(number, plus(number, outer_m, load(sums, 1, k)), read(number, OUTSIDE, m, k))
    gradient = write(number, OUTSIDE, m, k, plus(number, outer_m, given))
    write_both(number, PASSED, m, k, times_weight(number, gradient, m, k))


@kernel(forceinline=True)
def _outside(number, n, sums):
    """Fill OUTSIDE and PASSED, for a type of number with gradients.

    At the call OUTSIDE holds the gradients of whole sentences and is 0 elsewhere. ``sums`` is a
    workspace (2, columns, LANES).
    """
    columns = columns_of(number)
    for i in range(0, n, 2):
        m, above = i + 1, i * columns
        dots_from_before(number, sums, 0, INSIDE, PASSED, -1, 0, i, n - 1)
        # Add the contributions of longer spans in the same row, which end after k.
        for k in range(n - 1, i, -2):
            below = (k + 1) * columns
            outer_i, more_i, outer_m, more_m = _dots_down(number, (above, below), k + 1, n)
            if k == m:
                _outer_span(number, i, k, plus(number, outer_i, load(sums, 0, k)))
            else:
                _outer_column(number, sums, i, k, outer_i, outer_m)
                more_i = plus(number, more_i, read(number, PASSED, i, k))
                more_m = plus(number, more_m, read(number, PASSED, m, k))
                _outer_column(number, sums, i, k - 1, more_i, more_m)


@kernel
def _write(row, i, n, sizes, items, result, starts):
    for lane in range(LANES):
        first = (items[lane] * result.shape[1] + i) * result.shape[2]
        starts[lane] = first if sizes[lane] > 0 else -1
    separate_row(row, i + 1, n, result.reshape(-1), starts)


@kernel
def sum_in_lanes(start, stop, groups, batch, along, operation, results):
    """Compute the sums of groups of items as ``Family.lanes`` of kernels.autograd.families."""
    scores, lengths, _ = batch
    log_partition, result, kept, status = results
    longest = 0
    for group in range(start, stop):
        longest = max(longest, group_length(groups[group], lengths))
    spare = np.empty(SPARE + charts_size(CHARTS, longest) if kept.shape[1] == 0 else 0)
    flat = np.empty(LANES * (longest + 2) ** 2)
    tangents_workspace = aligned_empty(
        charts_size(CHARTS, longest) if operation == HESSIAN_PRODUCT else 0
    )
    sizes, partitions = np.empty(LANES, np.int64), np.empty(LANES)
    starts = np.empty(LANES, np.int64)
    for group in range(start, stop):
        items = groups[group]
        length = begin_group(
            items, lengths, operation, sizes, partitions, log_partition, result, status
        )
        if length == 0:
            continue
        charts, header, known = open_charts(
            group, length, CHARTS, operation, kept, spare, partitions
        )
        n = length + length % 2
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
            centers, smallest = np.empty((1, 1, LANES)), np.empty((1, 1, LANES))
            interleave(rows, n, charts[WEIGHT])
            _weights(charts[WEIGHT], n, sizes, centers, smallest)
            if not _trusted_sums(charts, n, sizes, centers, smallest, partitions):
                interleave(rows, n, charts[WEIGHT])
                _weights_relative_to_best(charts, n, sizes, centers, smallest)
                _trusted_sums(charts, n, sizes, centers, smallest, partitions)
            for lane in range(LANES):
                if partitions[lane] > 0.0:
                    shift = (sizes[lane] - 1) * centers[0, 0, lane] + words[lane]
                    log_partition[items[lane]] = np.log(partitions[lane]) + shift
            if operation != LOG_PARTITION:
                charts[OUTSIDE] = 0.0
                for lane in range(LANES):
                    if partitions[lane] > 0.0:
                        charts[OUTSIDE, 0, sizes[lane] - 1, lane] = 1.0 / partitions[lane]
                _outside(Sums(charts, 0.0), n, sums)
                expected = every(0.0)
                for i in range(n):
                    for j in range(i + 1, n):
                        value = multiply(load(charts[INSIDE], i, j), load(charts[OUTSIDE], i, j))
                        expected = add(expected, value)
                        store(row, 0, j, value)
                    if operation == MARGINALS:
                        _write(row[0], i, length, sizes, items, result, starts)
                # The sum is smaller after an overflow or underflow in the outside pass.
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
            tangents = tangents_workspace[: charts.size].reshape(charts.shape)
            for lane in range(LANES):
                own_rows = rows[lane]
                own_rows[:] = 0.0
                size = sizes[lane] if partitions[lane] > 0.0 else 0
                for i in range(size):
                    source, target = along[items[lane], i], own_rows[i]
                    for j in range(i + 1, size):
                        target[j] = source[j]
            interleave(rows, n, tangents[WEIGHT])
            for i in range(n):
                for j in range(i + 1, n):
                    value = where_positive(load(charts[WEIGHT], i, j), load(tangents[WEIGHT], i, j))
                    store(tangents[WEIGHT], i, j, value)
            _inside(Tangents(charts, tangents), n)
            tangents[OUTSIDE] = 0.0
            for lane in range(LANES):
                if partitions[lane] > 0.0:
                    relative = tangents[INSIDE, 0, sizes[lane] - 1, lane] / partitions[lane]
                    tangents[OUTSIDE, 0, sizes[lane] - 1, lane] = -relative / partitions[lane]
            _outside(Tangents(charts, tangents), n, sums)
            lost = every(0.0)
            for i in range(length):
                for j in range(i + 1, length):
                    value = multiply(load(tangents[OUTSIDE], i, j), load(charts[INSIDE], i, j))
                    other = load(charts[OUTSIDE], i, j)
                    value = add_product(value, other, load(tangents[INSIDE], i, j))
                    lost = add_product(lost, every(0.0), value)
                    store(row, 0, j, value)
                _write(row[0], i, length, sizes, items, result, starts)
            drop_lost(lost, row, partitions)
        for lane in range(LANES):
            if partitions[lane] > 0.0:
                status[items[lane]] = FEASIBLE
