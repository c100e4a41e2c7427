"""Sums in logarithms, for what does not fit any other way."""

from __future__ import annotations

import math

import numpy as np

from spacy_latent.kernels.compilation import kernel


@kernel
def log_sum_of_pairs(a, b, da, db):
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
