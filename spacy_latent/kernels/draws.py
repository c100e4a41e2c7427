"""Random draws inside kernels. A state is an array of one uint64, not 0."""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.compilation import kernel


@kernel
def uniform(state):
    """Uniform in [0, 1) by xorshift64*, so that an item's draws do not depend on threads."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return ((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def choose(log_weights, count, state):
    """An index with probability proportional to exp(log_weights)."""
    top = -np.inf
    for i in range(count):
        top = max(top, log_weights[i])
    total = 0.0
    for i in range(count):
        total += math.exp(log_weights[i] - top)
    left = uniform(state) * total
    chosen = -1
    for i in range(count):
        weight = math.exp(log_weights[i] - top)
        if weight > 0.0:
            chosen = i
            left -= weight
            if left < 0.0:
                break
    return chosen
