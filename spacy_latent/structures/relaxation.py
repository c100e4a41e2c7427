"""Projection on a relaxed polytope with one choice in each group of exclusive parts."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import NotTractable
from spacy_latent.structures.base import Structure


def project_relaxed(structure: Structure, points: Tensor, lengths: Tensor) -> Tensor:
    """Return the nearest point ``(B, *parts)`` of the relaxed polytope.

    Its parts are non-negative and sum to 1 in each group.

    Groups are along ``structure.exclusive_axes``. For trees this means one head for each modifier,
    with cycles allowed. −inf forbids a part. The simplex projection is by Held et al. 1974, by
    sorting.
    """
    if not structure.exclusive_axes:
        raise NotTractable(
            structure.name, "relaxed projection", "Spigot with projection='exact', or SparseMAP"
        )
    axes = [1 + axis for axis in structure.exclusive_axes]
    rest = [axis for axis in range(points.dim()) if axis not in axes]
    order = rest + axes
    masked = points.masked_fill(~structure.part_mask(points, lengths), -torch.inf).permute(order)
    groups = masked.flatten(len(rest))
    result = project_simplex(groups).view(masked.shape)
    return result.permute([order.index(axis) for axis in range(points.dim())])


def project_simplex(points: Tensor) -> Tensor:
    """Project rows on the simplex; differentiable.

    A row without any finite entry gives zeros.
    """
    size = points.shape[-1]
    if size == 0:
        return points
    # A common offset of a row has no effect, but costs digits: float32 has none left at 1e7. Its
    # gradient is 0.
    top = points.detach().amax(-1, keepdim=True)
    points = points - top.masked_fill(top.isneginf(), 0.0)
    ordered = points.sort(-1, descending=True).values
    rank = torch.arange(1, size + 1, device=points.device, dtype=points.dtype)
    finite = ordered.masked_fill(ordered.isneginf(), 0.0)
    excess = finite.cumsum(-1) - 1.0
    support = (rank * ordered > excess).sum(-1, keepdim=True)
    threshold = excess.gather(-1, (support - 1).clamp_min(0)) / support.clamp_min(1)
    # No clamp, since it would have a slope at a point that equals the threshold and has no share.
    return torch.where(points > threshold, points - threshold, 0.0)
