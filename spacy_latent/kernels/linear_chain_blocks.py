"""Linear chains with a thread for each tag, see kernels.blocks and kernels.linear_chain."""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.blocks import Blocks, make_log_sum
from spacy_latent.kernels.operations import HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE, LARGE, NOT_FINITE, TOO_LARGE


def make_best_chain(jit, sync):
    @jit
    def best_chain(item, thread, threads, room, scores, lengths, options, best, status):
        """room: the best of each tag at two positions, and from where it came at all."""
        n, tags = lengths[item], scores.shape[3]
        if n == 0:
            return
        for t in range(thread, tags, threads):
            room[t] = scores[item, 0, 0, t]
            if not room[t] < np.inf:
                status[item] = NOT_FINITE
        sync()
        for i in range(1, n):
            before, current = (i - 1) % 2 * tags, i % 2 * tags
            for t in range(thread, tags, threads):
                top, chosen = -np.inf, 0
                for p in range(tags):
                    score = scores[item, i, p, t]
                    if not score < np.inf:
                        status[item] = NOT_FINITE
                    value = room[before + p] + score
                    if value > top:
                        top, chosen = value, p
                room[current + t] = top
                room[(i + 2) * tags + t] = chosen
            sync()
        if thread > 0 or status[item] != FEASIBLE:
            return
        last, tag = (n - 1) % 2 * tags, 0
        for t in range(1, tags):
            tag = t if room[last + t] > room[last + tag] else tag
        if room[last + tag] == -np.inf:
            status[item] = INFEASIBLE
            return
        for i in range(n - 1, -1, -1):
            best[item, i] = tag
            if i > 0:
                tag = int(room[(i + 2) * tags + tag])

    return best_chain


def make_sum_over_chains(jit, sync):
    log_sum = make_log_sum(jit)

    @jit
    def finite_largest(room, place, count):
        """The largest of a row; 0 where it is −inf."""
        top = -np.inf
        for t in range(count):
            top = room[place + t] if room[place + t] > top else top
        return top if top > -np.inf else 0.0

    @jit
    def product(item, thread, threads, room, marginals, n, along, result):
        """As kernels.linear_chain.product_with_hessian. room: the mean of each tag at each
        position, the weights of the tags, and what is expected after two positions."""
        tags = marginals.shape[3]
        weights = marginals.shape[1] * tags
        for t in range(thread, tags, threads):
            share = marginals[item, 0, 0, t]
            room[t] = along[item, 0, 0, t] if share > 0.0 else 0.0
            room[weights + t] = share
        sync()
        for i in range(1, n):
            before, current = (i - 1) * tags, i * tags
            for t in range(thread, tags, threads):
                value, mass = 0.0, 0.0
                for p in range(tags):
                    share = float(marginals[item, i, p, t])
                    if share > 0.0:
                        value += share * (room[before + p] + along[item, i, p, t])
                        mass += share
                room[current + t] = value / mass if mass > 0.0 else 0.0
                room[weights + t] = mass
            sync()
        mean, mass = 0.0, 0.0
        for t in range(tags):
            mean += room[weights + t] * room[(n - 1) * tags + t]
            mass += room[weights + t]
        mean /= mass
        rest = weights + tags
        for t in range(thread, tags, threads):
            room[rest + (n - 1) % 2 * tags + t] = -mean
        sync()
        for i in range(n - 1, 0, -1):
            after, current = rest + i % 2 * tags, rest + (i - 1) % 2 * tags
            for p in range(thread, tags, threads):
                value, mass = 0.0, 0.0
                for t in range(tags):
                    share = float(marginals[item, i, p, t])
                    if share > 0.0:
                        inner = share * (along[item, i, p, t] + room[after + t])
                        result[item, i, p, t] = inner + share * room[(i - 1) * tags + p]
                        value += inner
                        mass += share
                room[current + p] = value / mass if mass > 0.0 else 0.0
            sync()
        for t in range(thread, tags, threads):
            share = float(marginals[item, 0, 0, t])
            if share > 0.0:
                result[item, 0, 0, t] = share * (along[item, 0, 0, t] + room[rest + t])

    @jit
    def sum_over_chains(
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
        """room: sums forward at each position, centred on the largest at the one before; and sums
        backward at two."""
        n, tags = lengths[item], scores.shape[3]
        if n == 0:
            return
        if operation == HESSIAN_PRODUCT:
            product(item, thread, threads, room, scores, n, along, result)
            return
        backward = scores.shape[1] * tags
        for t in range(thread, tags, threads):
            room[t] = scores[item, 0, 0, t]
            room[backward + (n - 1) % 2 * tags + t] = 0.0
            if not room[t] < np.inf:
                status[item] = NOT_FINITE
        sync()
        # Where no score is far above 0, what the likely sequences differ in is lost only if all of
        # them have one that is far below.
        shift, lost = 0.0, False
        for i in range(1, n):
            before, current = (i - 1) * tags, i * tags
            center = finite_largest(room, before, tags)
            lost = lost or (i > 1 and center < -LARGE)
            shift += center
            for t in range(thread, tags, threads):
                top, whole = -np.inf, 0.0
                for p in range(tags):
                    score = scores[item, i, p, t]
                    if not score < np.inf:
                        status[item] = NOT_FINITE
                    lost = lost or score > LARGE
                    value = room[before + p] - center + score
                    top = value if value > top else top
                if top > -np.inf:
                    for p in range(tags):
                        whole += math.exp(room[before + p] - center + scores[item, i, p, t] - top)
                    top += math.log(whole)
                room[current + t] = top
            sync()
        if status[item] != FEASIBLE:
            return
        norm = log_sum(room, 0, (n - 1) * tags, 1, backward + (n - 1) % 2 * tags, 1, tags)[0]
        if norm == -np.inf:
            # Others may still be reading the status.
            sync()
            if thread == 0:
                status[item] = INFEASIBLE
            return
        # Others may still be reading the status.
        sync()
        if lost or (n > 1 and norm < -LARGE):
            status[item] = TOO_LARGE
        if thread == 0:
            log_partition[item] = shift + norm
        if operation == LOG_PARTITION:
            return
        for i in range(n - 1, 0, -1):
            before, after = (i - 1) * tags, backward + i % 2 * tags
            norm = log_sum(room, 0, i * tags, 1, after, 1, tags)[0]
            center = norm + finite_largest(room, before, tags)
            for cell in range(thread, tags * tags, threads):
                p, t = cell // tags, cell % tags
                score = room[before + p] + scores[item, i, p, t]
                result[item, i, p, t] = math.exp(score + room[after + t] - center)
            center = finite_largest(room, after, tags)
            for p in range(thread, tags, threads):
                top, whole = -np.inf, 0.0
                for t in range(tags):
                    value = scores[item, i, p, t] + (room[after + t] - center)
                    top = value if value > top else top
                if top > -np.inf:
                    for t in range(tags):
                        value = scores[item, i, p, t] + (room[after + t] - center)
                        whole += math.exp(value - top)
                    top += math.log(whole)
                room[backward + (i - 1) % 2 * tags + p] = top
            sync()
        norm = log_sum(room, 0, 0, 1, backward, 1, tags)[0]
        for t in range(thread, tags, threads):
            result[item, 0, 0, t] = math.exp(room[t] + room[backward + t] - norm)

    return sum_over_chains


BLOCKS = Blocks(
    best=make_best_chain,
    total=make_sum_over_chains,
    room=lambda shape, operation: (shape[1] + 3) * shape[3],
    threads=lambda shape, operation: max(shape[3], min(shape[3] ** 2, 128)),
)
