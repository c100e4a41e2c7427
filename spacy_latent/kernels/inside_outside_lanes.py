"""Sums over projective trees of LANES sentences side by side, see kernels.lanes; the sums and what
is trusted of them are those of kernels.inside_outside, which does what is not trusted here.

Charts are symmetric: [i, j] and [j, i] are the same span, so that all spans that start, or end, at
one place are a row. A shorter sentence has no weight at the tokens that it lacks. Rows are done in
pairs i, m = i + 1, where right[i, i] = left[i, i] = 1 is known.
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
    divide,
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
    log_of_products,
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
from spacy_latent.kernels.status import FEASIBLE, read_arc_scores
from spacy_latent.kernels.vector import LANES, aligned_empty

# Charts: weights, inside, gradients of log Z; of arcs [head, modifier].
WEIGHT, RIGHT, LEFT, TO_RIGHT, TO_LEFT = range(5)
OF_RIGHT, OF_LEFT, OF_BETWEEN, OF_ARC = range(5, 9)
CHARTS = 9

_three = [[(0, 1)], [(2, 3)], [(4, 5)]]
_three_tangents = [[(0, 7), (6, 1)], [(2, 9), (8, 3)], [(4, 11), (10, 5)]]
_dots = dots_of_rows(_three, 1)
_dots_down = dots_of_rows(_three, -1, down=True)
_tangents = dots_of_rows(_three_tangents, 1)
_tangents_down = dots_of_rows(_three_tangents, -1, down=True)


@kernel
def lanes_size(n):
    """Float64 numbers that LANES items of at most n tokens may keep."""
    rows, columns = lanes_shape(n)
    return HEADER + ALIGNMENT + CHARTS * rows * columns * LANES


@kernel
def tangents_size(n):
    rows, columns = lanes_shape(n)
    return CHARTS * rows * columns * LANES


@kernel
def _weights(w, columns, n, gamma, low):
    """Turn the scores in ``w`` to γ·(column softmax). columns: (2, n+1, LANES), written: the
    largest score and the sum of each column. low: written: the smallest log of a weight over the
    largest of its column."""
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
    store(low, 0, 0, least)
    scale = load(gamma, 0, 0)
    for h in range(n + 1):
        for m in range(n + 1):
            factor = divide(scale, maximum(load(total, 0, m), every(1e-300)))
            store(w, h, m, multiply(load(w, h, m), factor))


@kernel(forceinline=True)
def _arcs(charts, i, j, between, floor):
    """RETURNS: the sums of both arcs of a span, from that of what lies between."""
    w = charts[WEIGHT]
    to_right = add_product(floor, between, add(load(w, i, j), floor))
    to_left = add_product(floor, between, add(load(w, j, i), floor))
    store_both(charts[TO_RIGHT], i, j, to_right)
    store_both(charts[TO_LEFT], i, j, to_left)
    return to_right, to_left


@kernel(forceinline=True)
def _column(charts, i, j, floor, between_i, between_m, right_i, right_m, left_i, left_m):
    """Finish the spans from i and m = i + 1 to j, from the sums over splits between m and j."""
    m = i + 1
    right, left, to_right = charts[RIGHT], charts[LEFT], charts[TO_RIGHT]
    between_m = add(between_m, load(right, m, j - 1))
    arc_right, arc_left = _arcs(charts, m, j, between_m, floor)
    right_m, left_m = add(add(right_m, floor), arc_right), add(add(left_m, floor), arc_left)
    store_both(right, m, j, right_m)
    store_both(left, m, j, left_m)
    right_i = add_product(add(right_i, floor), load(to_right, i, m), right_m)
    left_i = add_product(add(left_i, floor), load(left, i, m), arc_left)
    between_i = add(add(between_i, load(right, i, j - 1)), left_m)
    arc_right, arc_left = _arcs(charts, i, j, between_i, floor)
    store_both(right, i, j, add(right_i, arc_right))
    store_both(left, i, j, add(left_i, arc_left))


@kernel
def _inside(charts, last, first, smallest):
    """Fill the inside charts of the nodes first .. last, an even number. smallest: added to each
    weight, arc and span."""
    right, left = charts[RIGHT], charts[LEFT]
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    width, floor = right.shape[1], every(smallest)
    for i in range(last - 1, first - 1, -2):
        m, above = i + 1, i * width
        for node in (i, m):
            store(right, node, node, every(1.0))
            store(left, node, node, every(1.0))
        arc_right, arc_left = _arcs(charts, i, m, every(1.0), floor)
        store_both(right, i, m, add(arc_right, floor))
        store_both(left, i, m, add(arc_left, floor))
        for j in range(m + 1, last, 2):
            at = j * width
            twelve = _dots(
                (right, left, to_right, right, left, to_left),
                (above - 1, at, above, at, above, at),
                m + 1,
                j,
            )
            b_i, more_b_i, b_m, more_b_m = twelve[0:4]
            r_i, more_r_i, r_m, more_r_m = twelve[4:8]
            l_i, more_l_i, l_m, more_l_m = twelve[8:12]
            _column(charts, i, j, floor, b_i, b_m, r_i, r_m, l_i, l_m)
            # The splits at j itself.
            left_j, right_j, to_j = (
                load(left, j, j + 1),
                load(right, j, j + 1),
                load(to_left, j, j + 1),
            )
            _column(
                *(charts, i, j + 1, floor),
                add_product(more_b_i, load(right, i, j - 1), left_j),
                add_product(more_b_m, load(right, m, j - 1), left_j),
                add_product(more_r_i, load(to_right, i, j), right_j),
                add_product(more_r_m, load(to_right, m, j), right_j),
                add_product(more_l_i, load(left, i, j), to_j),
                add_product(more_l_m, load(left, m, j), to_j),
            )


@kernel(forceinline=True)
def _of_span(charts, i, k, of_right, of_left, of_arc, of_other):
    """Write the gradients of the span (i, k). RETURNS: that of what lies between."""
    w = charts[WEIGHT]
    store_both(charts[OF_RIGHT], i, k, of_right)
    store_both(charts[OF_LEFT], i, k, of_left)
    store(charts[OF_ARC], i, k, of_arc)
    store(charts[OF_ARC], k, i, of_other)
    between = add_product(multiply(of_arc, load(w, i, k)), of_other, load(w, k, i))
    store_both(charts[OF_BETWEEN], i, k, between)
    return between


@kernel(forceinline=True)
def _of_column(charts, sums, i, k, right_i, right_m, left_i, left_m, arc_i, arc_m):
    """Finish the gradients of the spans from i and m = i + 1 to k."""
    m = i + 1
    of_right, of_left = charts[OF_RIGHT], charts[OF_LEFT]
    right_i = add(add(right_i, load(sums, 0, k)), load(of_right, i, k))
    left_i = add(add(left_i, load(sums, 2, k)), load(of_left, i, k))
    other_i, other_m = load(sums, 4, k), load(sums, 5, k)
    between = _of_span(charts, i, k, right_i, left_i, add(arc_i, right_i), add(other_i, left_i))
    if k > m:
        right_m = add(add(right_m, load(sums, 1, k)), load(of_right, m, k))
        right_m = add_product(right_m, load(charts[TO_RIGHT], m, i), right_i)
        left_m = add(add(left_m, load(sums, 3, k)), load(of_left, m, k))
        left_m = add(left_m, between)
        other_m = add_product(other_m, load(charts[LEFT], m, i), left_i)
        _of_span(charts, m, k, right_m, left_m, add(arc_m, right_m), add(other_m, left_m))


@kernel
def _outside(charts, last, first, sums):
    """Fill the charts of gradients, from what _inside left and the seeds in OF_RIGHT and
    OF_LEFT, which are 0 elsewhere. sums: (6, columns, LANES) workspace."""
    right, left = charts[RIGHT], charts[LEFT]
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    of_right, of_left, of_between = charts[OF_RIGHT], charts[OF_LEFT], charts[OF_BETWEEN]
    width = right.shape[1]
    for i in range(first, last, 2):
        m, above = i + 1, i * width
        dots_from_before(sums, 0, to_right, of_right, above, first, i, last)
        dots_from_before(sums, 2, right, of_between, above - width, first, i, last)
        dots_from_before(sums, 4, left, of_left, above, first, i, last)
        # What is left is from spans that end after k.
        for k in range(last, i, -2):
            at = k * width
            twelve = _dots_down(
                (of_between, left, of_left, to_left, of_right, right),
                (above, at + width, above, at, above, at),
                k + 1,
                last + 1,
            )
            r_i, more_r_i, r_m, more_r_m = twelve[0:4]
            l_i, more_l_i, l_m, more_l_m = twelve[4:8]
            a_i, more_a_i, a_m, more_a_m = twelve[8:12]
            _of_column(charts, sums, i, k, r_i, r_m, l_i, l_m, a_i, a_m)
            if k > m:
                # The spans that end at k itself.
                to_k, right_k = load(to_left, k - 1, k), load(right, k - 1, k)
                _of_column(
                    *(charts, sums, i, k - 1),
                    add(more_r_i, load(of_between, i, k)),
                    add(more_r_m, load(of_between, m, k)),
                    add_product(more_l_i, load(of_left, i, k), to_k),
                    add_product(more_l_m, load(of_left, m, k), to_k),
                    add_product(more_a_i, load(of_right, i, k), right_k),
                    add_product(more_a_m, load(of_right, m, k), right_k),
                )


@kernel(forceinline=True)
def _arc_tangents(charts, change, i, j, between):
    """RETURNS: the derivatives of the arcs of a span, from that of what lies between."""
    w, along = charts[WEIGHT], change[WEIGHT]
    to_right = multiply(load(charts[TO_RIGHT], i, j), load(along, i, j))
    to_right = add_product(to_right, between, load(w, i, j))
    to_left = multiply(load(charts[TO_LEFT], i, j), load(along, j, i))
    to_left = add_product(to_left, between, load(w, j, i))
    store_both(change[TO_RIGHT], i, j, to_right)
    store_both(change[TO_LEFT], i, j, to_left)
    return to_right, to_left


@kernel(forceinline=True)
def _column_tangent(charts, change, i, j, between_i, between_m, right_i, right_m, left_i, left_m):
    """As :func:`_column`."""
    m = i + 1
    d_right, d_left = change[RIGHT], change[LEFT]
    between_m = add(between_m, load(d_right, m, j - 1))
    arc_right, arc_left = _arc_tangents(charts, change, m, j, between_m)
    right_m, left_m = add(right_m, arc_right), add(left_m, arc_left)
    store_both(d_right, m, j, right_m)
    store_both(d_left, m, j, left_m)
    right_i = add_product(right_i, load(charts[TO_RIGHT], i, m), right_m)
    right_i = add_product(right_i, load(change[TO_RIGHT], i, m), load(charts[RIGHT], m, j))
    left_i = add_product(left_i, load(charts[LEFT], i, m), arc_left)
    left_i = add_product(left_i, load(d_left, i, m), load(charts[TO_LEFT], m, j))
    between_i = add(add(between_i, load(d_right, i, j - 1)), left_m)
    arc_right, arc_left = _arc_tangents(charts, change, i, j, between_i)
    store_both(d_right, i, j, add(right_i, arc_right))
    store_both(d_left, i, j, add(left_i, arc_left))


@kernel(forceinline=True)
def _product_tangent(total, chart, d_chart, i, j, value, d_value):
    total = add_product(total, load(chart, i, j), d_value)
    return add_product(total, load(d_chart, i, j), value)


@kernel
def _inside_tangent(charts, change, last, first):
    """Derivatives of the inside charts along change[WEIGHT], that of the logarithms of weights."""
    right, left = charts[RIGHT], charts[LEFT]
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    d_right, d_left = change[RIGHT], change[LEFT]
    d_to_right, d_to_left = change[TO_RIGHT], change[TO_LEFT]
    width = right.shape[1]
    for i in range(last - 1, first - 1, -2):
        m, above = i + 1, i * width
        for node in (i, m):
            store(d_right, node, node, every(0.0))
            store(d_left, node, node, every(0.0))
        arc_right, arc_left = _arc_tangents(charts, change, i, m, every(0.0))
        store_both(d_right, i, m, arc_right)
        store_both(d_left, i, m, arc_left)
        for j in range(m + 1, last, 2):
            at = j * width
            twelve = _tangents(
                (
                    *(right, left, to_right, right, left, to_left),
                    *(d_right, d_left, d_to_right, d_right, d_left, d_to_left),
                ),
                (
                    *(above - 1, at, above, at, above, at),
                    *(above - 1, at, above, at, above, at),
                ),
                m + 1,
                j,
            )
            b_i, more_b_i, b_m, more_b_m = twelve[0:4]
            r_i, more_r_i, r_m, more_r_m = twelve[4:8]
            l_i, more_l_i, l_m, more_l_m = twelve[8:12]
            _column_tangent(charts, change, i, j, b_i, b_m, r_i, r_m, l_i, l_m)
            of_left, d_of_left = load(left, j, j + 1), load(d_left, j, j + 1)
            of_right, d_of_right = load(right, j, j + 1), load(d_right, j, j + 1)
            of_arc, d_of_arc = load(to_left, j, j + 1), load(d_to_left, j, j + 1)
            _column_tangent(
                *(charts, change, i, j + 1),
                _product_tangent(more_b_i, right, d_right, i, j - 1, of_left, d_of_left),
                _product_tangent(more_b_m, right, d_right, m, j - 1, of_left, d_of_left),
                _product_tangent(more_r_i, to_right, d_to_right, i, j, of_right, d_of_right),
                _product_tangent(more_r_m, to_right, d_to_right, m, j, of_right, d_of_right),
                _product_tangent(more_l_i, left, d_left, i, j, of_arc, d_of_arc),
                _product_tangent(more_l_m, left, d_left, m, j, of_arc, d_of_arc),
            )


@kernel(forceinline=True)
def _of_span_tangent(charts, change, i, k, of_right, of_left, of_arc, of_other):
    """As :func:`_of_span`; the place of the arcs' own gradients gets the derivatives of their
    marginals."""
    w, along = charts[WEIGHT], change[WEIGHT]
    store_both(change[OF_RIGHT], i, k, of_right)
    store_both(change[OF_LEFT], i, k, of_left)
    known, other = load(charts[OF_ARC], i, k), load(charts[OF_ARC], k, i)
    out = multiply(of_arc, load(charts[TO_RIGHT], i, k))
    store(change[OF_ARC], i, k, add_product(out, known, load(change[TO_RIGHT], i, k)))
    out = multiply(of_other, load(charts[TO_LEFT], i, k))
    store(change[OF_ARC], k, i, add_product(out, other, load(change[TO_LEFT], i, k)))
    # In this order: gradients may be as large as float64 holds where weights are small.
    between = add_product(multiply(of_arc, load(w, i, k)), of_other, load(w, k, i))
    between = add_product(between, known, multiply(load(w, i, k), load(along, i, k)))
    between = add_product(between, other, multiply(load(w, k, i), load(along, k, i)))
    store_both(change[OF_BETWEEN], i, k, between)
    return between


@kernel(forceinline=True)
def _of_column_tangent(charts, change, sums, i, k, right_i, right_m, left_i, left_m, arc_i, arc_m):
    """As :func:`_of_column`."""
    m = i + 1
    d_of_right, d_of_left = change[OF_RIGHT], change[OF_LEFT]
    right_i = add(add(right_i, load(sums, 0, k)), load(d_of_right, i, k))
    left_i = add(add(left_i, load(sums, 2, k)), load(d_of_left, i, k))
    other_i, other_m = load(sums, 4, k), load(sums, 5, k)
    between = _of_span_tangent(
        charts, change, i, k, right_i, left_i, add(arc_i, right_i), add(other_i, left_i)
    )
    if k > m:
        right_m = add(add(right_m, load(sums, 1, k)), load(d_of_right, m, k))
        right_m = _product_tangent(
            *(right_m, charts[TO_RIGHT], change[TO_RIGHT], m, i),
            *(load(charts[OF_RIGHT], i, k), right_i),
        )
        left_m = add(add(left_m, load(sums, 3, k)), load(d_of_left, m, k))
        left_m = add(left_m, between)
        other_m = _product_tangent(
            *(other_m, charts[LEFT], change[LEFT], m, i, load(charts[OF_LEFT], i, k), left_i)
        )
        _of_span_tangent(
            *(charts, change, m, k, right_m, left_m),
            *(add(arc_m, right_m), add(other_m, left_m)),
        )


@kernel
def _outside_tangent(charts, change, last, first, sums):
    """Derivatives of what _outside writes, from those of the seeds."""
    right, left = charts[RIGHT], charts[LEFT]
    to_right, to_left = charts[TO_RIGHT], charts[TO_LEFT]
    of_right, of_left, of_between = charts[OF_RIGHT], charts[OF_LEFT], charts[OF_BETWEEN]
    d_right, d_left = change[RIGHT], change[LEFT]
    d_to_right, d_to_left = change[TO_RIGHT], change[TO_LEFT]
    d_of_right, d_of_left, d_of_between = change[OF_RIGHT], change[OF_LEFT], change[OF_BETWEEN]
    width = right.shape[1]
    for i in range(first, last, 2):
        m, above = i + 1, i * width
        dots_from_before_tangent(
            sums, 0, to_right, of_right, d_to_right, d_of_right, above, first, i, last
        )
        dots_from_before_tangent(
            sums, 2, right, of_between, d_right, d_of_between, above - width, first, i, last
        )
        dots_from_before_tangent(sums, 4, left, of_left, d_left, d_of_left, above, first, i, last)
        for k in range(last, i, -2):
            at = k * width
            twelve = _tangents_down(
                (
                    *(of_between, left, of_left, to_left, of_right, right),
                    *(d_of_between, d_left, d_of_left, d_to_left, d_of_right, d_right),
                ),
                (
                    *(above, at + width, above, at, above, at),
                    *(above, at + width, above, at, above, at),
                ),
                k + 1,
                last + 1,
            )
            r_i, more_r_i, r_m, more_r_m = twelve[0:4]
            l_i, more_l_i, l_m, more_l_m = twelve[4:8]
            a_i, more_a_i, a_m, more_a_m = twelve[8:12]
            _of_column_tangent(charts, change, sums, i, k, r_i, r_m, l_i, l_m, a_i, a_m)
            if k > m:
                arc, d_arc = load(to_left, k - 1, k), load(d_to_left, k - 1, k)
                span, d_span = load(right, k - 1, k), load(d_right, k - 1, k)
                _of_column_tangent(
                    *(charts, change, sums, i, k - 1),
                    add(more_r_i, load(d_of_between, i, k)),
                    add(more_r_m, load(d_of_between, m, k)),
                    _product_tangent(more_l_i, of_left, d_of_left, i, k, arc, d_arc),
                    _product_tangent(more_l_m, of_left, d_of_left, m, k, arc, d_arc),
                    _product_tangent(more_a_i, of_right, d_of_right, i, k, span, d_span),
                    _product_tangent(more_a_m, of_right, d_of_right, m, k, span, d_span),
                )


@kernel
def _seed(charts, first, sizes, partitions):
    """Write the gradients of log Z that do not come from wider spans."""
    charts[OF_RIGHT], charts[OF_LEFT] = 0.0, 0.0
    if first == 1:
        charts[TO_RIGHT, 0], charts[OF_ARC, 0] = 0.0, 0.0
    for lane in range(LANES):
        n, scale = sizes[lane], 0.0
        if 0.0 < partitions[lane] < np.inf:
            scale = 1.0 / partitions[lane]
        if first == 0:
            charts[OF_RIGHT, 0, n, lane] = scale
        for r in range(1, first * n + 1):
            left, right = charts[LEFT, 1, r, lane], charts[RIGHT, r, n, lane]
            weight = charts[WEIGHT, 0, r, lane]
            charts[OF_LEFT, 1, r, lane] = weight * scale * right
            charts[OF_RIGHT, r, n, lane] = weight * scale * left
            charts[TO_RIGHT, 0, r, lane] = weight * left
            charts[OF_ARC, 0, r, lane] = scale * right


@kernel
def _seed_tangent(charts, change, first, sizes, partitions):
    """Derivatives of what _seed writes; of the root's arcs those of the marginals."""
    change[OF_RIGHT], change[OF_LEFT], change[OF_ARC, 0] = 0.0, 0.0, 0.0
    for lane in range(LANES):
        n, scale = sizes[lane], 0.0
        if partitions[lane] > 0.0:
            scale = 1.0 / partitions[lane]
        if first == 0:
            change[OF_RIGHT, 0, n, lane] = -(change[RIGHT, 0, n, lane] * scale) * scale
        d_partition = 0.0
        for r in range(1, first * n + 1):
            left, right = charts[LEFT, 1, r, lane], charts[RIGHT, r, n, lane]
            d_left, d_right = change[LEFT, 1, r, lane], change[RIGHT, r, n, lane]
            weight, along = charts[WEIGHT, 0, r, lane], change[WEIGHT, 0, r, lane]
            d_partition += weight * (d_left * right + left * (d_right + along * right))
        for r in range(1, first * n + 1):
            left, right = charts[LEFT, 1, r, lane], charts[RIGHT, r, n, lane]
            d_left, d_right = change[LEFT, 1, r, lane], change[RIGHT, r, n, lane]
            weight = charts[WEIGHT, 0, r, lane] * scale
            d_weight = weight * (change[WEIGHT, 0, r, lane] - d_partition * scale)
            change[OF_LEFT, 1, r, lane] = d_weight * right + weight * d_right
            change[OF_RIGHT, r, n, lane] = d_weight * left + weight * d_left
            out = d_weight * left * right + weight * (d_left * right + left * d_right)
            change[OF_ARC, 0, r, lane] = out


