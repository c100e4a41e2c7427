"""SparseMAP of one-to-one alignments by the compiled active-set method.

The result equals the generic solver's. The MAP oracle is called inside the loop.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from spacy_latent.kernels.sparsemap.assignment_active_set import AssignmentOracle
from spacy_latent.structures.active_set import solve_with_kernel
from spacy_latent.structures.base import SparseSolution, Structure

# Measured order of the nanoseconds of an item of n rows and n columns, for sharing the batch.
COST_PER_CUBE = 60.0


def solve_one_to_one(
    structure: Structure,
    scores: Tensor,
    lengths: Tensor,
    max_iter: int,
    tolerance: float,
    unaligned: bool,
) -> SparseSolution:
    """Solve SparseMAP for one-to-one alignments, with cells ``(B, N, M)``.

    The result is that of :func:`spacy_latent.structures.active_set.solve_with_oracle`.
    """

    def costs(sizes: np.ndarray) -> np.ndarray:
        return COST_PER_CUBE * sizes.min(1) ** 2 * sizes.max(1)

    oracle = AssignmentOracle(unaligned, not unaligned)
    options = (max_iter, tolerance, oracle, min(scores.shape[1:]), costs)
    return solve_with_kernel(structure, scores, lengths, *options)
