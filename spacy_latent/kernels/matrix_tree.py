"""Sums over spanning arborescences (Koo et al. 2007; Smith and Smith 2007) without subtraction.

The determinant of the Laplacian cancels to nothing where two tokens prefer each other. The
elimination of Grassmann, Taksar and Heyman (1985) takes a token k out of the graph by giving each
arc k → m to the heads of k, in proportion f[h] = w[h, k] / d with d = Σ_h w[h, k], and forgetting
loops: w[h, m] += f[h]·w[k, m]. Then log Z = Σ_k log d, every number stays positive and is right to
its last digits. With a single root the root's arcs count to first order only: they are left out of
d, and the last token's is the sum itself.

Weights are exp(score − the column's best). Where so much cancels that weights that underflowed
could matter, the same elimination runs on logarithms. Everything is float64.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from spacy_latent.kernels.arborescence import (
    best_arborescence,
    float_workspace_size,
    integer_workspace_size,
)
from spacy_latent.kernels.status import FEASIBLE, INFEASIBLE, read_arc_scores

# Weights below 1e−308 are lost; a pivot above this cannot miss them.
SMALLEST_PIVOT = 1e-150
FAST = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=FAST)
def _eliminate(w, n, first):
    """Eliminate tokens n .. 1 of ``w`` ``(n+1, n+1)``, [modifier, head], in place.

    Afterwards row k holds f[h] for h < k, its column above it the weights w[m, k] that it had, and
    w[k, k] the pivot d. first: 1 with a single root, else 0.
    RETURNS: log Z, or NaN where a pivot is too small to trust.
    """
    total = 0.0
    for k in range(n, 0, -1):
        row = w[k]
        pivot = 0.0
        begin = first if k > 1 else 0
        for h in range(begin, k):
            pivot += row[h]
        if not pivot > SMALLEST_PIVOT:
            return np.nan
        total += math.log(pivot)
        inverse = 1.0 / pivot
        for h in range(k):
            row[h] *= inverse
        row[k] = pivot
        for m in range(1, k):
            weight = w[m, k]
            if weight != 0.0:
                target = w[m]
                own = target[m]
                for h in range(k):
                    target[h] += weight * row[h]
                target[m] = own
    return total


@njit(cache=True, nogil=True, fastmath=FAST)
def _adjoint(w, n, first, g, reach):
    """∂ log Z / ∂ weight ``g`` ``(n+1, n+1)``, [modifier, head], from what _eliminate left.

    reach: ``(n+1,)`` workspace.
    """
    for k in range(1, n + 1):
        row = w[k]
        inverse = 1.0 / row[k]
        begin = first if k > 1 else 0
        for h in range(k):
            reach[h] = 0.0
        for m in range(1, k):
            weight = w[m, k]
            source = g[m]
            passed = 0.0
            for h in range(k):
                passed += row[h] * source[h]
            if weight != 0.0:
                for h in range(k):
                    reach[h] += weight * source[h]
            source[k] = passed
        mean = 0.0
        for h in range(k):
            mean += row[h] * reach[h]
        target = g[k]
        for h in range(k):
            own = reach[h]
            if h >= begin:
                own += 1.0 - mean
            target[h] = max(own, 0.0) * inverse
        target[k] = 0.0


@njit(cache=True, nogil=True, fastmath=FAST)
def _tangent(w, n, first, g, dw, dg, reach, dreach, df):
    """Directional derivatives ``dg`` of the adjoint along the weights' change ``dw``.

    w, g: as _eliminate and _adjoint left them. dw: [modifier, head], overwritten.
    """
    for k in range(n, 0, -1):
        row, drow = w[k], dw[k]
        pivot = row[k]
        begin = first if k > 1 else 0
        dpivot = 0.0
        for h in range(begin, k):
            dpivot += drow[h]
        inverse = 1.0 / pivot
        for h in range(k):
            drow[h] = (drow[h] - row[h] * dpivot) * inverse
        drow[k] = dpivot
        for m in range(1, k):
            weight, dweight = w[m, k], dw[m, k]
            target = dw[m]
            own = target[m]
            for h in range(k):
                target[h] += dweight * row[h] + weight * drow[h]
            target[m] = own
    for k in range(1, n + 1):
        row, drow = w[k], dw[k]
        inverse = 1.0 / row[k]
        dpivot = drow[k]
        begin = first if k > 1 else 0
        for h in range(k):
            reach[h] = 0.0
            dreach[h] = 0.0
        for m in range(1, k):
            weight, dweight = w[m, k], dw[m, k]
            source, dsource = g[m], dg[m]
            dpassed = 0.0
            for h in range(k):
                dpassed += drow[h] * source[h] + row[h] * dsource[h]
                reach[h] += weight * source[h]
                dreach[h] += dweight * source[h] + weight * dsource[h]
            dsource[k] = dpassed
        dmean = 0.0
        for h in range(k):
            dmean += drow[h] * reach[h] + row[h] * dreach[h]
        target, dtarget = g[k], dg[k]
        for h in range(k):
            down = dreach[h]
            if h >= begin:
                down -= dmean
            dtarget[h] = (down - target[h] * dpivot) * inverse
        dtarget[k] = 0.0


@njit(cache=True, nogil=True)
def _log_add(a, b):
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + math.log1p(math.exp(b - a))


@njit(cache=True, nogil=True)
def _mix(a, da, b, db):
    """Derivative of log(e^a + e^b) where a and b have derivatives da and db."""
    top = max(a, b)
    if top == -np.inf:
        return 0.0
    ea, eb = math.exp(a - top), math.exp(b - top)
    return (ea * da + eb * db) / (ea + eb)


@njit(cache=True, nogil=True)
def log_domain(w, n, first, dw, g, dg):
    """The twin of the three passes above on logarithms, with their derivatives.

    w: ``(n+1, n+1)``, [modifier, head], log weights; dw: their change; both overwritten.
    g, dg: log ∂ log Z / ∂ weight and its derivative, filled.
    RETURNS: log Z, or −inf.
    """
    total = 0.0
    for k in range(n, 0, -1):
        begin = first if k > 1 else 0
        pivot, dpivot = -np.inf, 0.0
        for h in range(begin, k):
            dpivot = _mix(pivot, dpivot, w[k, h], dw[k, h])
            pivot = _log_add(pivot, w[k, h])
        if pivot == -np.inf:
            return -np.inf
        total += pivot
        for h in range(k):
            w[k, h] -= pivot
            dw[k, h] -= dpivot
        w[k, k], dw[k, k] = pivot, dpivot
        for m in range(1, k):
            for h in range(k):
                if h != m:
                    b, db = w[m, k] + w[k, h], dw[m, k] + dw[k, h]
                    dw[m, h] = _mix(w[m, h], dw[m, h], b, db)
                    w[m, h] = _log_add(w[m, h], b)
    for k in range(1, n + 1):
        begin = first if k > 1 else 0
        for m in range(1, k):
            value, derivative = -np.inf, 0.0
            for h in range(k):
                if h != m:
                    b, db = w[k, h] + g[m, h], dw[k, h] + dg[m, h]
                    derivative = _mix(value, derivative, b, db)
                    value = _log_add(value, b)
            g[m, k], dg[m, k] = value, derivative
        mean, dmean = 0.0, 0.0
        for h in range(k):
            value, derivative = -np.inf, 0.0
            for m in range(1, k):
                if h != m:
                    b, db = w[m, k] + g[m, h], dw[m, k] + dg[m, h]
                    derivative = _mix(value, derivative, b, db)
                    value = _log_add(value, b)
            g[k, h], dg[k, h] = value, derivative
            if value > -np.inf and w[k, h] > -np.inf:
                share = math.exp(w[k, h] + value)
                mean += share
                dmean += share * (dw[k, h] + derivative)
        for h in range(k):
            value, derivative = g[k, h], dg[k, h]
            if h >= begin:
                if value > 30.0:
                    # 1 − mean is lost beside e^30 but for its logarithm's last digits.
                    small = (1.0 - mean) * math.exp(-value)
                    value += math.log1p(small)
                    derivative -= math.exp(-g[k, h]) * (dmean + (1.0 - mean) * dg[k, h])
                else:
                    reach = math.exp(value)
                    own = 1.0 - mean + reach
                    if own > 1e-300:
                        derivative = (reach * derivative - dmean) / own
                        value = math.log(own)
                    else:
                        value, derivative = -np.inf, 0.0
            g[k, h] = value - w[k, k]
            dg[k, h] = derivative - dw[k, k]
        g[k, k], dg[k, k] = -np.inf, 0.0
    return total


@njit(cache=True, nogil=True)
def _order(scores, n, single_root, order, heads, integers, floats):
    """Which token stands at each place of the elimination; place 1 goes last. With a single root
    that must be one that can be it: the root's child in the best tree. RETURNS: feasible."""
    for place in range(n + 1):
        order[place] = place
    if not best_arborescence(scores, n, single_root, heads, integers, floats):
        return False
    if single_root:
        for modifier in range(1, n + 1):
            if heads[modifier] == 0:
                order[1], order[modifier] = modifier, 1
    return True


