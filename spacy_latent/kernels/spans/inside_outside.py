"""Sums over projective dependency trees: inside-outside on Eisner's charts.

The recurrences are from Eisner (1996) and Paskin (2001): O(n³) time and O(n²) memory, in float64.
Charts are laid out as in kernels.spans.eisner.

Weights are exp(score) divided by the sum of their column. A cell is then the probability that
independently drawn heads form its span, and at most 1. Most choices of heads are not trees, so sums
shrink as sentences grow. Each weight is multiplied by a γ ≥ 1 to prevent an underflow. If an
overflow or underflow could matter (see kernels.spans.inside_outside_rows),
:func:`sum_in_scaled_floats` solves the sentence with scaled floats, in which each number has its
own exponent. All inner loops are multiply-adds on contiguous rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, TOO_LARGE, UNSOLVED
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.arc_scores import read_arc_scores, subtract_best
from spacy_latent.kernels.simd.lanes import LONGEST, group_length, group_size, saved_size_in_lanes
from spacy_latent.kernels.simd.scaled_floats import LN2
from spacy_latent.kernels.simd.vector import LANES, aligned_empty
from spacy_latent.kernels.spans.eisner import (
    BETWEEN,
    CHARTS,
    LEFT,
    RIGHT,
    TO_LEFT,
    TO_RIGHT,
    best_projective_tree,
    chart_width,
    float_workspace_size,
    integer_workspace_size,
    put_sentence,
    put_span,
)
from spacy_latent.kernels.spans.eisner_lanes import best_trees_in_lanes, charts_of_trees, set_scores
from spacy_latent.kernels.spans.inside_outside_lanes import CHARTS as LANE_CHARTS
from spacy_latent.kernels.spans.inside_outside_lanes import sum_in_lanes
from spacy_latent.kernels.spans.inside_outside_rows import (
    adds_up,
    alone_size,
    inside_by_columns,
    sum_over_projective_trees,
)
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


@kernel
def _scaled_float_inside(weights, n, first_node):
    """Return charts (see kernels.spans.scaled_charts), whose RIGHT[0, n] is the sum over trees."""
    charts = scaled_charts(CHARTS, n + 2, n + 1)
    end = n + 1
    roots = n if first_node == 1 else 0
    for i in range(n, first_node - 1, -1):
        set_one(charts, RIGHT, i)
        set_one(charts, LEFT, i)
        charts.values[BETWEEN, i] = charts.values[LEFT, i + 1]
        charts.powers[BETWEEN, i] = charts.powers[LEFT, i + 1]
        charts.tangents[BETWEEN, i] = charts.tangents[LEFT, i + 1]
        for k in range(i + 1, end):
            right, left, between = cell_of(RIGHT, i, k), cell_of(LEFT, i, k), cell_of(BETWEEN, i, k)
            to_right = cell_of(TO_RIGHT, i, k)
            normalise(charts, BETWEEN, i, k)
            weigh(charts, to_right, between, weights, i, k)
            if i > 0:
                weigh(charts, cell_of(TO_LEFT, i, k), between, weights, k, i)
            push_row(charts, RIGHT, i, RIGHT, k, to_right, k, end)
            normalise(charts, RIGHT, i, k)
            push_row(charts, LEFT, i, TO_LEFT, i, cell_of(RIGHT, i, i), k, k + 1)
            normalise(charts, LEFT, i, k)
            push_row(charts, BETWEEN, i, LEFT, k + 1, right, k + 1, end)
            push_row(charts, LEFT, i, TO_LEFT, k, left, k + 1, end)
    for r in range(1, roots + 1):
        weigh(charts, cell_of(TO_RIGHT, 0, r), cell_of(LEFT, 1, r), weights, 0, r)
        push_row(charts, RIGHT, 0, RIGHT, r, cell_of(TO_RIGHT, 0, r), n, end)
    return charts


@kernel
def _scaled_float_outside(weights, n, first_node, charts, marginals, products):
    """Write the marginals and their tangents, from the results of _scaled_float_inside."""
    end = n + 1
    roots = n if first_node == 1 else 0
    start_outside(charts, cell_of(RIGHT, 0, n))
    for r in range(1, roots + 1):
        to_right = cell_of(TO_RIGHT, 0, r)
        pull_row(charts, RIGHT, 0, RIGHT, r, to_right, n, end)
        weigh_back(charts, to_right, cell_of(LEFT, 1, r), weights, 0, r, marginals, products)
    for i in range(first_node, end):
        for k in range(n, i, -1):
            right, left, between = cell_of(RIGHT, i, k), cell_of(LEFT, i, k), cell_of(BETWEEN, i, k)
            to_right = cell_of(TO_RIGHT, i, k)
            pull_row(charts, BETWEEN, i, LEFT, k + 1, right, k + 1, end)
            pull_row(charts, LEFT, i, TO_LEFT, k, left, k + 1, end)
            pull_row(charts, LEFT, i, TO_LEFT, i, cell_of(RIGHT, i, i), k, k + 1)
            pull_row(charts, RIGHT, i, RIGHT, k, to_right, k, end)
            weigh_back(charts, to_right, between, weights, i, k, marginals, products)
            if i > 0:
                to_left = cell_of(TO_LEFT, i, k)
                weigh_back(charts, to_left, between, weights, k, i, marginals, products)
            pull_row(charts, BETWEEN, i, LEFT, i + 1, cell_of(RIGHT, i, i), k, k + 1)


def kept_size(n):
    """Return the float64 numbers per item that items of up to n tokens may save, in whole vectors.

    n may be a symbolic size of torch.
    """
    return torch.sym_max(alone_size(n), saved_size_in_lanes(n, LANE_CHARTS))


@kernel
def sum_in_scaled_floats(start, stop, items, batch, along, operation, results):
    """Compute the sums like :func:`sum_over_projective_trees`, in scaled floats.

    All items must have tokens.
    """
    scores, lengths, (direction, max_arc_length, single_root) = batch
    log_partition, result, _, status = results
    first_node = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        if operation != LOG_PARTITION:
            result[b] = 0.0
        s = np.empty((n + 2, n + 2))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
        if status[b] != FEASIBLE:
            continue
        size = n + 1
        shift = subtract_best(s, n)
        weights = scaled_weights(s, size, along[b] if operation == HESSIAN_PRODUCT else s[:0])
        charts = _scaled_float_inside(weights, n, first_node)
        value, power = charts.values[RIGHT, 0, n], charts.powers[RIGHT, 0, n]
        if not value > 0.0:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = shift + math.log(value) + power * LN2
        if operation != LOG_PARTITION:
            spare = np.zeros((size, size))
            marginals = result[b] if operation == MARGINALS else spare
            products = spare if operation == MARGINALS else result[b]
            _scaled_float_outside(weights, n, first_node, charts, marginals, products)
            if operation == MARGINALS and not adds_up(marginals, n, np.empty(size), 1e-6):
                status[b] = TOO_LARGE


@kernel
def _draw(n, first_node, charts, powers, terms, stack, state, heads):
    """Draw one tree from the inside charts, from the longest span down.

    With a single root (``first_node`` = 1), row 0 of TO_RIGHT holds, for each token, the sum over
    its modifiers on the left times the weight of its root arc. ``powers`` are the exponents of the
    charts, or an empty array for charts of plain numbers.
    """
    root = 0
    if first_node == 1:
        root = draw_split(charts, powers, (TO_RIGHT, 0), (RIGHT, 0, n), 1, n + 1, terms, state)
    depth = put_sentence(stack, n, root, heads)
    while depth > 0:
        depth -= 1
        i, j = stack[3 * depth], stack[3 * depth + 1]
        if i == j:
            continue
        if stack[3 * depth + 2] == 1:
            k = draw_split(charts, powers, (TO_RIGHT, i), (RIGHT, 0, j), i + 1, j + 1, terms, state)
            heads[k] = i
            low, high = i, k
            put_span(stack, depth, k, j, 1)
        else:
            k = draw_split(charts, powers, (LEFT, i), (TO_LEFT, 0, j), i, j, terms, state)
            heads[k] = j
            low, high = k, j
            put_span(stack, depth, i, k, 0)
        split = draw_split(charts, powers, (RIGHT, low), (LEFT, 1, high), low, high, terms, state)
        put_span(stack, depth + 1, low, split, 1)
        put_span(stack, depth + 2, split + 1, high, 0)
        depth += 3


@kernel
def sample_projective_trees(start, stop, batch, seeds, samples, status):
    """Write the heads of exact samples to ``samples`` (K, B, N+1), −1 for node 0 and padding.

    Items whose sums lose precision in plain float64 get the status UNSOLVED.
    """
    scores, lengths, (direction, max_arc_length, single_root) = batch
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    side, width = longest + 2, chart_width(longest)
    s = np.empty((side, side))
    column = np.empty((2, side))
    record = aligned_empty(6 * side * width)
    stack = np.empty(6 * side, np.int64)
    state = np.empty(1, np.uint64)
    first_node = 1 if single_root else 0
    for b in range(start, stop):
        n = lengths[b]
        samples[:, b] = -1
        if n == 0:
            continue
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
        if status[b] != FEASIBLE:
            continue
        area, shape = (n + 2) * chart_width(n), (n + 2, chart_width(n))
        w = record[:area].reshape(shape)
        charts = record[area : 6 * area].reshape((5, *shape))
        shift, partition = inside_by_columns(s, n, first_node, w, column, charts)
        if shift == -np.inf or not partition > 0.0:
            status[b] = INFEASIBLE if shift == -np.inf else UNSOLVED
            continue
        roots = n if single_root else 0
        for r in range(1, roots + 1):
            charts[TO_RIGHT, 0, r] = charts[LEFT, 1, r] * w[0, r]
        state[0] = seeds[b]
        for k in range(len(samples)):
            _draw(n, first_node, charts, charts[:0], column[0], stack, state, samples[k, b])


@kernel
def sample_in_scaled_floats(start, stop, items, batch, seeds, samples, status):
    """Draw samples like :func:`sample_projective_trees`, in scaled floats.

    All items must have tokens.
    """
    scores, lengths, (direction, max_arc_length, single_root) = batch
    state = np.empty(1, np.uint64)
    first_node = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        s, stack = np.empty((n + 2, n + 2)), np.empty(6 * (n + 2), np.int64)
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, s)
        if status[b] != FEASIBLE:
            continue
        subtract_best(s, n)
        charts = _scaled_float_inside(scaled_weights(s, n + 1, s[:0]), n, first_node)
        if not charts.values[RIGHT, 0, n] > 0.0:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for k in range(len(samples)):
            _draw(n, first_node, charts.values, charts.powers, s[0], stack, state, samples[k, b])


@kernel
def best_projective_trees(start, stop, batch, heads, status):
    """Write the heads of the best trees to ``heads`` (B, N+1), −1 for node 0 and padding."""
    scores, lengths, (direction, max_arc_length, single_root) = batch
    longest = 1
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    flat = np.empty((LANES, (longest + 1) ** 2 + LANES))
    integers = np.empty(integer_workspace_size(longest), np.int32)
    floats = aligned_empty(float_workspace_size(longest))
    charts = charts_of_trees(longest if stop - start > 1 and longest <= LONGEST else 0)
    trees = np.empty((LANES, longest + 1), np.int32)
    items, sizes = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    rows = np.empty((2, LANES), np.int64)
    solved = np.zeros(LANES, np.bool_)
    for begin in range(start, stop, LANES):
        for lane in range(LANES):
            b = begin + lane
            items[lane] = sizes[lane] = -1
            if b >= stop:
                continue
            s = flat[lane, : (lengths[b] + 1) ** 2].reshape((lengths[b] + 1, lengths[b] + 1))
            status[b] = read_arc_scores(scores[b], lengths[b], direction, max_arc_length, s)
            if status[b] == FEASIBLE:
                items[lane], sizes[lane] = b, lengths[b]
        length = group_length(items, lengths) if longest <= LONGEST else 0
        if length > 0:
            set_scores(charts, flat, sizes, length, rows)
            best_trees_in_lanes(sizes, length, single_root, charts, trees, integers, solved)
        for lane in range(LANES):
            b, n = begin + lane, sizes[lane]
            if b >= stop:
                continue
            if length == 0 and n >= 0:
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
    sample_unsolved=sample_in_scaled_floats,
    best_shape=lambda shape: tuple(shape[:2]),
    best_cost=lambda n: 400 + 20 * n + 0.06 * n**3,
    total_cost=lambda n: 300 + 1.5 * n**2 + 0.14 * n**3,
    kept_size=lambda shape: kept_size(shape[1] - 1),
    fallback=sum_in_scaled_floats,
    lanes=sum_in_lanes,
    group=group_size,
    device=GpuKernels("projective_tree"),
)