@kernel
def _write(row, h, size, items, result, starts):
    for lane in range(LANES):
        starts[lane] = (items[lane] * result.shape[1] + h) * result.shape[2]
    separate_row(row, 1, size, result.reshape(-1), starts)


@kernel
def _marginals(charts, size, columns, items, result, starts, write):
    """Add the marginals up to columns[1], and write them to ``result`` if asked to."""
    row, total = columns[0:1], columns[1:2]
    total[:] = 0.0
    for h in range(size):
        for m in range(size):
            direction = TO_RIGHT if m > h else TO_LEFT
            value = every(0.0)
            if m != h:
                value = multiply(load(charts[OF_ARC], h, m), load(charts[direction], h, m))
            store(row, 0, m, value)
            store(total, 0, m, add(load(total, 0, m), value))
        if write:
            _write(columns[0], h, size, items, result, starts)


@kernel
def _inside_sums(charts, last, first, sizes, smallest, partitions):
    """Fill the inside charts. RETURNS: in ``partitions`` the sums over trees."""
    _inside(charts, last, first, smallest)
    for lane in range(LANES):
        n = sizes[lane]
        total = charts[RIGHT, 0, n, lane] if first == 0 and n > 0 else 0.0
        for r in range(1, first * n + 1):
            total += (
                charts[LEFT, 1, r, lane] * charts[RIGHT, r, n, lane] * charts[WEIGHT, 0, r, lane]
            )
        partitions[lane] = total


