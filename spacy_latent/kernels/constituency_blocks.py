"""Binary constituency trees with a thread for each span, see kernels.blocks and
kernels.constituency. Charts as in kernels.inside_outside_blocks, ``(N, N)``, [length − 1, first
word]."""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.blocks import Blocks, make_largest_sum, make_log_add, make_log_sum
from spacy_latent.kernels.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.status import (
    FEASIBLE,
    INFEASIBLE,
    NOT_FINITE,
    TOO_LARGE,
    keeps_no_digit,
)


def make_read_spans(jit):
    @jit
    def read_spans(item, thread, threads, scores, n, status):
        """Report what is not finite. RETURNS: the sum of the words' scores."""
        for i in range(thread, n, threads):
            for j in range(i, n):
                if not scores[item, i, j] < np.inf:
                    status[item] = NOT_FINITE
        words = 0.0
        for i in range(n):
            words += scores[item, i, i]
        return words

    return read_spans


def make_best_constituency_tree(jit, sync):
    largest_sum, read_spans = make_largest_sum(jit), make_read_spans(jit)

    @jit
    def trace(item, n, side, room, spans):
        """Write the spans of the best tree."""
        splits, stack = side * side, 2 * side * side
        room[stack], room[stack + 1] = 0, n - 1
        depth, count = 1, 0
        while depth > 0:
            depth -= 1
            entry = stack + 2 * depth
            i, j = int(room[entry]), int(room[entry + 1])
            spans[item, count, 0], spans[item, count, 1] = i, j
            count += 1
            k = int(room[splits + (j - i) * side + i])
            if k > i:
                room[entry], room[entry + 1] = i, k
                entry += 2
                depth += 1
            if k + 1 < j:
                room[entry], room[entry + 1] = k + 1, j
                depth += 1

    @jit
    def best_constituency_tree(item, thread, threads, room, scores, lengths, options, best, status):
        """room: the best of each span, where it is split, and spans to open."""
        n, side = lengths[item], scores.shape[1]
        area = side * side
        words = read_spans(item, thread, threads, scores, n, status)
        for i in range(thread, n, threads):
            room[i] = 0.0
        sync()
        if status[item] != FEASIBLE or n == 0:
            return
        # Of one word, nothing else is waited for before the first thread may report something.
        sync()
        for width in range(1, n):
            for i in range(thread, n - width, threads):
                cell, down = width * side + i, (width - 1) * side + i + 1
                top, k = largest_sum(room, i, side, down, 1 - side, width)
                room[cell] = top + scores[item, i, i + width]
                room[area + cell] = i + k
            sync()
        if thread > 0:
            return
        if words == -np.inf or room[(n - 1) * side] == -np.inf:
            status[item] = INFEASIBLE
        elif n > 1:
            trace(item, n, side, room, best)

    return best_constituency_tree


def make_sum_over_constituency_trees(jit, sync):
    read_spans = make_read_spans(jit)
    log_sum, log_add = make_log_sum(jit), make_log_add(jit)
    lost = jit(keeps_no_digit)

    @jit
    def span(scores, along, item, i, j, center, change):
        """The score of a span less that of all trees' spans, and its derivative."""
        score = float(scores[item, i, j])
        known = change > 0 and score > -np.inf
        return score - center, float(along[item, i, j]) if known else 0.0

    @jit
    def sum_over_constituency_trees(
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
        """room: logarithms of the sums of each span, and of its gradient times its weight; their
        derivatives where the operation is HESSIAN_PRODUCT; the largest score of the spans from each
        word."""
        n, side = lengths[item], scores.shape[1]
        outer = side * side
        change = 2 * outer if operation == HESSIAN_PRODUCT else 0
        top = 2 * outer + change
        words = read_spans(item, thread, threads, scores, n, status)
        for i in range(thread, n, threads):
            largest = -np.inf
            for j in range(i + 1, n):
                largest = scores[item, i, j] if scores[item, i, j] > largest else largest
            room[top + i] = largest
            room[i] = 0.0
            room[i + change] = 0.0
        sync()
        if status[item] != FEASIBLE or n == 0:
            return
        center = -np.inf
        for i in range(n):
            center = room[top + i] if room[top + i] > center else center
        center = center if center > -np.inf else 0.0

        for width in range(1, n):
            for i in range(thread, n - width, threads):
                cell, down = width * side + i, (width - 1) * side + i + 1
                value, d = log_sum(room, change, i, side, down, 1 - side, width)
                s, ds = span(scores, along, item, i, i + width, center, change)
                room[cell] = value + s
                if change > 0:
                    room[cell + change] = d + ds
            sync()
        total, d_total = room[(n - 1) * side], room[(n - 1) * side + change]
        if total == -np.inf or words == -np.inf:
            # Others may still be reading the status.
            sync()
            if thread == 0:
                status[item] = INFEASIBLE
            return
        if thread == 0:
            log_partition[item] = total + (n - 1) * center + words
            if lost(total, n):
                status[item] = TOO_LARGE
        if operation == LOG_PARTITION:
            return

        if operation == MARGINALS:
            for i in range(thread, n, threads):
                result[item, i, i] = 1.0
        for width in range(n - 1, 0, -1):
            for i in range(thread, n - width, threads):
                j, cell = i + width, width * side + i
                wider = outer + cell + side
                a, da = log_sum(room, change, wider, side, j + 1, side, n - 1 - j)
                b, db = log_sum(room, change, wider - 1, side - 1, i - 1, side - 1, i)
                value, d = log_add(a, da, b, db)
                if width == n - 1:
                    value, d = -total, -d_total
                share = math.exp(value + room[cell])
                if operation == HESSIAN_PRODUCT:
                    share *= d + room[cell + change]
                result[item, i, j] = share
                s, ds = span(scores, along, item, i, j, center, change)
                room[outer + cell] = value + s
                if change > 0:
                    room[outer + cell + change] = d + ds
            sync()

    return sum_over_constituency_trees


BLOCKS = Blocks(
    best=make_best_constituency_tree,
    total=make_sum_over_constituency_trees,
    room=lambda shape, operation: (
        (4 if operation == HESSIAN_PRODUCT else 2) * (shape[1] ** 2 + shape[1])
    ),
    threads=lambda shape, operation: shape[1],
)
