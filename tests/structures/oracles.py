"""Structures defined by the list of their members, as references for algorithms that need only a
MAP oracle."""

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
    """A structure whose members a function lists. MAP compares the scores of all members."""

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
    """Return the structure of all dependency trees, as arcs ``(n+1, n+1)``."""

    def members(n: int) -> np.ndarray:
        trees = enumeration.dependency_trees(n, projective, single_root)
        return np.stack([enumeration.arcs(heads) for heads in trees])

    return Listed(2, members)


def listed_subsets(smallest: int, largest: int) -> Listed:
    """Return the structure of subsets with ``smallest`` to ``largest`` of n items.

    A member may contain another member.
    """

    def members(n: int) -> np.ndarray:
        rows = []
        for size in range(min(smallest, n), min(largest, n) + 1):
            for chosen in combinations(range(n), size):
                rows.append(np.isin(np.arange(n), chosen).astype(float))
        return np.stack(rows)

    return Listed(1, members)


def nearest_in_hull(vertices: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Return the point of the hull of the rows of ``vertices`` that is nearest to ``point``."""
    # min ‖Vᵀw − p‖ with w ≥ 0. The row of large weight keeps Σw near 1. After the shift by p, the
    # division by Σw makes the point exact.
    heavy = 1e4
    matrix = np.vstack([(vertices - point).T, np.full((1, len(vertices)), heavy)])
    weights, _ = nnls(matrix, np.append(np.zeros(len(point)), heavy), maxiter=10_000)
    return vertices.T @ (weights / weights.sum())
