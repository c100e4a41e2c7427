"""Random generators for use inside kernels.

The state is an array of one nonzero uint64 for each item, so draws of an item do not depend on
threads. A structure must always keep its generator, since the other one gives other samples for the
same seed.
"""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.core.compilation import kernel


@kernel
def uniform(state):
    """Return a uniform number in [0, 1) by xorshift64*."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return ((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def uniform_of_splitmix(state):
    """Return a uniform number in [0, 1) by SplitMix64 (Steele et al. 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def choose(log_weights, count, point):
    """Return an index with probability proportional to exp(log_weights).

    ``point`` is a uniform number in [0, 1).
    """
    top = -np.inf
    for i in range(count):
        top = max(top, log_weights[i])
    total = 0.0
    for i in range(count):
        total += math.exp(log_weights[i] - top)
    left = point * total
    chosen = -1
    for i in range(count):
        weight = math.exp(log_weights[i] - top)
        if weight > 0.0:
            chosen = i
            left -= weight
            if left < 0.0:
                break
    return chosen
