"""Sums over linear chains on logarithms. Other chains take its steps."""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.core.compilation import FUSED, kernel
from spacy_latent.kernels.simd.exponential import exponential


@kernel(fastmath=FUSED)
def log_forward_step(previous, block, top, result):
    """Write result[t] = log Σ_p exp(previous[p] + block[p, t])."""
    tags = len(block)
    for t in range(tags):
        top[t] = -np.inf
        result[t] = 0.0
    for p in range(tags):
        base, row = previous[p], block[p]
        for t in range(tags):
            value = base + row[t]
            top[t] = value if value > top[t] else top[t]
    for p in range(tags):
        base, row = previous[p], block[p]
        for t in range(tags):
            shift = top[t] if top[t] > -np.inf else 0.0
            result[t] += exponential(base + row[t] - shift)
    for t in range(tags):
        result[t] = top[t] + math.log(result[t]) if top[t] > -np.inf else -np.inf


@kernel(fastmath=FUSED)
def log_backward_step(after, block, result):
    """Write result[p] = log Σ_t exp(block[p, t] + after[t])."""
    tags = len(block)
    for p in range(tags):
        row, top = block[p], -np.inf
        for t in range(tags):
            value = row[t] + after[t]
            top = value if value > top else top
        total = 0.0
        if top > -np.inf:
            for t in range(tags):
                total += exponential(row[t] + after[t] - top)
        result[p] = top + math.log(total) if top > -np.inf else -np.inf


@kernel
def subtract_largest(row):
    """Subtract from a row its largest number, unless that is −inf, and return the number."""
    best = -np.inf
    for t in range(len(row)):
        best = max(best, row[t])
    if best > -np.inf:
        for t in range(len(row)):
            row[t] -= best
    return best


@kernel
def log_sum(row):
    """Return log Σ exp of a row whose largest is finite or −inf."""
    best = -np.inf
    for t in range(len(row)):
        best = max(best, row[t])
    if best == -np.inf:
        return best
    total = 0.0
    for t in range(len(row)):
        total += math.exp(row[t] - best)
    return best + math.log(total)


@kernel
def log_forward(scores, n, forward, shifts, top):
    """Run linear_chain._forward on logarithms, and return whether there is a chain.

    The largest of each row of ``forward`` is subtracted, and written to ``shifts``.
    """
    tags = scores.shape[1]
    forward[0, :tags] = scores[0, 0]
    shifts[0] = subtract_largest(forward[0, :tags])
    for i in range(1, n):
        if shifts[i - 1] == -np.inf:
            return False
        log_forward_step(forward[i - 1], scores[i], top, forward[i])
        shifts[i] = subtract_largest(forward[i, :tags])
    return shifts[n - 1] > -np.inf


@kernel(fastmath=FUSED)
def log_marginals(scores, n, forward, result):
    """Write marginals from the last position back.

    Each tag divides its probability among the tags before it. Probabilities thus sum to 1 for
    scores of any magnitude. Products of forward and backward sums would not.
    """
    tags = scores.shape[1]
    current, top, total = np.empty(tags), np.empty(tags), np.empty(tags)
    whole = log_sum(forward[n - 1, :tags])
    for t in range(tags):
        current[t] = exponential(forward[n - 1, t] - whole)
    for i in range(n - 1, 0, -1):
        for t in range(tags):
            top[t], total[t] = -np.inf, 0.0
        for p in range(tags):
            base, row = forward[i - 1, p], scores[i, p]
            for t in range(tags):
                value = base + row[t]
                top[t] = value if value > top[t] else top[t]
        for t in range(tags):
            top[t] = top[t] if top[t] > -np.inf else 0.0
        for p in range(tags):
            base, row = forward[i - 1, p], scores[i, p]
            for t in range(tags):
                total[t] += exponential(base + row[t] - top[t])
        for t in range(tags):
            # A tag that cannot be reached has probability 0.
            total[t] = current[t] / total[t] if total[t] > 0.0 else 0.0
        for p in range(tags):
            base, row, target = forward[i - 1, p], scores[i, p], result[i, p]
            current[p] = 0.0
            for t in range(tags):
                share = exponential(base + row[t] - top[t]) * total[t]
                target[t] = share
                current[p] += share
    for t in range(tags):
        result[0, 0, t] = current[t]
