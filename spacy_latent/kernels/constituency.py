"""Binary constituency trees: CKY and inside-outside (Baker 1979), O(n³) time and O(n²) memory, in
float64.

Charts are ``(n, width)``, [first word, last word]. Rows are filled from the last to the first, and
a finished span is pushed into all longer ones of its row at once. Words themselves are in every
tree: their scores are added at the end. Weights of the other spans are exp(score − c) with a c that
keeps the sum over trees near 1; where what under- or overflowed could matter, the sentence is done
again on logarithms.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from spacy_latent.kernels.exponential import exponential
from spacy_latent.kernels.operators import Family
from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE, NOT_FINITE
from spacy_latent.kernels.vector import LANES, fused_loop

FAST = {"reassoc", "contract", "nsz"}
HEADER = 8
# Weights, sums over splits, inside, outside, outside times weight.
WEIGHT, SPLITS, INSIDE, OUTSIDE, PASSED = range(5)
LOG_SMALLEST = -600.0

# Over the last word of spans that start at i and are split after k.
_push = fused_loop([("add", 0, ((0, 1),))])
_push_best = fused_loop([("max", 0, ((0, 1),))])
_pull = fused_loop([("dot", 0, ((0, 1),)), ("add", 2, ((0, 0),))])
_push_tangent = fused_loop([("add", 0, ((0, 1), (1, 2)))])
_pull_tangent = fused_loop([("dot", 0, ((0, 2), (1, 3))), ("add", 4, ((0, 0), (1, 1)))])


@njit(cache=True, nogil=True, fastmath=False)
def _width(n):
    """Numbers in a row of a chart: whole vectors."""
    return (n + LANES - 1) // LANES * LANES


@njit(cache=True, nogil=True, fastmath=False)
def _read(scores, n, s):
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


@njit(cache=True, nogil=True, fastmath=FAST)
def _inside(s, n, center, charts):
    """Fill the first three charts. RETURNS: the sum over trees."""
    weights, splits, inside = charts[WEIGHT], charts[SPLITS], charts[INSIDE]
    splits[:] = 0.0
    inside[:] = 0.0
    for i in range(n):
        source, target = s[i], weights[i]
        for j in range(n):
            target[j] = exponential(source[j] - center) if j > i else 0.0
    for i in range(n - 1, -1, -1):
        own, row, weight = splits[i], inside[i], weights[i]
        row[i] = 1.0
        for k in range(i, n - 1):
            if k > i:
                row[k] = own[k] * weight[k]
            _push((own, inside[k + 1]), (row[k],), (k + 1) // LANES * LANES, n)
        if i < n - 1:
            row[n - 1] = own[n - 1] * weight[n - 1]
    return inside[0, n - 1]


@njit(cache=True, nogil=True, fastmath=FAST)
def _outside(n, charts):
    """Fill the last two charts. RETURNS: the largest number in them."""
    weights, inside = charts[WEIGHT], charts[INSIDE]
    outside, passed = charts[OUTSIDE], charts[PASSED]
    outside[:] = 0.0
    passed[:] = 0.0
    outside[0, n - 1] = 1.0
    largest = 0.0
    for i in range(n - 1):
        row, down, weight = outside[i], passed[i], weights[i]
        for k in range(n - 1, i - 1, -1):
            value = row[k]
            if k < n - 1:
                _, pulled = _pull(
                    (down, inside[k + 1], outside[k + 1]),
                    (inside[i, k],),
                    (k + 1) // LANES * LANES,
                    n,
                )
                value += pulled
                row[k] = value
            largest = max(largest, value)
            down[k] = value * weight[k]
    return largest


@njit(cache=True, nogil=True, fastmath=FAST)
def _tangent(n, charts, dcharts):
    """Directional derivatives of all charts along that of the weights, dcharts[WEIGHT]."""
    weights, splits, inside = charts[WEIGHT], charts[SPLITS], charts[INSIDE]
    outside, passed = charts[OUTSIDE], charts[PASSED]
    dweights, dinside = dcharts[WEIGHT], dcharts[INSIDE]
    dcharts[SPLITS] = 0.0
    dinside[:] = 0.0
    for i in range(n - 1, -1, -1):
        own, row = dcharts[SPLITS, i], dinside[i]
        for k in range(i, n - 1):
            if k > i:
                row[k] = own[k] * weights[i, k] + splits[i, k] * dweights[i, k]
            _push_tangent(
                (own, inside[k + 1], dinside[k + 1]),
                (row[k], inside[i, k]),
                (k + 1) // LANES * LANES,
                n,
            )
        if i < n - 1:
            row[n - 1] = own[n - 1] * weights[i, n - 1] + splits[i, n - 1] * dweights[i, n - 1]
    dcharts[OUTSIDE] = 0.0
    dcharts[PASSED] = 0.0
    for i in range(n - 1):
        row, down = dcharts[OUTSIDE, i], dcharts[PASSED, i]
        for k in range(n - 1, i - 1, -1):
            if k < n - 1:
                _, pulled = _pull_tangent(
                    (
                        *(down, passed[i], inside[k + 1]),
                        *(dinside[k + 1], dcharts[OUTSIDE, k + 1]),
                    ),
                    (inside[i, k], dinside[i, k]),
                    (k + 1) // LANES * LANES,
                    n,
                )
                row[k] += pulled
            down[k] = row[k] * weights[i, k] + outside[i, k] * dweights[i, k]


@njit(cache=True, nogil=True, fastmath=False)
def _log_sum(a, b, da, db):
    """log Σ exp(a + b), and the mean of da + db under its terms."""
    top = -np.inf
    for k in range(len(a)):
        top = max(top, a[k] + b[k])
    if top == -np.inf:
        return -np.inf, 0.0
    total, mean = 0.0, 0.0
    for k in range(len(a)):
        term = math.exp(a[k] + b[k] - top)
        total += term
        mean += term * (da[k] + db[k])
    return top + math.log(total), mean / total


@njit(cache=True, nogil=True, fastmath=False)
def _log_inside(s, ds, n, inside, dinside, turned, dturned):
    """Inside on logarithms, words at 0, with directional derivatives; turned: [last, first]."""
    for i in range(n - 1, -1, -1):
        inside[i, i] = turned[i, i] = 0.0
        dinside[i, i] = dturned[i, i] = 0.0
        for j in range(i + 1, n):
            value, change = _log_sum(
                inside[i, i:j],
                turned[j, i + 1 : j + 1],
                dinside[i, i:j],
                dturned[j, i + 1 : j + 1],
            )
            inside[i, j] = turned[j, i] = value + s[i, j]
            dinside[i, j] = dturned[j, i] = change + ds[i, j]


@njit(cache=True, nogil=True, fastmath=False)
def _log_outside(s, ds, n, inside, dinside, turned, dturned, marginals, changes):
    """Marginals and their directional derivatives, from the widest span down: each gives its
    probability to the pairs of spans it may consist of, in proportion."""
    for i in range(n):
        for j in range(i, n):
            marginals[i, j] = 0.0
            changes[i, j] = 0.0
    marginals[0, n - 1] = 1.0
    for length in range(n - 1, 0, -1):
        for i in range(n - length):
            j = i + length
            q, dq = marginals[i, j], changes[i, j]
            if q == 0.0 and dq == 0.0:
                continue
            whole, dwhole = inside[i, j] - s[i, j], dinside[i, j] - ds[i, j]
            for k in range(i, j):
                share = math.exp(inside[i, k] + turned[j, k + 1] - whole)
                if share > 0.0:
                    given = q * share
                    change = dq * share
                    change += given * (dinside[i, k] + dturned[j, k + 1] - dwhole)
                    marginals[i, k] += given
                    marginals[k + 1, j] += given
                    changes[i, k] += change
                    changes[k + 1, j] += change


@njit(cache=True, nogil=True, fastmath=False)
def kept_size(n):
    """Float64 numbers that an item of n words may keep: whether it does and the sum over trees in
    the header, then the charts."""
    return HEADER + 5 * n * _width(n)


@njit(cache=True, nogil=True, fastmath=False)
def sum_over_constituency_trees(
    start, stop, scores, lengths, along, what, log_partition, result, kept, status
):
    """``Family.total`` of kernels.operators; scores ``(B, N, N)``, [first, last]."""
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    spare = np.empty(kept_size(longest) if kept.shape[1] == 0 else 0)
    tangents = np.empty(5 * longest * _width(longest) if what == 2 else 0)
    for b in range(start, stop):
        n = lengths[b]
        log_partition[b] = 0.0
        if what > 0:
            result[b] = 0.0
        status[b] = FEASIBLE
        if n == 0:
            continue
        own = kept[b] if kept.shape[1] > 0 else spare
        shape = (5, n, _width(n))
        area = 5 * n * _width(n)
        charts = own[HEADER : HEADER + area].reshape(shape)
        known = what == 2 and kept.shape[1] > 0 and own[0] == 1.0
        words = 0.0
        if not known:
            own[0] = 0.0
            status[b], words = _read(scores[b], n, s)
            if status[b] != FEASIBLE:
                continue
        if n == 1:
            log_partition[b] = words
            if what == 1:
                result[b, 0, 0] = 1.0
            continue
        if not known:
            low, high = np.inf, -np.inf
            for i in range(n):
                for j in range(i + 1, n):
                    high = max(high, s[i, j])
                    if s[i, j] > -np.inf:
                        low = min(low, s[i, j])
            if high == -np.inf:
                status[b] = INFEASIBLE
                continue
            # About 4 per word is how the number of trees grows.
            center = high + 1.3
            total = _inside(s, n, center, charts)
            if 0.0 < total < 1e-50:
                center += math.log(total) / (n - 1)
                total = _inside(s, n, center, charts)
            safe = (n - 1) * (low - center) > LOG_SMALLEST
            if 0.0 < total < 1e300:
                largest = _outside(n, charts) if what > 0 or not safe else 1.0
                # A span that underflowed is worth at most 1e−308 times what is outside of it.
                if safe or math.log(max(largest, 1.0)) - math.log(total) < 600.0:
                    own[0], own[1] = 1.0, total
                    log_partition[b] = math.log(total) + (n - 1) * center + words
                    known = largest < 1e300
        if known:
            total = own[1]
            if what == 1:
                for i in range(n):
                    result[b, i, i] = 1.0
                    for j in range(i + 1, n):
                        result[b, i, j] = charts[INSIDE, i, j] * charts[OUTSIDE, i, j] / total
            elif what == 2:
                dcharts = tangents[:area].reshape(shape)
                for i in range(n):
                    for j in range(_width(n)):
                        dcharts[WEIGHT, i, j] = 0.0
                    for j in range(i + 1, n):
                        weight = charts[WEIGHT, i, j]
                        dcharts[WEIGHT, i, j] = weight * along[b, i, j] if weight > 0.0 else 0.0
                _tangent(n, charts, dcharts)
                relative = dcharts[INSIDE, 0, n - 1] / total
                for i in range(n):
                    for j in range(i + 1, n):
                        inner, outer = charts[INSIDE, i, j], charts[OUTSIDE, i, j]
                        value = dcharts[OUTSIDE, i, j] * inner + outer * dcharts[INSIDE, i, j]
                        result[b, i, j] = value / total - inner * outer / total * relative
            continue
        ds = np.zeros((n, n))
        if what == 2:
            for i in range(n):
                for j in range(i + 1, n):
                    if s[i, j] > -np.inf:
                        ds[i, j] = along[b, i, j]
        logs = np.full((6, n, n), -np.inf)
        inside, turned, marginals = logs[0], logs[1], logs[2]
        dinside, dturned, changes = logs[3], logs[4], logs[5]
        logs[3:] = 0.0
        _log_inside(s, ds, n, inside, dinside, turned, dturned)
        if inside[0, n - 1] == -np.inf:
            status[b] = INFEASIBLE
            continue
        log_partition[b] = inside[0, n - 1] + words
        if what > 0:
            _log_outside(s, ds, n, inside, dinside, turned, dturned, marginals, changes)
            for i in range(n):
                for j in range(i, n):
                    if what == 1:
                        result[b, i, j] = marginals[i, j]
                    elif j > i:
                        result[b, i, j] = changes[i, j]


@njit(cache=True, nogil=True, fastmath=False)
def best_constituency_trees(start, stop, scores, lengths, spans, status):
    """Best trees; spans ``(B, N, 2)`` int32: the spans of more than a word, −1 from the n-th on."""
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    room = np.empty(2 * longest * _width(longest))
    stack = np.empty((longest + 1, 2), dtype=np.int64)
    for b in range(start, stop):
        n = lengths[b]
        spans[b] = -1
        status[b], _ = _read(scores[b], n, s)
        if n == 0:
            status[b] = FEASIBLE
        if status[b] != FEASIBLE or n < 2:
            continue
        width = _width(n)
        charts = room[: 2 * n * width].reshape((2, n, width))
        charts[:] = -np.inf
        splits, best = charts[0], charts[1]
        for i in range(n - 1, -1, -1):
            own, row = splits[i], best[i]
            row[i] = 0.0
            for k in range(i, n - 1):
                if k > i:
                    row[k] = own[k] + s[i, k]
                _push_best((own, best[k + 1]), (row[k],), (k + 1) // LANES * LANES, n)
            if i < n - 1:
                row[n - 1] = own[n - 1] + s[i, n - 1]
        if best[0, n - 1] == -np.inf:
            status[b] = INFEASIBLE
            continue
        stack[0, 0], stack[0, 1] = 0, n - 1
        depth, count = 1, 0
        while depth > 0:
            depth -= 1
            i, j = stack[depth, 0], stack[depth, 1]
            spans[b, count, 0], spans[b, count, 1] = i, j
            count += 1
            split, top = i, -np.inf
            for k in range(i, j):
                value = best[i, k] + best[k + 1, j]
                if value > top:
                    split, top = k, value
            if split > i:
                stack[depth, 0], stack[depth, 1] = i, split
                depth += 1
            if split + 1 < j:
                stack[depth, 0], stack[depth, 1] = split + 1, j
                depth += 1


@njit(cache=True, nogil=True, fastmath=False)
def _uniform(state):
    """The next number in [0, 1) of SplitMix64 (Steele et al. 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True, fastmath=False)
