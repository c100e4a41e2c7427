"""A fast test for scores of large magnitude in a batch, run before every sum."""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.compilation import kernel

# Only of counts, which are right in any order.
COUNTS = {"reassoc", "nsz"}


@kernel(fastmath=COUNTS)
def holds_beyond(values, bound):
    """Whether one of them, of a contiguous row, is finite and its size above ``bound``, a number of
    their type."""
    found = np.float32(0.0)
    for i in range(len(values)):
        size = abs(values[i])
        beyond = (size > bound) & (size < np.float32(np.inf))
        found += np.float32(1.0) if beyond else np.float32(0.0)
    return found > 0.0
