"""Sets of items: shapes, and the sparse decomposition of a mean of subsets."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.structures.base import SparseSolution, Structure, subtract_highest

# Largest error of a sum of shares that should be whole. Means are given in float64 for this reason:
# float32 has much larger rounding errors for 5,000 of them.
ROUNDING = 1e-9
# Weights of subsets up to this are only rounding.
LEAST = 1e-12


class ItemSet(Structure):
    """Subsets of n items.

    Scores are ``(B, N)``, lengths ``(B,)``, each at most N.
    """

    part_axes: ClassVar[int] = 1
    parts: ClassVar[str] = "items"
    annotation: ClassVar[str] = "parts"
    tractable = frozenset({"log_partition", "marginals", "sample", "entropy", "log_prob"})

    @property
    def _same_size(self) -> bool:
        """True if all subsets of n items have the same size."""
        return False

    def _without_common_offset(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if not self._same_size:
            return scores
        parts = self.part_mask(scores, lengths.to(scores.device))
        return subtract_highest(scores, parts, (0,))

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the chosen items, ``(k,)`` int32, in their order."""
        return np.flatnonzero(z[:length] > 0.5).astype("int32")


def decompose(mean: Tensor) -> SparseSolution:
    """Return at most N + 1 subsets whose weighted sum is ``mean`` ``(B, N)``, float64.

    The size of each subset is the sum of the mean, rounded down or up.

    The method is systematic sampling (Madow 1949). Item i takes the interval of length mean[i] of a
    line. For an offset u in [0, 1), the chosen items are those whose interval holds one of u, u +
    1, u + 2, ... The choice changes only when u passes the end of an interval, and the weights are
    the distances between these points. Weights above 0 are differentiable. If these subsets cannot
    represent a change of the mean, the gradient is for the nearest change that they can represent.
    """
    batch = len(mean)
    with torch.no_grad():
        ends = mean.cumsum(1)
        # If a sum should be whole, rounding must not leave a tiny interval on either side of it:
        # its subset would be one too large or too small.
        ends = torch.where((ends - ends.round()).abs() < ROUNDING, ends.round(), ends)
        nothing = ends.new_zeros(batch, 1)
        knots = torch.cat([nothing, ends - ends.floor(), nothing + 1.0], 1)
        knots, place = knots.sort(1)
        weights = knots[:, 1:] - knots[:, :-1]
        order = weights.argsort(dim=1, descending=True, stable=True)
        # Most of the knots of a sparse mean coincide.
        count = max(int((weights > LEAST).sum(1).max()), 1) if weights.numel() else 1
        order = order[:, :count]
        offsets = ((knots[:, 1:] + knots[:, :-1]) / 2).gather(1, order)
        begins = torch.cat([nothing, ends[:, :-1]], 1)[:, : ends.shape[1]]
        # Numbers of the form u + integer below a point. Their difference is the number in an
        # interval.
        below = (ends[:, None] - offsets[:, :, None]).ceil()
        above = (begins[:, None] - offsets[:, :, None]).ceil()
        atoms = (below - above).clamp(0, 1)
        picked = weights.gather(1, order)
        picked = torch.where(picked > LEAST, picked, 0.0)
        chosen = torch.where(picked[:, :, None] > 0, atoms, 0.0).transpose(0, 1)
        # Number of the point of each knot; an offset of 1 is the same as 0.
        point = torch.nn.functional.pad((weights > LEAST).long(), (1, 0)).cumsum(1)
        point = torch.where(point == point[:, -1:], 0, point)
        points = torch.zeros_like(point).scatter(1, place, point)[:, :-1]
        sides = point[:, :-1].gather(1, order), point[:, 1:].gather(1, order)
    picked = _Weights.apply(mean, picked, points, *sides)
    gap = torch.zeros(batch, dtype=torch.float64, device=mean.device)

    def expand(device: torch.device = mean.device) -> Tensor:
        return chosen if device == mean.device else send(chosen, device)

    return SparseSolution(mean, picked.t(), gap, expand)


class _Weights(torch.autograd.Function):
    """Distances between points of a circle, from the start to the end of each item's interval.

    If more ends coincide than ties of the mean explain, least squares determine how points move
    with the mean.

    Attributes:
        points: ``(B, N + 1)``, numbers of the points where the first interval begins and where all
            end.
        left, right: ``(B, K)``, the points between which the weights ``(B, K)`` are.
    """

    @staticmethod
    def forward(
        mean: Tensor, weights: Tensor, points: Tensor, left: Tensor, right: Tensor
    ) -> Tensor:
        return weights.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        weights, points, left, right = ctx.saved_tensors
        if not points.numel():
            return upstream.new_zeros(len(points), points.shape[1] - 1), None, None, None, None
        # Half precision has no solver.
        given = torch.where(weights > 0, upstream, 0.0).double()
        count = int(points.max()) + 1
        nothing = given.new_zeros(len(points), count)
        of_points = nothing.scatter_add(1, right, given) - nothing.scatter_add(1, left, given)
        known = nothing.scatter(1, points, 1.0)
        at = torch.nn.functional.one_hot(points, count).to(given)
        stretches = at[:, 1:] - at[:, :-1]
        # Only distances between points count: a common offset is set to 0.
        normal = stretches.mT @ stretches + known[:, :, None] * known[:, None]
        normal = normal + torch.diag_embed(1.0 - known)
        moved = torch.linalg.solve(normal, of_points)
        of_mean = (stretches @ moved[:, :, None])[:, :, 0].to(upstream.dtype)
        return of_mean, None, None, None, None