@njit(cache=True, nogil=True)
def _weights(scores, n, order, w, top):
    """exp(score − top of its modifier) to ``w`` [modifier, head] in elimination order."""
    for m in range(1, n + 1):
        modifier = order[m]
        best = -np.inf
        for head in range(n + 1):
            best = max(best, scores[head, modifier])
        top[m] = best
        for h in range(n + 1):
            w[m, h] = math.exp(scores[order[h], modifier] - best)
        w[m, m] = 0.0


@njit(cache=True, nogil=True)
def sum_over_trees(
    start,
    stop,
    scores,
    lengths,
    direction,
    max_arc_length,
    single_root,
    change,
    what,
    log_partition,
    result,
    status,
):
    """Items start .. stop−1: what = 0 log Z alone, 1 marginals as well, 2 the product of the
    Hessian of log Z with ``change``.

    scores, change, result: ``(B, N+1, N+1)``, [head, modifier]; result is zero at what is no arc.
    """
    longest = 0
    for b in range(start, stop):
        longest = max(longest, lengths[b])
    nodes = longest + 1
    area = nodes * nodes
    integers = np.empty(integer_workspace_size(longest), dtype=np.int32)
    floats = np.empty(float_workspace_size(longest))
    heads = np.empty(nodes, dtype=np.int32)
    order = np.empty(nodes, dtype=np.int32)
    top = np.zeros(nodes)
    reach, dreach, df = np.empty(nodes), np.empty(nodes), np.empty(nodes)
    buffers = np.zeros((6, area))
    first = 1 if single_root else 0
    for b in range(start, stop):
        n = lengths[b]
        size = n + 1
        matrix = buffers[0, : size * size].reshape(size, size)
        w = buffers[1, : size * size].reshape(size, size)
        g = buffers[2, : size * size].reshape(size, size)
        dw = buffers[3, : size * size].reshape(size, size)
        dg = buffers[4, : size * size].reshape(size, size)
        kept = buffers[5, : size * size].reshape(size, size)
        log_partition[b] = 0.0
        if what > 0:
            result[b] = 0.0
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix)
        if status[b] != FEASIBLE or n == 0:
            continue
        if single_root:
            if not _order(matrix, n, single_root, order, heads, integers, floats):
                status[b] = INFEASIBLE
                continue
        else:
            for place in range(size):
                order[place] = place
        bad = False
        for modifier in range(1, size):
            best = -np.inf
            for head in range(size):
                best = max(best, matrix[head, modifier])
            bad |= best == -np.inf
        if bad:
            status[b] = INFEASIBLE
            continue
        _weights(matrix, n, order, w, top)
        offset = 0.0
        for m in range(1, size):
            offset += top[m]
        if what == 2:
            kept[:] = w
            for m in range(1, size):
                for h in range(size):
                    dw[m, h] = 0.0
                    if w[m, h] != 0.0:
                        dw[m, h] = w[m, h] * change[b, order[h], order[m]]
        elif what == 1:
            kept[:] = w
        value = _eliminate(w, n, first)
        if not math.isnan(value):
            log_partition[b] = value + offset
            if what == 0:
                continue
            _adjoint(w, n, first, g, reach)
            if what == 1:
                for m in range(1, size):
                    for h in range(size):
                        result[b, order[h], order[m]] = kept[m, h] * g[m, h]
            else:
                _tangent(w, n, first, g, dw, dg, reach, dreach, df)
                for m in range(1, size):
                    for h in range(size):
                        if kept[m, h] != 0.0:
                            result[b, order[h], order[m]] = kept[m, h] * (
                                g[m, h] * change[b, order[h], order[m]] + dg[m, h]
                            )
            continue
        # Too much cancelled: logarithms.
        if not single_root and not best_arborescence(
            matrix, n, single_root, heads, integers, floats
        ):
            status[b] = INFEASIBLE
            continue
        for m in range(1, size):
            for h in range(size):
                w[m, h] = matrix[order[h], order[m]] - top[m]
                dw[m, h] = 0.0
                if what == 2 and w[m, h] > -np.inf:
                    dw[m, h] = change[b, order[h], order[m]]
            w[m, m] = -np.inf
        g[:] = -np.inf
        dg[:] = 0.0
        log_partition[b] = log_domain(w, n, first, dw, g, dg) + offset
        if what > 0:
            for m in range(1, size):
                for h in range(size):
                    arc = matrix[order[h], order[m]] - top[m]
                    if h != m and arc > -np.inf and g[m, h] > -np.inf:
                        marginal = math.exp(arc + g[m, h])
                        if what == 2:
                            marginal *= change[b, order[h], order[m]] + dg[m, h]
                        result[b, order[h], order[m]] = marginal