@kernel
def sum_side_by_side(
    start,
    stop,
    groups,
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
    """``Family.beside`` of kernels.operators."""
    first = 1 if single_root else 0
    beside = 0
    for group in range(start, stop):
        beside = max(beside, longest_beside(groups[group], lengths))
    spare = np.empty(lanes_size(beside) if kept.shape[1] == 0 else 0)
    flat = np.empty(LANES * (beside + 2) ** 2)
    room = aligned_empty(tangents_size(beside) if operation == HESSIAN_PRODUCT else 0)
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
        last = longest + (longest + 1 - first) % 2
        size = longest + 1
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
            interleave(rows, last + 1, charts[WEIGHT])
            gamma, low, bounds = np.ones((1, 1, LANES)), np.empty((1, 1, LANES)), np.empty(LANES)
            for lane in range(LANES):
                gamma[0, 0, lane] = max(1.0, sizes[lane] * np.exp(-1.91))
            _weights(charts[WEIGHT], columns, last, gamma, low)
            safe = True
            for lane in range(LANES):
                n = sizes[lane]
                smallest = low[0, 0, lane] - np.log(n + 1) + np.log(gamma[0, 0, lane])
                bounds[lane] = n * smallest
                safe &= bounds[lane] >= LOG_SMALLEST
            if not safe:
                _inside_sums(charts, last, first, sizes, FLOOR, partitions)
                for lane in range(LANES):
                    if bounds[lane] < LOG_SMALLEST:
                        bounds[lane] = partitions[lane]
            _inside_sums(charts, last, first, sizes, 0.0, partitions)
            for lane in range(LANES):
                partition = partitions[lane]
                trusted = 0.0 < partition < np.inf
                if not bounds[lane] <= 0.0:
                    trusted &= partition > FLOOR and bounds[lane] - partition <= 1e-15 * partition
                if not trusted:
                    partitions[lane] = 0.0
                    continue
                n, b = sizes[lane], items[lane]
                shift = log_of_products(columns[0], columns[1], n, lane)
                log_partition[b] = shift - n * np.log(gamma[0, 0, lane]) + np.log(partition)
            if operation != LOG_PARTITION:
                _seed(charts, first, sizes, partitions)
                _outside(charts, last, first, sums)
                _marginals(charts, size, columns, items, result, starts, operation == MARGINALS)
                for lane in range(LANES):
                    for m in range(1, sizes[lane] + 1):
                        if not abs(columns[1, m, lane] - 1.0) < 1e-11:
                            partitions[lane] = 0.0
                keep(header, partitions)
        if operation == HESSIAN_PRODUCT:
            change = room[: charts.size].reshape(charts.shape)
            for lane in range(LANES):
                n, b = sizes[lane], items[lane]
                rows[lane] = 0.0
                for h in range(n + 1 if partitions[lane] > 0.0 else 0):
                    source, target = along[b, h], rows[lane, h]
                    for m in range(n + 1):
                        target[m] = source[m]
            interleave(rows, last + 1, change[WEIGHT])
            for h in range(last + 1):
                for m in range(last + 1):
                    value = where_positive(load(charts[WEIGHT], h, m), load(change[WEIGHT], h, m))
                    store(change[WEIGHT], h, m, value)
            _inside_tangent(charts, change, last, first)
            _seed_tangent(charts, change, first, sizes, partitions)
            _outside_tangent(charts, change, last, first, sums)
            lost = every(0.0)
            for h in range(size):
                store(change[OF_ARC], h, h, every(0.0))
                for m in range(1, size):
                    lost = add_product(lost, every(0.0), load(change[OF_ARC], h, m))
                _write(change[OF_ARC, h], h, size, items, result, starts)
            drop_lost(lost, columns, partitions)
        for lane in range(LANES):
            if partitions[lane] > 0.0:
                status[items[lane]] = FEASIBLE
