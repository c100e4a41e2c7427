"""Projective dependency trees with a thread for each span, see kernels.blocks, and for the charts
kernels.eisner and kernels.inside_outside.

Charts are ``(N+1, N+1)``, [length, left end]: spans of one length do not depend on one another, so
that they are done at once, and what neighbours read lies side by side. All ways to split a span, or
to be part of a wider one, are at constant distances.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.blocks import (
    Blocks,
    make_get,
    make_largest_sum,
    make_log_add,
    make_log_sum,
    make_put,
)
from spacy_latent.kernels.operations import BEST, HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.status import (
    FEASIBLE,
    INFEASIBLE,
    NOT_FINITE,
    TOO_LARGE,
    is_arc,
    keeps_no_digit,
)

# The first four of both. Of the best besides: where spans are split.
TO_RIGHT, TO_LEFT, RIGHT, LEFT, SPLIT, RIGHT_SPLIT, LEFT_SPLIT = range(7)
# Of sums: logarithms of gradients. Row 0 of the first, which has no spans: sums over the tokens on
# the left of the root's only child and its arc.
OUTER, OUTER_RIGHT, OUTER_LEFT = 4, 5, 6
CHARTS = 7


def make_arc_score(jit):
    allowed = jit(is_arc.py_func)

    @jit
    def arc_score(scores, item, head, modifier, options):
        """−inf where there is no arc. options: direction, max_arc_length, single_root."""
        if not allowed(head, modifier, options[0], options[1]):
            return -np.inf
        return float(scores[item, head, modifier])

    return arc_score


def make_best_projective_tree(jit, sync):
    arc_score, largest_sum = make_arc_score(jit), make_largest_sum(jit)

    @jit
    def trace(item, n, side, first, root, room, best):
        """Write the heads of the best tree. root: its only child, where first is 1."""
        area = side * side
        # Spans to open: their two ends, and whether the head is at the left (1) or the right (0).
        stack = CHARTS * area
        if first == 0:
            room[stack], room[stack + 1], room[stack + 2] = 0, n, 1
            depth = 1
        else:
            best[item, root] = 0
            room[stack], room[stack + 1], room[stack + 2] = 1, root, 0
            room[stack + 3], room[stack + 4], room[stack + 5] = root, n, 1
            depth = 2
        while depth > 0:
            depth -= 1
            entry = stack + 3 * depth
            i, j = int(room[entry]), int(room[entry + 1])
            if i == j:
                continue
            if room[entry + 2] > 0.0:
                k = int(room[RIGHT_SPLIT * area + (j - i) * side + i])
                best[item, k] = i
                low, high = i, k
                room[entry], room[entry + 1] = k, j
            else:
                k = int(room[LEFT_SPLIT * area + (j - i) * side + i])
                best[item, k] = j
                low, high = k, j
                room[entry], room[entry + 1] = i, k
            middle = int(room[SPLIT * area + (high - low) * side + low])
            room[entry + 3], room[entry + 4], room[entry + 5] = low, middle, 1
            room[entry + 6], room[entry + 7], room[entry + 8] = middle + 1, high, 0
            depth += 3

    @jit
    def best_projective_tree(item, thread, threads, room, scores, lengths, options, best, status):
        n, side, first = lengths[item], scores.shape[1], options[2]
        area = side * side
        to_right, to_left, right, left = 0, area, RIGHT * area, LEFT * area
        for cell in range(thread, (n + 1) * (n + 1), threads):
            if not arc_score(scores, item, cell // (n + 1), cell % (n + 1), options) < np.inf:
                status[item] = NOT_FINITE
        for i in range(thread, n + 1, threads):
            room[right + i] = 0.0
            room[left + i] = 0.0
        sync()
        if status[item] != FEASIBLE or n == 0:
            return
        for width in range(1, n + 1):
            for i in range(first + thread, n - width + 1, threads):
                cell, down, up = width * side + i, (width - 1) * side + i + 1, 1 - side
                reach, k = largest_sum(room, right + i, side, left + down, up, width)
                room[SPLIT * area + cell] = i + k
                room[to_right + cell] = reach + arc_score(scores, item, i, i + width, options)
                room[to_left + cell] = reach + arc_score(scores, item, i + width, i, options)
                top, k = largest_sum(room, to_right + side + i, side, right + down, up, width)
                room[right + cell] = top
                room[RIGHT_SPLIT * area + cell] = i + 1 + k
                top, k = largest_sum(room, left + i, side, to_left + cell, up, width)
                room[left + cell] = top
                room[LEFT_SPLIT * area + cell] = i + k
            sync()
        if thread > 0:
            return
        root, top = 0, room[right + n * side] if first == 0 else -np.inf
        for r in range(1, first * n + 1):
            value = room[left + (r - 1) * side + 1] + room[right + (n - r) * side + r]
            value += arc_score(scores, item, 0, r, options)
            if value > top:
                root, top = r, value
        if top == -np.inf:
            status[item] = INFEASIBLE
        else:
            trace(item, n, side, first, root, room, best)

    return best_projective_tree


def make_sum_over_projective_trees(jit, sync):
    arc_score = make_arc_score(jit)
    log_sum, log_add = make_log_sum(jit), make_log_add(jit)
    get, put, lost = make_get(jit), make_put(jit), jit(keeps_no_digit)

    @jit
    def arc(room, change, top, scores, along, item, head, modifier, options):
        """The score of an arc less the largest of its modifier, and its derivative."""
        score = arc_score(scores, item, head, modifier, options)
        if score == -np.inf:
            return score, 0.0
        derivative = float(along[item, head, modifier]) if change > 0 else 0.0
        return score - room[top + modifier], derivative

    @jit
    def write(result, item, head, modifier, value, derivative, operation):
        """The marginal of that logarithm, or its derivative."""
        share = math.exp(value)
        result[item, head, modifier] = share if operation == MARGINALS else share * derivative

    @jit
    def sum_over_projective_trees(
        item,
        thread,
        threads,
        room,
        scores,
        lengths,
        options,
        along,
        operation,
        log_partition,
        result,
        status,
    ):
        """room: the charts, their derivatives where the operation is HESSIAN_PRODUCT, and the
        largest score of each modifier."""
        n, side, first = lengths[item], scores.shape[1], options[2]
        area = side * side
        change = CHARTS * area if operation == HESSIAN_PRODUCT else 0
        top = CHARTS * area + change
        to_right, to_left, right, left = 0, area, RIGHT * area, LEFT * area
        outer, outer_right, outer_left = OUTER * area, OUTER_RIGHT * area, OUTER_LEFT * area
        for m in range(thread, n + 1, threads):
            largest = -np.inf
            for h in range(n + 1):
                score = arc_score(scores, item, h, m, options)
                if not score < np.inf:
                    status[item] = NOT_FINITE
                largest = score if score > largest else largest
            room[top + m] = largest if largest > -np.inf else 0.0
            put(room, change, right + m, 0.0, 0.0)
            put(room, change, left + m, 0.0, 0.0)
        sync()
        if status[item] != FEASIBLE or n == 0:
            return

        up = 1 - side
        for width in range(1, n + 1):
            for i in range(first + thread, n - width + 1, threads):
                j, cell, down = i + width, width * side + i, (width - 1) * side + i + 1
                reach, d = log_sum(room, change, right + i, side, left + down, up, width)
                s, ds = arc(room, change, top, scores, along, item, i, j, options)
                put(room, change, to_right + cell, reach + s, d + ds)
                s, ds = arc(room, change, top, scores, along, item, j, i, options)
                put(room, change, to_left + cell, reach + s, d + ds)
                value, d = log_sum(room, change, to_right + side + i, side, right + down, up, width)
                put(room, change, right + cell, value, d)
                value, d = log_sum(room, change, left + i, side, to_left + cell, up, width)
                put(room, change, left + cell, value, d)
            sync()
        total, d_total = get(room, change, right + n * side)
        if first > 0:
            for r in range(1 + thread, n + 1, threads):
                value, d = get(room, change, left + (r - 1) * side + 1)
                s, ds = arc(room, change, top, scores, along, item, 0, r, options)
                put(room, change, outer + r, value + s, d + ds)
            sync()
            total, d_total = log_sum(room, change, outer + 1, 1, right + (n - 1) * side + 1, up, n)
        if total == -np.inf:
            if thread == 0:
                status[item] = INFEASIBLE
            return
        if thread == 0:
            value = total
            for m in range(1, n + 1):
                value += room[top + m]
            log_partition[item] = value
            if lost(total, n):
                status[item] = TOO_LARGE
        if operation == LOG_PARTITION:
            return

        for r in range(1 + thread, first * n + 1, threads):
            value, d = get(room, change, right + (n - r) * side + r)
            other, d_other = get(room, change, outer + r)
            write(result, item, 0, r, value + other - total, d + d_other - d_total, operation)
        across = side - 1
        for width in range(n, 0, -1):
            for i in range(first + thread, n - width + 1, threads):
                j, cell, before = i + width, width * side + i, i - first
                wider = cell + side
                a, da = log_sum(room, change, outer + wider, side, left + j + 1, side, n - j)
                b, db = log_sum(
                    *(room, change, outer_right + wider - 1, across),
                    *(to_right + side + i - 1, across, before),
                )
                value, d = log_add(a, da, b, db)
                if first == 0 and width == n:
                    value, d = -total, -d_total
                elif first > 0 and j == n:
                    a, da = get(room, change, outer + i)
                    value, d = log_add(value, d, a - total, da - d_total)
                put(room, change, outer_right + cell, value, d)
                if i > 0:
                    a, da = log_sum(
                        *(room, change, outer + wider - 1, across),
                        *(right + i - 1, across, before),
                    )
                    b, db = log_sum(
                        *(room, change, outer_left + wider, side, to_left + side + j, side, n - j)
                    )
                    value, d = log_add(a, da, b, db)
                    if first > 0 and i == 1:
                        a, da = get(room, change, right + (n - j) * side + j)
                        s, ds = arc(room, change, top, scores, along, item, 0, j, options)
                        value, d = log_add(value, d, a + s - total, da + ds - d_total)
                    put(room, change, outer_left + cell, value, d)
                a, da = log_sum(room, change, outer_right + cell, side, right + j, side, n - j + 1)
                value, d = get(room, change, to_right + cell)
                write(result, item, i, j, a + value, da + d, operation)
                s, ds = arc(room, change, top, scores, along, item, i, j, options)
                a, da = a + s, da + ds
                if i > 0:
                    b, db = log_sum(room, change, outer_left + cell, across, left + i, across, i)
                    value, d = get(room, change, to_left + cell)
                    write(result, item, j, i, b + value, db + d, operation)
                    s, ds = arc(room, change, top, scores, along, item, j, i, options)
                    a, da = log_add(a, da, b + s, db + ds)
                put(room, change, outer + cell, a, da)
            sync()

    return sum_over_projective_trees


BLOCKS = Blocks(
    best=make_best_projective_tree,
    total=make_sum_over_projective_trees,
    room=lambda shape, operation: (
        (2 if operation == HESSIAN_PRODUCT else 1) * CHARTS * shape[1] ** 2
        + (1 if operation != BEST else 6) * (shape[1] + 1)
    ),
    threads=lambda shape, operation: shape[1],
)