@njit(cache=True, nogil=True)
def _random(state):
    """Uniform in [0, 1) by xorshift64*, so that an item's draws do not depend on threads."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return ((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _choose(log_weights, count, state):
    """An index with probability proportional to exp(log_weights)."""
    top = -np.inf
    for i in range(count):
        top = max(top, log_weights[i])
    total = 0.0
    for i in range(count):
        total += math.exp(log_weights[i] - top)
    left = _random(state) * total
    chosen = -1
    for i in range(count):
        weight = math.exp(log_weights[i] - top)
        if weight > 0.0:
            chosen = i
            left -= weight
            if left < 0.0:
                break
    return chosen


@njit(cache=True, nogil=True)
def _wilson(scores, n, root, heads, column, state, max_steps):
    """Wilson's algorithm (1996): loop-erased random walks into the tree. heads[root] is given, and
    if root is a token, no other token attaches to node 0. RETURNS: done within max_steps."""
    reached = np.zeros(n + 1, dtype=np.uint8)
    reached[0] = 1
    reached[root] = 1
    steps = 0
    for start in range(1, n + 1):
        node = start
        while not reached[node]:
            for head in range(n + 1):
                column[head] = scores[head, node]
            if root != 0:
                column[0] = -np.inf
            heads[node] = _choose(column, n + 1, state)
            node = heads[node]
            steps += 1
            if steps > max_steps:
                return False
        node = start
        while not reached[node]:
            reached[node] = 1
            node = heads[node]
    return True


@njit(cache=True, nogil=True)
def sample_trees(
    start, stop, scores, lengths, direction, max_arc_length, single_root, seeds, samples, status
):
    """Exact samples for the items start .. stop−1.

    seeds: ``(B,)`` uint64, not zero. samples: ``(K, B, N+1)`` int32 heads.
    A walk that does not end soon, because tokens prefer each other, gives way to choosing the head
    of one token after another from its exact conditional distribution.
    """
    empty = np.zeros((1, 1, 1))
    for b in range(start, stop):
        n = lengths[b]
        for k in range(samples.shape[0]):
            samples[k, b, :] = -1
        matrix = np.empty((1, n + 1, n + 1))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix[0])
        if status[b] != FEASIBLE or n == 0:
            continue
        marginals = np.empty((1, n + 1, n + 1))
        size, value = np.full(1, n), np.empty(1)
        flag = np.empty(1, dtype=np.int8)
        sum_over_trees(0, 1, matrix, size, 0, -1, single_root, empty, 1, value, marginals, flag)
        status[b] = flag[0]
        if flag[0] != FEASIBLE:
            continue
        state = seeds[b : b + 1].copy()
        column = np.empty(n + 1)
        for k in range(samples.shape[0]):
            heads = samples[k, b]
            root = 0
            if single_root:
                for token in range(n + 1):
                    column[token] = -np.inf
                    if marginals[0, 0, token] > 0.0:
                        column[token] = math.log(marginals[0, 0, token])
                root = _choose(column, n + 1, state)
                heads[root] = 0
            if _wilson(matrix[0], n, root, heads, column, state, 100 * (n + 1)):
                continue
            # Popped cycles say nothing of the tree: giving up on long walks does not bias it.
            # The chosen root stays: some roots make walks longer than others do.
            fixed = matrix.copy()
            if single_root:
                for token in range(1, n + 1):
                    if token == root:
                        fixed[0, 1:, token] = -np.inf
                    else:
                        fixed[0, 0, token] = -np.inf
            conditional = np.empty((1, n + 1, n + 1))
            for modifier in range(1, n + 1):
                sum_over_trees(
                    0, 1, fixed, size, 0, -1, single_root, empty, 1, value, conditional, flag
                )
                for head in range(n + 1):
                    column[head] = -np.inf
                    if conditional[0, head, modifier] > 0.0:
                        column[head] = math.log(conditional[0, head, modifier])
                heads[modifier] = _choose(column, n + 1, state)
                for head in range(n + 1):
                    if head != heads[modifier]:
                        fixed[0, head, modifier] = -np.inf
