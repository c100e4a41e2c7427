"""Sums over projective trees, for LANES sentences at a time in SIMD lanes (see kernels.simd.lanes).

The sums, and the checks of their precision, are the same as in kernels.spans.inside_outside.
Sentences that fail the checks are solved there.

Charts are symmetric: [i, j] and [j, i] are the same span. A row thus holds all spans that start or
end at one token. Padding tokens of shorter sentences have weight 0. Rows are filled in pairs i, m =
i + 1, since right[i, i] = left[i, i] = 1 is known.
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE
from spacy_latent.kernels.simd.arc_scores import read_arc_scores
from spacy_latent.kernels.simd.lane_numbers import (
    WEIGHT,
    Maxima,
    Sums,
    Tangents,
    columns_of,
    dots_from_before,
    dots_of_rows,
    plus,
    plus_product,
    read,
    times_weights,
    write_both,
    write_gradient,
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
    divide,
    drop_lost,
    every,
    exponential_lanes,
    group_length,
    interleave,
    keep,
    keep_trusted,
    load,
    log_of_products,
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
from spacy_latent.kernels.spans.eisner_lanes import (
    LEFT,
    RIGHT,
    TO_LEFT,
    TO_RIGHT,
    backtrack,
    fill_spans,
)

# Charts after WEIGHT and the charts of kernels.spans.eisner_lanes: gradients of log Z. OUTER_ARC is
# [head, modifier].
OUTER_BETWEEN, OUTER_ARC, OUTER_RIGHT, OUTER_LEFT = range(5, 9)
CHARTS = 9

_dots_down = dots_of_rows(
    [(OUTER_BETWEEN, LEFT), (OUTER_LEFT, TO_LEFT), (OUTER_RIGHT, RIGHT)], -1, down=True
)


@kernel
def _weights(w, columns, n, sizes, gamma, log_smallest):
    """Replace the scores in ``w`` by γ·(column softmax).

    Args:
        columns: (2, n+1, LANES), written: the largest score and the sum of each column.
        gamma: (1, 1, LANES), written: γ.
        log_smallest: (1, 1, LANES), written: a lower bound of the log-weights.
    """
    for lane in range(LANES):
        gamma[0, 0, lane] = max(1.0, sizes[lane] * np.exp(-1.91))
    top, total = columns[0:1], columns[1:2]
    for m in range(n + 1):
        store(top, 0, m, every(LOWEST))
        store(total, 0, m, every(0.0))
    for h in range(n + 1):
        for m in range(n + 1):
            store(top, 0, m, maximum(load(w, h, m), load(top, 0, m)))
    least = every(0.0)
    for h in range(n + 1):
        for m in range(n + 1):
            lower = subtract(load(w, h, m), load(top, 0, m))
            least = smaller_above(least, lower)
            value = exponential_lanes(lower)
            store(w, h, m, value)
            store(total, 0, m, add(load(total, 0, m), value))
    store(log_smallest, 0, 0, least)
    scale = load(gamma, 0, 0)
    for h in range(n + 1):
        for m in range(n + 1):
            factor = divide(scale, maximum(load(total, 0, m), every(1e-300)))
            store(w, h, m, multiply(load(w, h, m), factor))
    for lane in range(LANES):
        log_smallest[0, 0, lane] += np.log(gamma[0, 0, lane]) - np.log(sizes[lane] + 1)


@kernel
def _weights_relative_to_best(charts, columns, n, first_node, sizes, gamma, log_smallest):
    """Replace scores like :func:`_weights`, relative to the arcs of the best tree.

    The best tree, and trees of similar probability, then have sums near 1, whatever the scale of
    the scores. At the call, ``columns`` are the largest scores of columns. Written are the scores
    of the best tree's arcs, and 1.
    """
    w, top = charts[WEIGHT], columns[0:1]
    fill_spans(Maxima(charts), n, first_node)
    heads, stack = np.empty(n + 2, np.int32), np.empty(6 * (n + 2), np.int32)
    for lane in range(LANES):
        gamma[0, 0, lane] = 1.0
        if sizes[lane] > 0 and backtrack(charts, lane, sizes[lane], first_node, heads, stack):
            for m in range(1, sizes[lane] + 1):
                # An arc with a much larger score is in no tree of similar probability. Its weight
                # is bounded, since it would overflow.
                largest = columns[0, m, lane] + LOG_SMALLEST
                columns[0, m, lane] = max(w[heads[m], m, lane], largest)
    columns[1] = 1.0
    least = every(0.0)
    for h in range(n + 1):
        for m in range(n + 1):
            value = subtract(load(w, h, m), load(top, 0, m))
            least = smaller_above(least, value)
            store(w, h, m, exponential_lanes(value))
    store(log_smallest, 0, 0, least)


@kernel(forceinline=True)
def _outer_span(number, i, k, outer_right, outer_left, outer_arc, outer_other):
    """Write the gradients of the span (i, k); return its OUTER_RIGHT, OUTER_LEFT, OUTER_BETWEEN."""
    right = write_both(number, OUTER_RIGHT, i, k, outer_right)
    left = write_both(number, OUTER_LEFT, i, k, outer_left)
    arc = write_gradient(number, OUTER_ARC, i, k, outer_arc, TO_RIGHT)
    other = write_gradient(number, OUTER_ARC, k, i, outer_other, TO_LEFT)
    between = times_weights(number, arc, other, i, k)
    return right, left, write_both(number, OUTER_BETWEEN, i, k, between)


@kernel(forceinline=True)
def _outer_first(number, sums, i, k, outer_right, outer_left, outer_arc):
    """Finish the gradients of the span from i, the first of two rows, to k.

    The cells of OUTER_RIGHT, OUTER_LEFT and OUTER_BETWEEN are returned.
    """
    outer_right = plus(number, outer_right, load(sums, 0, k))
    outer_right = plus(number, outer_right, read(number, OUTER_RIGHT, i, k))
    outer_left = plus(number, outer_left, load(sums, 2, k))
    outer_left = plus(number, outer_left, read(number, OUTER_LEFT, i, k))
    outer_arc, outer_other = (
        plus(number, outer_arc, outer_right),
        plus(number, load(sums, 4, k), outer_left),
    )
    return _outer_span(number, i, k, outer_right, outer_left, outer_arc, outer_other)


@kernel(forceinline=True)
def _outer_column(number, sums, i, k, right_i, right_m, left_i, left_m, arc_i, arc_m):
    """Finish the gradients of the spans from i and m = i + 1 to k > m."""
    m = i + 1
    outer_right, outer_left, between = _outer_first(number, sums, i, k, right_i, left_i, arc_i)
    right_m = plus(number, right_m, load(sums, 1, k))
    right_m = plus(number, right_m, read(number, OUTER_RIGHT, m, k))
    right_m = plus_product(number, right_m, read(number, TO_RIGHT, m, i), outer_right)
    left_m = plus(number, left_m, load(sums, 3, k))
    left_m = plus(number, plus(number, left_m, read(number, OUTER_LEFT, m, k)), between)
    other_m = plus_product(number, load(sums, 5, k), read(number, LEFT, m, i), outer_left)
    arc_m, other_m = plus(number, arc_m, right_m), plus(number, other_m, left_m)
    _outer_span(number, m, k, right_m, left_m, arc_m, other_m)


@kernel
def _outside(number, last, first_node, sums):
    """Fill the charts of gradients after fill_spans.

    At the call OUTER_RIGHT and OUTER_LEFT hold the gradients from :func:`_start_outside` and are 0
    elsewhere.

    Args:
        number: ``Sums``, or ``Tangents``, with which OUTER_ARC gets the tangents of the marginals.
        sums: (6, columns, LANES) workspace.
    """
    columns = columns_of(number)
    for i in range(first_node, last, 2):
        m, above = i + 1, i * columns
        dots_from_before(number, sums, 0, TO_RIGHT, OUTER_RIGHT, 0, first_node, i, last)
        dots_from_before(number, sums, 2, RIGHT, OUTER_BETWEEN, -1, first_node, i, last)
        dots_from_before(number, sums, 4, LEFT, OUTER_LEFT, 0, first_node, i, last)
        # Add the contributions of longer spans in the same row, which end after k.
        for k in range(last, i, -2):
            at = k * columns
            cells = (above, at + columns, above, at, above, at)
            twelve = _dots_down(number, cells, k + 1, last + 1)
            r_i, more_r_i, r_m, more_r_m = twelve[0:4]
            l_i, more_l_i, l_m, more_l_m = twelve[4:8]
            a_i, more_a_i, a_m, more_a_m = twelve[8:12]
            if k == m:
                _outer_first(number, sums, i, k, r_i, l_i, a_i)
            else:
                _outer_column(number, sums, i, k, r_i, r_m, l_i, l_m, a_i, a_m)
                # Add the longer spans that end at k itself.
                arc, span = read(number, TO_LEFT, k - 1, k), read(number, RIGHT, k - 1, k)
                _outer_column(
                    *(number, sums, i, k - 1),
                    plus(number, more_r_i, read(number, OUTER_BETWEEN, i, k)),
                    plus(number, more_r_m, read(number, OUTER_BETWEEN, m, k)),
                    plus_product(number, more_l_i, read(number, OUTER_LEFT, i, k), arc),
                    plus_product(number, more_l_m, read(number, OUTER_LEFT, m, k), arc),
                    plus_product(number, more_a_i, read(number, OUTER_RIGHT, i, k), span),
                    plus_product(number, more_a_m, read(number, OUTER_RIGHT, m, k), span),
                )


@kernel
def _start_outside(charts, first_node, sizes, partitions):
    """Write the gradients of log Z with respect to the spans of whole sentences."""
    charts[OUTER_RIGHT], charts[OUTER_LEFT] = 0.0, 0.0
    if first_node == 1:
        charts[TO_RIGHT, 0], charts[OUTER_ARC, 0] = 0.0, 0.0
    for lane in range(LANES):
        n, scale = sizes[lane], 0.0
        roots = n if first_node == 1 else 0
        if 0.0 < partitions[lane] < np.inf:
            scale = 1.0 / partitions[lane]
        if first_node == 0:
            charts[OUTER_RIGHT, 0, n, lane] = scale
        for r in range(1, roots + 1):
            left, right = charts[LEFT, 1, r, lane], charts[RIGHT, r, n, lane]
            weight = charts[WEIGHT, 0, r, lane]
            charts[OUTER_LEFT, 1, r, lane] = weight * scale * right
            charts[OUTER_RIGHT, r, n, lane] = weight * scale * left
            charts[TO_RIGHT, 0, r, lane] = weight * left
            charts[OUTER_ARC, 0, r, lane] = scale * right


@kernel
def _start_outside_tangent(charts, tangents, first_node, sizes, partitions):
    """Write the tangents of the marginals of root arcs, and of :func:`_start_outside`."""
    tangents[OUTER_RIGHT], tangents[OUTER_LEFT], tangents[OUTER_ARC, 0] = 0.0, 0.0, 0.0
    for lane in range(LANES):
        n, scale = sizes[lane], 0.0
        roots = n if first_node == 1 else 0
        if partitions[lane] > 0.0:
            scale = 1.0 / partitions[lane]
        if first_node == 0:
            tangents[OUTER_RIGHT, 0, n, lane] = -(tangents[RIGHT, 0, n, lane] * scale) * scale
        d_partition = 0.0
        for r in range(1, roots + 1):
            left, right = charts[LEFT, 1, r, lane], charts[RIGHT, r, n, lane]
            d_left, d_right = tangents[LEFT, 1, r, lane], tangents[RIGHT, r, n, lane]
            weight, along = charts[WEIGHT, 0, r, lane], tangents[WEIGHT, 0, r, lane]
            d_partition += weight * (d_left * right + left * (d_right + along * right))
        for r in range(1, roots + 1):
            left, right = charts[LEFT, 1, r, lane], charts[RIGHT, r, n, lane]
            d_left, d_right = tangents[LEFT, 1, r, lane], tangents[RIGHT, r, n, lane]
            weight = charts[WEIGHT, 0, r, lane] * scale
            d_weight = weight * (tangents[WEIGHT, 0, r, lane] - d_partition * scale)
            tangents[OUTER_LEFT, 1, r, lane] = d_weight * right + weight * d_right
            tangents[OUTER_RIGHT, r, n, lane] = d_weight * left + weight * d_left
            out = d_weight * left * right + weight * (d_left * right + left * d_right)
            tangents[OUTER_ARC, 0, r, lane] = out


@kernel
def _write(row, h, size, items, result, starts):
    for lane in range(LANES):
        starts[lane] = (items[lane] * result.shape[1] + h) * result.shape[2]
    separate_row(row, 1, size, result.reshape(-1), starts)


@kernel
def _marginals(charts, size, columns, items, result, starts, write):
    """Sum the marginals in columns[1], and write them to ``result`` if requested."""
    row, total = columns[0:1], columns[1:2]
    total[:] = 0.0
    for h in range(size):
        for m in range(size):
            direction = TO_RIGHT if m > h else TO_LEFT
            value = every(0.0)
            if m != h:
                value = multiply(load(charts[OUTER_ARC], h, m), load(charts[direction], h, m))
            store(row, 0, m, value)
            store(total, 0, m, add(load(total, 0, m), value))
        if write:
            _write(columns[0], h, size, items, result, starts)


@kernel
def _inside_sums(charts, last, first_node, sizes, floor, partitions):
    """Fill the inside charts, and write the sums over trees to ``partitions``."""
    fill_spans(Sums(charts, floor), last, first_node)
    for lane in range(LANES):
        n = sizes[lane]
        roots = n if first_node == 1 else 0
        total = charts[RIGHT, 0, n, lane] if first_node == 0 and n > 0 else 0.0
        for r in range(1, roots + 1):
            # The divisor may be so large that a weight underflowed to 0, so it gets the floor, too.
            weight = charts[WEIGHT, 0, r, lane] + floor
            total += charts[LEFT, 1, r, lane] * charts[RIGHT, r, n, lane] * weight
        partitions[lane] = total


@kernel
def _trusted_sums(charts, last, first_node, sizes, log_smallest, partitions):
    """Fill the inside charts from the weights, and return whether all sums are precise.

    The sums over trees are written to ``partitions``, 0 if they are not precise.
    """
    bounds, logs = np.zeros(LANES), sizes * log_smallest[0, 0]
    if logs.min() < LOG_SMALLEST:
        _inside_sums(charts, last, first_node, sizes, FLOOR, partitions)
        for lane in range(LANES):
            bounds[lane] = partitions[lane] if logs[lane] < LOG_SMALLEST else 0.0
    _inside_sums(charts, last, first_node, sizes, 0.0, partitions)
    return keep_trusted(bounds, sizes, partitions)


@kernel
def sum_in_lanes(start, stop, groups, batch, along, operation, results):
    """Compute the sums of groups of items as ``Family.lanes`` of kernels.autograd.families."""
    scores, lengths, (direction, max_arc_length, single_root) = batch
    log_partition, result, kept, status = results
    first_node = 1 if single_root else 0
    longest = 0
    for group in range(start, stop):
        longest = max(longest, group_length(groups[group], lengths))
    spare = np.empty(SPARE + charts_size(CHARTS, longest) if kept.shape[1] == 0 else 0)
    flat = np.empty(LANES * (longest + 2) ** 2)
    area = charts_size(CHARTS, longest) if operation == HESSIAN_PRODUCT else 0
    tangents_workspace = aligned_empty(area)
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
        last = length + (length + 1 - first_node) % 2
        size = length + 1
        rows = flat[: LANES * (last + 1) ** 2].reshape((LANES, last + 1, last + 1))
        columns = np.empty((2, last + 1, LANES))
        sums = np.empty((6, last + 1, LANES))
        if not known:
            for lane in range(LANES):
                n, b = sizes[lane], items[lane]
                if n > 0:
                    state = read_arc_scores(scores[b], n, direction, max_arc_length, rows[lane])
                    n = n if state == FEASIBLE else 0
                sizes[lane] = n
                rows[lane, n + 1 if n > 0 else 0 :] = -np.inf
            gamma, log_smallest = np.empty((1, 1, LANES)), np.empty((1, 1, LANES))
            interleave(rows, last + 1, charts[WEIGHT])
            _weights(charts[WEIGHT], columns, last, sizes, gamma, log_smallest)
            if not _trusted_sums(charts, last, first_node, sizes, log_smallest, partitions):
                interleave(rows, last + 1, charts[WEIGHT])
                _weights_relative_to_best(
                    charts, columns, last, first_node, sizes, gamma, log_smallest
                )
                _trusted_sums(charts, last, first_node, sizes, log_smallest, partitions)
            for lane in range(LANES):
                if partitions[lane] > 0.0:
                    n = sizes[lane]
                    shift = log_of_products(columns[0], columns[1], n, lane)
                    shift -= n * np.log(gamma[0, 0, lane])
                    log_partition[items[lane]] = shift + np.log(partitions[lane])
            if operation != LOG_PARTITION:
                _start_outside(charts, first_node, sizes, partitions)
                _outside(Sums(charts, 0.0), last, first_node, sums)
                _marginals(charts, size, columns, items, result, starts, operation == MARGINALS)
                for lane in range(LANES):
                    for m in range(1, sizes[lane] + 1):
                        if not abs(columns[1, m, lane] - 1.0) < 1e-11:
                            partitions[lane] = 0.0
                keep(header, partitions)
        if operation == HESSIAN_PRODUCT:
            tangents = tangents_workspace[: charts.size].reshape(charts.shape)
            for lane in range(LANES):
                n, b = sizes[lane], items[lane]
                rows[lane] = 0.0
                for h in range(n + 1 if partitions[lane] > 0.0 else 0):
                    source, target = along[b, h], rows[lane, h]
                    for m in range(n + 1):
                        target[m] = source[m]
            interleave(rows, last + 1, tangents[WEIGHT])
            for h in range(last + 1):
                for m in range(last + 1):
                    value = where_positive(load(charts[WEIGHT], h, m), load(tangents[WEIGHT], h, m))
                    store(tangents[WEIGHT], h, m, value)
            fill_spans(Tangents(charts, tangents), last, first_node)
            _start_outside_tangent(charts, tangents, first_node, sizes, partitions)
            _outside(Tangents(charts, tangents), last, first_node, sums)
            lost = every(0.0)
            for h in range(size):
                store(tangents[OUTER_ARC], h, h, every(0.0))
                for m in range(1, size):
                    lost = add_product(lost, every(0.0), load(tangents[OUTER_ARC], h, m))
                _write(tangents[OUTER_ARC, h], h, size, items, result, starts)
            drop_lost(lost, columns, partitions)
        for lane in range(LANES):
            if partitions[lane] > 0.0:
                status[items[lane]] = FEASIBLE
