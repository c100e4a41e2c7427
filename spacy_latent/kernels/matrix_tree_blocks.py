"""Sums over spanning arborescences on logarithms, a thread for each arc, see kernels.blocks and
kernels.matrix_tree.log_domain, whose steps these are.

With a single root, a token that has no head but the root among those that are left must be the
root's child, and changes places with the one that is eliminated last. There is at most one: all
others have a head on the way from it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from spacy_latent.kernels.arborescence_blocks import make_best_arborescence, room_of
from spacy_latent.kernels.blocks import Blocks, make_get, make_log_add, make_log_sum, make_put
from spacy_latent.kernels.inside_outside_blocks import make_arc_score
from spacy_latent.kernels.matrix_tree_batched import sum_over_trees_of_a_batch
from spacy_latent.kernels.status import (
    FEASIBLE,
    INFEASIBLE,
    NOT_FINITE,
    TOO_LARGE,
    keeps_no_digit,
)


def make_sum_over_trees(jit, sync):
    arc_score = make_arc_score(jit)
    log_sum, log_add = make_log_sum(jit), make_log_add(jit)
    get, put, lost = make_get(jit), make_put(jit), jit(keeps_no_digit)

    @jit
    def swap(room, change, a, b):
        room[a], room[b] = room[b], room[a]
        if change > 0:
            room[a + change], room[b + change] = room[b + change], room[a + change]

    @jit
    def sum_over_trees(
        item,
        thread,
        threads,
        room,
        scores,
        lengths,
        options,
        along,
        what,
        log_partition,
        result,
        status,
    ):
        """room: log weights [modifier, head], logarithms of the gradients, the pivots, sums at one
        token, and a 0; their derivatives where what is 2; the largest score of each modifier, and
        the token at each place in the order of elimination."""
        n, side, first = lengths[item], scores.shape[1], options[2]
        g, pivots = side * side, 2 * side * side
        reach, zero = pivots + side, pivots + 2 * side
        change = zero + 1 if what > 1 else 0
        top, order = change + zero + 1, change + zero + 1 + side
        for m in range(thread, n + 1, threads):
            largest = -np.inf
            for h in range(n + 1):
                score = arc_score(scores, item, h, m, options)
                if not score < np.inf:
                    status[item] = NOT_FINITE
                largest = score if score > largest else largest
            largest = largest if largest > -np.inf else 0.0
            for h in range(n + 1):
                score = arc_score(scores, item, h, m, options)
                known = what > 1 and score > -np.inf
                derivative = float(along[item, h, m]) if known else 0.0
                put(room, change, m * side + h, score - largest, derivative)
            room[top + m] = largest
            room[order + m] = m
            put(room, change, g + m * side + m, -np.inf, 0.0)
        if thread == 0:
            put(room, change, zero, 0.0, 0.0)
        sync()
        if status[item] != FEASIBLE or n == 0:
            return

        total, lowest, swapped, k = 0.0, 0.0, False, n
        while k > 0:
            begin = first if k > 1 else 0
            row = k * side
            pivot, d_pivot = log_sum(room, change, row + begin, 1, zero, 0, k - begin)
            if pivot == -np.inf:
                if first == 0 or k == 1 or swapped:
                    # Others may still be reading the status.
                    sync()
                    if thread == 0:
                        status[item] = INFEASIBLE
                    return
                swapped = True
                # Who still sums the row finds −inf in either place.
                for i in range(thread, n + 1, threads):
                    swap(room, change, i * side + 1, i * side + k)
                sync()
                for i in range(thread, n + 1, threads):
                    swap(room, change, side + i, row + i)
                if thread == 0:
                    room[order + 1], room[order + k] = k, 1
                sync()
                continue
            total += pivot
            # With a single root, the root's arcs bring back what other pivots lose.
            lowest = pivot if pivot < lowest else lowest
            if thread == 0:
                put(room, change, pivots + k, pivot, d_pivot)
            for cell in range(thread, (k - 1) * k, threads):
                m, h = cell // k + 1, cell % k
                if h != m:
                    a, da = get(room, change, m * side + h)
                    b, db = get(room, change, m * side + k)
                    c, dc = get(room, change, row + h)
                    a, da = log_add(a, da, b + c - pivot, db + dc - d_pivot)
                    put(room, change, m * side + h, a, da)
            k -= 1
            sync()
        if thread == 0:
            if lost(lowest, 1):
                status[item] = TOO_LARGE
            for m in range(1, n + 1):
                total += room[top + m]
            log_partition[item] = total
        if what == 0:
            return

        for k in range(1, n + 1):
            begin = first if k > 1 else 0
            row = k * side
            pivot, d_pivot = get(room, change, pivots + k)
            for i in range(thread, 2 * k - 1, threads):
                if i < k:
                    value, d = log_sum(room, change, side + k, side, g + side + i, side, k - 1)
                    put(room, change, reach + i, value, d)
                else:
                    m = i - k + 1
                    value, d = log_sum(room, change, row, 1, g + m * side, 1, k)
                    put(room, change, g + m * side + k, value - pivot, d - d_pivot)
            sync()
            mean, d_mean = 0.0, 0.0
            for h in range(k):
                share = math.exp(room[row + h] - pivot + room[reach + h])
                mean += share
                if change > 0 and share > 0.0:
                    d = room[row + h + change] - d_pivot + room[reach + h + change]
                    d_mean += share * d
            for h in range(thread, k, threads):
                value, d = get(room, change, reach + h)
                if h >= begin and value > 30.0:
                    # 1 − mean is lost beside e^30 but for its logarithm's last digits.
                    small = math.exp(-value)
                    d -= small * (d_mean + (1.0 - mean) * d)
                    value += math.log1p(small * (1.0 - mean))
                elif h >= begin:
                    own = math.exp(value)
                    rest = 1.0 - mean + own
                    if rest > 1e-300:
                        value, d = math.log(rest), (own * d - d_mean) / rest
                    else:
                        value, d = -np.inf, 0.0
                put(room, change, g + row + h, value - pivot, d - d_pivot)
            sync()

        for cell in range(thread, n * (n + 1), threads):
            a, b = cell // (n + 1) + 1, cell % (n + 1)
            m, h = int(room[order + a]), int(room[order + b])
            score = arc_score(scores, item, h, m, options)
            value, d = get(room, change, g + a * side + b)
            if score > -np.inf and value > -np.inf:
                share = math.exp(score - room[top + m] + value)
                result[item, h, m] = share * (d + along[item, h, m]) if what > 1 else share

    return sum_over_trees


def _room(shape: torch.Size, what: int) -> int:
    side = shape[1]
    if what < 0:
        return room_of(side)
    return (2 if what > 1 else 1) * (2 * side * (side + 1) + 1) + 2 * side


BLOCKS = Blocks(
    best=make_best_arborescence,
    total=make_sum_over_trees,
    room=_room,
    threads=lambda shape, what: shape[1] if what < 0 else shape[1] ** 2,
    batched=sum_over_trees_of_a_batch,
    # On an H200, the marginals of 256 sentences of 64 words took the kernel 3.3 ms and an inverse
    # alone 1.2, those of 32 words 1.0 and 0.5. The bound of what an inverse is off by, and the
    # kernel for what is left, are some forty launches more: about half a millisecond.
    batched_from=64,
)
