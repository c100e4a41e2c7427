"""Projection to the simplex with an upper bound on each probability: constrained sparsemax."""

from __future__ import annotations

import torch
from torch import Tensor


def bounded_sparsemax(scores: Tensor, upper: Tensor) -> Tensor:
    """Return argmin ‖p − s‖² over the simplex with 0 ≤ p ≤ upper, exact (Malaviya et al. 2018).

    The solution is p = clamp(s − τ, 0, upper), with the τ for which the sum is 1. That sum is
    piecewise linear in τ, so that τ follows from the sorted ends of the pieces. The result is
    differentiable in the scores and the bounds.

    Args:
        scores: ``(B, N)``, float64; −inf forbids an item.
        upper: ``(B, N)``, float64, at least 0. If the bounds of the allowed items sum to 1 or less,
            these items have their bounds, and the others 0.
    """
    if not scores.shape[1]:
        return scores
    allowed = ~scores.isneginf()
    # No probability is above 1, also without a bound.
    upper = torch.where(allowed, upper.clamp_max(1.0), 0.0)
    safe = _clip_gaps(scores, allowed)
    with torch.no_grad():
        # As τ falls, p begins to grow at τ = s and stops at τ = s − upper.
        ends = torch.cat([safe, safe - upper], 1)
        turns = torch.cat([allowed.to(ends), -allowed.to(ends)], 1)
        ends, order = ends.sort(1, descending=True)
        slopes = turns.gather(1, order).cumsum(1)[:, :-1]
        sums = (slopes * (ends[:, :-1] - ends[:, 1:])).cumsum(1)
        piece = (sums < 1).sum(1, keepdim=True).clamp_max(sums.shape[1] - 1)
        middle = (ends.gather(1, piece) + ends.gather(1, piece + 1)) / 2
        full = upper.sum(1, keepdim=True) <= 1
        bound = allowed & (full | (safe - upper >= middle))
        free = allowed & ~bound & (safe > middle)
    count = free.sum(1, keepdim=True).clamp_min(1)
    inside, fixed = torch.where(free, safe, 0.0), torch.where(bound, upper, 0.0)
    threshold = (inside.sum(1, keepdim=True) + fixed.sum(1, keepdim=True) - 1) / count
    return torch.where(free, safe - threshold, fixed)


def _clip_gaps(scores: Tensor, allowed: Tensor) -> Tensor:
    """Return scores with the same solution, highest 0, whose gaps in sorted order are at most 2.

    Probabilities are at most 1. So an item only gets one if all items more than 1 above it have
    reached their bounds, and the size of such a gap does not matter. With smaller gaps, a score of
    1e30 does not absorb the digits of the others. The gradient is the gradient of the given scores.
    """
    with torch.no_grad():
        least = torch.where(allowed, scores, torch.inf).amin(1, keepdim=True)
        filled = torch.where(allowed, scores, torch.where(least.isinf(), 0.0, least))
        ordered, order = filled.sort(1, descending=True)
        steps = (ordered[:, :-1] - ordered[:, 1:]).clamp_max(2.0).cumsum(1)
        below = torch.cat([torch.zeros_like(ordered[:, :1]), steps], 1)
        near = torch.zeros_like(filled).scatter(1, order, -below)
    known = torch.where(allowed, scores, 0.0)
    return torch.where(allowed, near + (known - known.detach()), 0.0)
