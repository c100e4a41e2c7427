"""Structures defined by listing their members: a reference for what needs only a MAP oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from spacy_latent.structures.base import Structure
from tests import enumeration


class Listed(Structure):
    """Members of each length given by a function; MAP by looking at every one."""

    def __init__(self, part_axes: int, members: Callable[[int], np.ndarray]) -> None:
        self.part_axes = part_axes  # type: ignore[misc]
        self.members = members

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.zeros_like(scores, dtype=torch.bool)
        for b, n in enumerate(lengths.tolist()):
            used = torch.from_numpy(self.members(n).any(0))
            mask[b][tuple(slice(0, size) for size in used.shape)] = used
        return mask

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        z = torch.zeros_like(scores)
        for b, n in enumerate(lengths.tolist()):
            members = torch.from_numpy(self.members(n)).to(scores)
            window = tuple(slice(0, size) for size in members.shape[1:])
            own = scores[b][window]
            totals = torch.where(members > 0, own, 0.0).flatten(1).sum(1)
            if torch.isneginf(totals.max()):
                self.raise_infeasible([b])
            z[b][window] = members[totals.argmax()]
        return z


def listed_trees(projective: bool = False, single_root: bool = False) -> Listed:
    """Dependency trees, arcs ``(n+1, n+1)``."""

    def members(n: int) -> np.ndarray:
        trees = enumeration.dependency_trees(n, projective, single_root)
        return np.stack([enumeration.arcs(heads) for heads in trees])

    return Listed(2, members)


def listed_subsets(smallest: int, largest: int) -> Listed:
    """Subsets of n items with between ``smallest`` and ``largest`` of them; some hold others."""

    def members(n: int) -> np.ndarray:
        rows = []
        for size in range(min(smallest, n), min(largest, n) + 1):
            for chosen in combinations(range(n), size):
                rows.append(np.isin(np.arange(n), chosen).astype(float))
        return np.stack(rows)

    return Listed(1, members)


def nearest_in_hull(vertices: np.ndarray, point: np.ndarray) -> np.ndarray:
    """The nearest point to ``point`` of the convex hull of the rows of ``vertices``."""
    # min ‖Vᵀw − p‖ with w ≥ 0; the heavy row keeps Σw at 1, and is exact after shifting by p.
    heavy = 1e4
    matrix = np.vstack([(vertices - point).T, np.full((1, len(vertices)), heavy)])
    weights, _ = nnls(matrix, np.append(np.zeros(len(point)), heavy), maxiter=10_000)
    return vertices.T @ (weights / weights.sum())
