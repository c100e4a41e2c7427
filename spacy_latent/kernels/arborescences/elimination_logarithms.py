"""Sums over spanning arborescences by elimination on logarithms, for weights that would underflow.

See kernels.arborescences.matrix_tree. Numbers are logarithms, [modifier, head], with a tangent.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.arborescences.elimination import last_token
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE
from spacy_latent.kernels.simd.arc_scores import read_arc_scores


@kernel
def _log_add(a, da, b, db):
    """Return log(e^a + e^b) and its tangent, for tangents da of a and db of b."""
    top = max(a, b)
    if top == -np.inf:
        return top, 0.0
    ea, eb = math.exp(a - top), math.exp(b - top)
    return top + math.log1p(min(ea, eb)), (ea * da + eb * db) / (ea + eb)


@kernel
def eliminate_logarithms(w, dw, n, first_node):
    """Eliminate the tokens n .. 1 from the log-weights, in place, and return log Z, or −inf."""
    total = 0.0
    for k in range(n, 0, -1):
        pivot, dpivot = -np.inf, 0.0
        for h in range(first_node if k > 1 else 0, k):
            pivot, dpivot = _log_add(pivot, dpivot, w[k, h], dw[k, h])
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
                    w[m, h], dw[m, h] = _log_add(w[m, h], dw[m, h], b, db)
    return total


@kernel
def _adjoint(w, dw, n, first_node, g, dg):
    """Write the logarithms ``g`` of ∂ log Z / ∂ weight, and their tangents ``dg``."""
    for k in range(1, n + 1):
        for m in range(1, k):
            value, tangent = -np.inf, 0.0
            for h in range(k):
                if h != m:
                    b, db = w[k, h] + g[m, h], dw[k, h] + dg[m, h]
                    value, tangent = _log_add(value, tangent, b, db)
            g[m, k], dg[m, k] = value, tangent
        mean, dmean = 0.0, 0.0
        for h in range(k):
            value, tangent = -np.inf, 0.0
            for m in range(1, k):
                if h != m:
                    b, db = w[m, k] + g[m, h], dw[m, k] + dg[m, h]
                    value, tangent = _log_add(value, tangent, b, db)
            g[k, h], dg[k, h] = value, tangent
            if value > -np.inf and w[k, h] > -np.inf:
                share = math.exp(w[k, h] + value)
                mean += share
                dmean += share * (dw[k, h] + tangent)
        for h in range(k):
            value, tangent = g[k, h], dg[k, h]
            if h >= (first_node if k > 1 else 0):
                if value > 30.0:
                    # e^value may overflow, and 1 − mean only affects the last digits of its
                    # logarithm.
                    small = (1.0 - mean) * math.exp(-value)
                    value += math.log1p(small)
                    tangent -= math.exp(-g[k, h]) * (dmean + (1.0 - mean) * dg[k, h])
                else:
                    reach = math.exp(value)
                    own = 1.0 - mean + reach
                    if own > 1e-300:
                        tangent = (reach * tangent - dmean) / own
                        value = math.log(own)
                    else:
                        value, tangent = -np.inf, 0.0
            g[k, h] = value - w[k, k]
            dg[k, h] = tangent - dw[k, k]
        g[k, k], dg[k, k] = -np.inf, 0.0


@kernel
def sum_by_logarithms(start, stop, items, batch, along, operation, results):
    """Compute the sums like ``sum_over_trees``, on logarithms, for items it leaves UNSOLVED."""
    scores, lengths, (direction, max_arc_length, single_root) = batch
    log_partition, result, _, status = results
    first_node = 1 if single_root else 0
    for b in items[start:stop]:
        n = lengths[b]
        size = n + 1
        if operation != LOG_PARTITION:
            result[b] = 0.0
        matrix = np.empty((size, size))
        status[b] = read_arc_scores(scores[b], n, direction, max_arc_length, matrix)
        if status[b] != FEASIBLE:
            continue
        child = last_token(matrix, n, single_root)
        if child == 0:
            status[b] = INFEASIBLE
            continue
        order = np.arange(size)
        order[1], order[child] = child, 1
        w, dw = np.empty((size, size)), np.zeros((size, size))
        g, dg = np.full((size, size), -np.inf), np.zeros((size, size))
        offset = 0.0
        for m in range(1, size):
            best = -np.inf
            for h in range(size):
                best = max(best, matrix[h, order[m]])
            offset += best
            for h in range(size):
                w[m, h] = matrix[order[h], order[m]] - best
                if operation == HESSIAN_PRODUCT and w[m, h] > -np.inf:
                    dw[m, h] = along[b, order[h], order[m]]
            w[m, m] = -np.inf
        arcs = w.copy()
        log_partition[b] = eliminate_logarithms(w, dw, n, first_node) + offset
        if operation != LOG_PARTITION:
            _adjoint(w, dw, n, first_node, g, dg)
            for m in range(1, size):
                for h in range(size):
                    if h != m and arcs[m, h] > -np.inf and g[m, h] > -np.inf:
                        value = math.exp(arcs[m, h] + g[m, h])
                        if operation == HESSIAN_PRODUCT:
                            value *= along[b, order[h], order[m]] + dg[m, h]
                        result[b, order[h], order[m]] = value
