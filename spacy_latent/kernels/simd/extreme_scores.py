"""A fast test for scores of large magnitude in a batch, run before every sum."""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.core.compilation import kernel

# Flags for the counts only, which are exact in any order.
COUNTS = {"reassoc", "nsz"}


@kernel(fastmath=COUNTS)
def holds_beyond(values, bound):
    """Return whether a finite value of a contiguous row has a magnitude above ``bound``.

    ``bound`` has the type of the values.
    """
    found = np.float32(0.0)
    for i in range(len(values)):
        size = abs(values[i])
        beyond = (size > bound) & (size < np.float32(np.inf))
        found += np.float32(1.0) if beyond else np.float32(0.0)
    return found > 0.0
