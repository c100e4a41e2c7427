"""What sets of items share: shapes, and the sparse decomposition of a mean of subsets."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.transfers import send
from spacy_latent.structures.base import SparseSolution, Structure

# By how much a sum of the shares of some items may miss the whole number that it should be. Means
# are given in float64 for its sake: what float32 rounds off 5,000 of them is far more.
ROUNDING = 1e-9


class ItemSet(Structure):
    """Subsets of n items. Scores ``(B, N)``, lengths ``(B,)``, each at most N."""

    part_axes: ClassVar[int] = 1
    parts: ClassVar[str] = "items"
    annotation: ClassVar[str] = "parts"
    tractable = frozenset({"log_partition", "marginals", "sample", "entropy", "log_prob"})

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """The chosen items, ``(k,)`` int32, in their order."""
        return np.flatnonzero(z[:length] > 0.5).astype("int32")

    def encode(self, gold: np.ndarray, length: int) -> np.ndarray:
        z = np.zeros(length, dtype="float32")
        z[np.asarray(gold, dtype="int64")] = 1.0
        return z


def decompose(mean: Tensor) -> SparseSolution:
    """Subsets whose weighted sum is ``mean`` ``(B, N)``, float64, each of as many items as the sum
    of the mean, rounded down or up; at most N + 1 of them.

    Systematic sampling (Madow 1949): item i takes the stretch of length mean[i] of a line; for an
    offset u in [0, 1), those items are chosen whose stretch holds one of u, u + 1, u + 2, ... The
    choice changes only where u passes the end of a stretch: the weights are the distances between
    these. They are differentiable, and linear in the mean.
    """
    batch = len(mean)
    ends = mean.cumsum(1)
    # Where a sum should be whole, rounding must not open a sliver at either side of it: its subset
    # would be one too large or too small.
    whole = (ends.detach() - ends.detach().round()).abs() < ROUNDING
    ends = torch.where(whole, ends.detach().round() + (ends - ends.detach()), ends)
    fractions = ends - ends.detach().floor()
    knots = torch.cat([ends.new_zeros(batch, 1), fractions, ends.new_ones(batch, 1)], 1)
    knots, _ = knots.sort(1)
    weights = knots[:, 1:] - knots[:, :-1]
    with torch.no_grad():
        weights_now = weights.detach()
        order = weights_now.argsort(dim=1, descending=True, stable=True)
        # Most of the knots of a sparse mean are the same.
        count = max(int((weights_now > 1e-12).sum(1).max()), 1) if weights.numel() else 1
        order = order[:, :count]
        offsets = ((knots[:, 1:] + knots[:, :-1]) / 2).gather(1, order)
        begins = torch.cat([ends.new_zeros(batch, 1), ends[:, :-1]], 1)
        # Numbers of the form u + whole, below a point: how many a stretch holds.
        below = (ends[:, None] - offsets[:, :, None]).ceil()
        above = (begins[:, None] - offsets[:, :, None]).ceil()
        atoms = (below - above).clamp(0, 1)
    picked = weights.gather(1, order)
    picked = torch.where(picked.detach() > 1e-12, picked, torch.zeros_like(picked))
    chosen = torch.where(picked.detach()[:, :, None] > 0, atoms, 0.0).transpose(0, 1)
    gap = torch.zeros(batch, dtype=torch.float64, device=mean.device)

    def expand(device: torch.device = mean.device) -> Tensor:
        return chosen if device == mean.device else send(chosen, device)

    return SparseSolution(mean, picked.t(), gap, expand)
