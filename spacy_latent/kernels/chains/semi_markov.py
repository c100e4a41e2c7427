"""Sequences of labelled segments: semi-Markov chains (Sarawagi and Cohen 2004), O(n·L·K + n·K²).

An item is one array ``(N·L + K + 2, K)``. Its rows are the scores of segments, [first position · L
+ length − 1, label], then transitions, [previous label, label], then the scores of the first label
and of the last label. Its marginals are the expected uses of each entry.

Sequences are the paths of a graph whose nodes are the boundaries between positions. ``begin[i, k]``
belongs to segments of label k that begin at position i, and ``end[j, k]`` to segments that end
before position j. Sums are logarithms, relative to the best score up to each boundary. This offset
is the same for all sequences, and keeps the logarithms small even if scores and their sums are
large.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.autograd.families import Family
from spacy_latent.kernels.chains.best_chains import (
    best_step,
    insert,
    k_best_last,
    k_best_step,
    largest,
    longest_of,
    previous_of,
    table_of,
)
from spacy_latent.kernels.chains.chain_logarithms import (
    log_backward_step,
    log_forward_step,
    log_sum,
)
from spacy_latent.kernels.core.compilation import FUSED, kernel
from spacy_latent.kernels.core.draws import choose, uniform
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, LARGE, NOT_FINITE, TOO_LARGE
from spacy_latent.kernels.simd.exponential import exponential
from spacy_latent.kernels.simd.vector import LANES, scan


class Sums(NamedTuple):
    """Logarithms of the sums over the ways to each node and from it, ``(N + 1, K)``.

    Attributes:
        level: ``(N + 1,)``, the number subtracted at each boundary.
        begin, end: forward sums.
        begin_after, end_after: backward sums.
    """

    level: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    begin_after: np.ndarray
    end_after: np.ndarray


@kernel
def _split(item, longest):
    """Return segments ``(N, L, K)``, transitions, and scores of the first and the last label."""
    rows, labels = item.shape
    count = rows - labels - 2
    segments = item[:count].reshape((count // longest, longest, labels))
    return segments, item[count : count + labels], item[rows - 2], item[rows - 1]


@kernel
def _status(item, n, longest):
    """Return NOT_FINITE if a score that is read is NaN or +inf, else FEASIBLE."""
    if n == 0:
        return FEASIBLE
    segments = _split(item, longest)[0]
    _, wrong = scan(item[len(item) - item.shape[1] - 2 :].reshape(-1))
    for i in range(n):
        _, not_finite = scan(segments[i, : min(longest, n - i)].reshape(-1))
        wrong |= not_finite
    return NOT_FINITE if wrong else FEASIBLE


@kernel
def _best(item, n, longest, table, begin, end):
    """Write the best scores up to the nodes begin[i, k] and end[j, k]."""
    segments, transitions, first, _ = _split(item, longest)
    labels = len(first)
    table[:] = transitions
    begin[0, :labels] = first
    for j in range(1, n + 1):
        totals = end[j]
        totals[:] = -np.inf
        for length in range(1, min(longest, j) + 1):
            source, row = begin[j - length], segments[j - length, length - 1]
            for k in range(labels):
                value = source[k] + row[k]
                totals[k] = value if value > totals[k] else totals[k]
        if j < n:
            best_step(totals, table, begin[j])


@kernel
def best_segments(start, stop, batch, codes, status):
    """Write the best segments as ``Family.best``.

    Codes are ``(B, N·L)``: the label of each segment, −1 if it is not chosen.
    """
    scores, lengths, (longest,) = batch
    positions, labels = longest_of(start, stop, lengths) + 1, scores.shape[2]
    begin, end = np.empty((positions, labels + LANES)), np.empty((positions, labels))
    last, table = np.empty(labels), table_of(labels)
    for b in range(start, stop):
        n = lengths[b]
        codes[b] = -1
        item = scores[b]
        status[b] = _status(item, n, longest)
        if n == 0 or status[b] != FEASIBLE:
            continue
        _best(item, n, longest, table, begin, end)
        segments, _, _, final = _split(item, longest)
        for k in range(labels):
            last[k] = end[n, k] + final[k]
        label = largest(last)
        if last[label] == -np.inf:
            status[b] = INFEASIBLE
            continue
        j = n
        while j > 0:
            length = 1
            while (
                begin[j - length, label] + segments[j - length, length - 1, label] != end[j, label]
            ):
                length += 1
            i = j - length
            codes[b, i * longest + length - 1] = label
            if i > 0:
                label = previous_of(end[i], table, label, 0.0, begin[i, label])
            j = i


@kernel(fastmath=FUSED)
def _log_sums(segments, nodes, at, step, count, level, top, totals):
    """Write logarithms of the sums over the segments with a boundary ``at``, for each label.

    Args:
        nodes: the sums at the other boundaries.
        step, count: the other boundaries are at + step, …, at + step · count.
        top: workspace.
    """
    labels = segments.shape[2]
    for k in range(labels):
        top[k] = -np.inf
        totals[k] = 0.0
    for length in range(1, count + 1):
        other = at + step * length
        i, j = min(at, other), max(at, other)
        source, row, shift = nodes[other], segments[i, length - 1], level[i] - level[j]
        for k in range(labels):
            value = source[k] + (row[k] + shift)
            top[k] = value if value > top[k] else top[k]
    for length in range(1, count + 1):
        other = at + step * length
        i, j = min(at, other), max(at, other)
        source, row, shift = nodes[other], segments[i, length - 1], level[i] - level[j]
        for k in range(labels):
            highest = top[k] if top[k] > -np.inf else 0.0
            totals[k] += exponential(source[k] + (row[k] + shift) - highest)
    for k in range(labels):
        totals[k] = top[k] + math.log(totals[k]) if top[k] > -np.inf else -np.inf


@kernel(fastmath=FUSED)
def log_forward(item, n, longest, level, begin, end, top):
    """Write logarithms of forward sums, less ``level`` at each boundary.

    The log-partition less level[n] is returned, −inf if there is no sequence.
    """
    segments, transitions, first, final = _split(item, longest)
    labels = len(first)
    for k in range(labels):
        begin[0, k] = first[k]
    for j in range(1, n + 1):
        _log_sums(segments, begin, j, -1, min(longest, j), level, top, end[j])
        if j < n:
            log_forward_step(end[j], transitions, top, begin[j])
    for k in range(labels):
        top[k] = end[n, k] + final[k]
    return log_sum(top[:labels])


@kernel(fastmath=FUSED)
def _log_backward(item, n, longest, level, begin, end, top):
    """Write logarithms of backward sums, with the arguments of :func:`log_forward`."""
    segments, transitions, _, final = _split(item, longest)
    for k in range(len(final)):
        end[n, k] = final[k]
    for i in range(n - 1, -1, -1):
        _log_sums(segments, end, i, 1, min(longest, n - i), level, top, begin[i])
        if i > 0:
            log_backward_step(begin[i], transitions, end[i])


@kernel
def _write_marginals(item, n, longest, total, sums, result):
    """Write the marginals; ``total`` is the log-partition less level[n]."""
    level, begin, end, begin_after, end_after = sums
    segments, transitions, first, final = _split(item, longest)
    of_segments, of_transitions, of_first, of_final = _split(result, longest)
    labels = len(first)
    for i in range(n):
        for length in range(1, min(longest, n - i) + 1):
            j = i + length
            row, target = segments[i, length - 1], of_segments[i, length - 1]
            shift = level[i] - level[j]
            for k in range(labels):
                weight = begin[i, k] + (row[k] + shift) + (end_after[j, k] - total)
                target[k] = exponential(weight)
    for i in range(1, n):
        for p in range(labels):
            base, row, target = end[i, p] - total, transitions[p], of_transitions[p]
            for k in range(labels):
                target[k] += exponential(base + row[k] + begin_after[i, k])
    for k in range(labels):
        of_first[k] = exponential(first[k] + begin_after[0, k] - total)
        of_final[k] = exponential(end[n, k] + final[k] - total)


@kernel
def _expect_before(item, n, longest, sums, along, mean):
    """Write the expected sums of ``along`` before each node, given the node.

    ``mean`` is ``(2, N + 1, K)``: [0] is for ``begin``, [1] for ``end``.
    """
    segments, transitions, first, _ = _split(item, longest)
    d_segments, d_transitions, d_first, _ = _split(along, longest)
    level, begin, end, labels = sums.level, sums.begin, sums.end, len(first)
    mean[:, : n + 1] = 0.0
    for k in range(labels):
        if first[k] > -np.inf:
            mean[0, 0, k] = d_first[k]
    for j in range(1, n + 1):
        for length in range(1, min(longest, j) + 1):
            i = j - length
            shift = level[i] - level[j]
            for k in range(labels):
                if end[j, k] > -np.inf:
                    weight = begin[i, k] + (segments[i, length - 1, k] + shift) - end[j, k]
                    share = exponential(weight)
                    if share > 0.0:
                        mean[1, j, k] += share * (mean[0, i, k] + d_segments[i, length - 1, k])
        for p in range(labels if j < n else 0):
            for k in range(labels):
                if begin[j, k] > -np.inf:
                    share = exponential(end[j, p] + transitions[p, k] - begin[j, k])
                    if share > 0.0:
                        mean[0, j, k] += share * (mean[1, j, p] + d_transitions[p, k])


@kernel
def _expect_after(item, n, longest, sums, along, rest):
    """Write the expected sums of ``along`` after each node, like :func:`_expect_before`."""
    segments, transitions, _, final = _split(item, longest)
    d_segments, d_transitions, _, d_final = _split(along, longest)
    level, _, _, begin_after, end_after = sums
    labels = len(final)
    rest[:, : n + 1] = 0.0
    for k in range(labels):
        if final[k] > -np.inf:
            rest[1, n, k] = d_final[k]
    for i in range(n - 1, -1, -1):
        for length in range(1, min(longest, n - i) + 1):
            j = i + length
            shift = level[i] - level[j]
            for k in range(labels):
                if begin_after[i, k] > -np.inf:
                    weight = end_after[j, k] + (segments[i, length - 1, k] + shift)
                    share = exponential(weight - begin_after[i, k])
                    if share > 0.0:
                        rest[0, i, k] += share * (rest[1, j, k] + d_segments[i, length - 1, k])
        for p in range(labels if i > 0 else 0):
            if end_after[i, p] > -np.inf:
                for k in range(labels):
                    share = exponential(transitions[p, k] + begin_after[i, k] - end_after[i, p])
                    if share > 0.0:
                        rest[1, i, p] += share * (rest[0, i, k] + d_transitions[p, k])


@kernel
def _write_product(item, n, longest, total, sums, along, result, spare):
    """Write the Hessian product; ``spare`` is a workspace ``(4, N + 1, K)``."""
    mean, rest = spare[:2], spare[2:]
    _expect_before(item, n, longest, sums, along, mean)
    _expect_after(item, n, longest, sums, along, rest)
    segments, transitions, first, final = _split(item, longest)
    d_segments, d_transitions, _, d_final = _split(along, longest)
    of_segments, of_transitions, of_first, of_final = _split(result, longest)
    (level, begin, end, begin_after, end_after), labels = sums, len(first)
    whole = 0.0
    for k in range(labels):
        share = exponential(end[n, k] + final[k] - total)
        if share > 0.0:
            whole += share * (mean[1, n, k] + d_final[k])
    for i in range(n):
        for length in range(1, min(longest, n - i) + 1):
            j = i + length
            shift = level[i] - level[j]
            for k in range(labels):
                weight = begin[i, k] + (segments[i, length - 1, k] + shift)
                share = exponential(weight + (end_after[j, k] - total))
                if share > 0.0:
                    change = mean[0, i, k] + d_segments[i, length - 1, k] + rest[1, j, k]
                    of_segments[i, length - 1, k] = share * (change - whole)
        for p in range(labels if i > 0 else 0):
            for k in range(labels):
                share = exponential(end[i, p] - total + transitions[p, k] + begin_after[i, k])
                if share > 0.0:
                    change = mean[1, i, p] + d_transitions[p, k] + rest[0, i, k]
                    of_transitions[p, k] += share * (change - whole)
    for k in range(labels):
        share = exponential(first[k] + begin_after[0, k] - total)
        if share > 0.0:
            of_first[k] = share * (mean[0, 0, k] + rest[0, 0, k] - whole)
        share = exponential(end[n, k] + final[k] - total)
        if share > 0.0:
            of_final[k] = share * (mean[1, n, k] + rest[1, n, k] - whole)


@kernel
def _levels(n, end, level):
    """Write the best score up to each boundary, after :func:`_best`; 0 if it cannot be reached."""
    level[0] = 0.0
    for j in range(1, n + 1):
        best = end[j].max()
        level[j] = best if best > -np.inf else 0.0


@kernel
def _covers(marginals, n, longest):
    """Return whether the expected number of covered positions is n, as without lost precision."""
    segments, _, _, _ = _split(marginals, longest)
    total = 0.0
    for i in range(n):
        for length in range(1, min(longest, n - i) + 1):
            for k in range(segments.shape[2]):
                total += length * segments[i, length - 1, k]
    return abs(total - n) < 1e-6 * n


@kernel
def sum_over_segments(start, stop, batch, along, operation, results):
    """Compute the sums over segments as ``Family.total`` of kernels.autograd.families."""
    scores, lengths, (longest,) = batch
    log_partition, result, _, status = results
    positions, labels = longest_of(start, stop, lengths) + 1, scores.shape[2]
    table, level, top = table_of(labels), np.empty(positions), np.empty(labels + LANES)
    begin, end = np.empty((positions, labels + LANES)), np.empty((positions, labels))
    after = np.empty((2, positions if operation != LOG_PARTITION else 0, labels))
    sums = Sums(level, begin, end, after[0], after[1])
    spare = np.empty((4, positions if operation == HESSIAN_PRODUCT else 0, labels))
    for b in range(start, stop):
        n = lengths[b]
        log_partition[b] = 0.0
        if operation != LOG_PARTITION:
            result[b] = 0.0
        item = scores[b]
        status[b] = _status(item, n, longest)
        if n == 0 or status[b] != FEASIBLE:
            continue
        _best(item, n, longest, table, begin, end)
        _levels(n, end, level)
        total = log_forward(item, n, longest, level, begin, end, top)
        log_partition[b] = total + level[n]
        if total == -np.inf:
            status[b] = INFEASIBLE
            continue
        if operation == LOG_PARTITION:
            continue
        _log_backward(item, n, longest, level, after[0], after[1], top)
        if operation == MARGINALS:
            _write_marginals(item, n, longest, total, sums, result[b])
            if abs(log_partition[b]) > LARGE and not _covers(result[b], n, longest):
                status[b] = TOO_LARGE
        else:
            _write_product(item, n, longest, total, sums, along[b], result[b], spare)


@kernel
def sample_segments(start, stop, batch, seeds, samples, status):
    """Draw samples as ``Family.sample``: codes as in best_segments, ``(S, B, N·L)``."""
    scores, lengths, (longest,) = batch
    positions, labels = longest_of(start, stop, lengths) + 1, scores.shape[2]
    table, level, top = table_of(labels), np.empty(positions), np.empty(labels + LANES)
    begin, end = np.empty((positions, labels + LANES)), np.empty((positions, labels))
    column = np.empty(max(labels, longest))
    for b in range(start, stop):
        n = lengths[b]
        samples[:, b] = -1
        item = scores[b]
        status[b] = _status(item, n, longest)
        if n == 0 or status[b] != FEASIBLE:
            continue
        _best(item, n, longest, table, begin, end)
        _levels(n, end, level)
        if log_forward(item, n, longest, level, begin, end, top) == -np.inf:
            status[b] = INFEASIBLE
            continue
        segments, transitions, _, final = _split(item, longest)
        state = seeds[b : b + 1].copy()
        for s in range(samples.shape[0]):
            for k in range(labels):
                column[k] = end[n, k] + final[k]
            label = choose(column, labels, uniform(state))
            j = n
            while True:
                count = min(longest, j)
                for length in range(1, count + 1):
                    i = j - length
                    row = segments[i, length - 1]
                    column[length - 1] = begin[i, label] + (row[label] + (level[i] - level[j]))
                length = choose(column, count, uniform(state)) + 1
                j -= length
                samples[s, b, j * longest + length - 1] = label
                if j == 0:
                    break
                for p in range(labels):
                    column[p] = end[j, p] + transitions[p, label]
                label = choose(column, labels, uniform(state))


@kernel
def k_best_segments(start, stop, batch, codes, totals, status):
    """Write the k best like best_chains.k_best_chains, with codes as in best_segments."""
    scores, lengths, (longest,) = batch
    positions, labels, count = longest_of(start, stop, lengths) + 1, scores.shape[2], len(codes)
    begin, end = np.empty((positions, labels, count)), np.empty((positions, labels, count))
    # Sources of the entries: length · k + rank, and previous label · k + rank.
    from_begin = np.empty((positions, labels, count), dtype=np.int64)
    from_end = np.empty((positions, labels, count), dtype=np.int64)
    best, places = np.empty(count), np.empty(count, dtype=np.int64)
    for b in range(start, stop):
        n = lengths[b]
        codes[:, b] = -1
        totals[:, b] = -np.inf
        status[b] = FEASIBLE
        if n == 0:
            totals[0, b] = 0.0
            continue
        item = scores[b]
        status[b] = _status(item, n, longest)
        if status[b] != FEASIBLE:
            continue
        segments, transitions, first, final = _split(item, longest)
        begin[0] = -np.inf
        begin[0, :, 0] = first
        for j in range(1, n + 1):
            end[j] = -np.inf
            from_begin[j] = -1
            for length in range(1, min(longest, j) + 1):
                i = j - length
                for k in range(labels):
                    score = segments[i, length - 1, k]
                    for rank in range(count):
                        value = begin[i, k, rank] + score
                        if not insert(value, length * count + rank, end[j, k], from_begin[j, k]):
                            break
            if j < n:
                k_best_step(end[j], transitions, begin[j], from_end[j])
        for k in range(labels):
            # end[n] is read nowhere else, so it may be changed.
            end[n, k] += final[k]
        k_best_last(end[n], best, places)
        if best[0] == -np.inf:
            status[b] = INFEASIBLE
            continue
        totals[:, b] = best
        for chosen in range(count):
            place = places[chosen]
            j = n if place >= 0 else 0
            while j > 0:
                label, rank = place // count, place % count
                origin = from_begin[j, label, rank]
                length, rank = origin // count, origin % count
                j -= length
                codes[chosen, b, j * longest + length - 1] = label
                place = from_end[j, label, rank] if j > 0 else -1


FAMILY = Family(
    name="SemiMarkov",
    best=best_segments,
    total=sum_over_segments,
    sample=sample_segments,
    best_shape=lambda shape: (shape[0], shape[1] - shape[2] - 2),
    # Measured with 8 labels and lengths up to 8, since costs depend on lengths alone.
    best_cost=lambda n: 500 + 200 * n,
    total_cost=lambda n: 1_000 + 600 * n,
)