def sample_constituency_trees(start, stop, scores, lengths, seeds, samples, status):
    """Exact samples, from the widest span down; samples ``(K, B, N, 2)`` as ``spans`` above."""
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    s = np.zeros((longest, longest))
    nothing = np.zeros((longest, longest))
    logs = np.empty((4, longest, longest))
    stack = np.empty((longest + 1, 2), dtype=np.int64)
    state = np.empty(1, dtype=np.uint64)
    for b in range(start, stop):
        n = lengths[b]
        samples[:, b] = -1
        status[b] = FEASIBLE
        if n == 0:
            continue
        status[b], _ = _read(scores[b], n, s)
        if status[b] != FEASIBLE or n < 2:
            continue
        inside, turned = logs[0], logs[1]
        _log_inside(s, nothing, n, inside, logs[2], turned, logs[3])
        if inside[0, n - 1] == -np.inf:
            status[b] = INFEASIBLE
            continue
        state[0] = seeds[b]
        for draw in range(samples.shape[0]):
            stack[0, 0], stack[0, 1] = 0, n - 1
            depth, count = 1, 0
            while depth > 0:
                depth -= 1
                i, j = stack[depth, 0], stack[depth, 1]
                samples[draw, b, count, 0], samples[draw, b, count, 1] = i, j
                count += 1
                whole = inside[i, j] - s[i, j]
                left, split = _uniform(state), -1
                for k in range(i, j):
                    share = math.exp(inside[i, k] + turned[j, k + 1] - whole)
                    if share > 0.0:
                        split = k
                        left -= share
                        if left < 0.0:
                            break
                if split > i:
                    stack[depth, 0], stack[depth, 1] = i, split
                    depth += 1
                if split + 1 < j:
                    stack[depth, 0], stack[depth, 1] = split + 1, j
                    depth += 1


FAMILY = Family(
    name="ConstituencyTree",
    best=best_constituency_trees,
    total=sum_over_constituency_trees,
    sample=sample_constituency_trees,
    best_shape=lambda shape: (shape[0], shape[1], 2),
    best_cost=lambda n: 300 + 1.5 * n**2 + 0.04 * n**3,
    total_cost=lambda n: 300 + 2.5 * n**2 + 0.06 * n**3,
    kept_size=lambda shape: kept_size(shape[1]),
)
