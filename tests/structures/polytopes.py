"""SparseMAP on listed structures by plain linear algebra: the solution, the face that it lies in,
and the Jacobian there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

# Gaps and singular values below are rounding.
ROUNDING = 1e-8
# The least weight that is one.
LEAST = 1e-4


@dataclass
class Solution:
    """Of one item, of whose structures ``(M, P)`` those are the rows that nothing forbids.

    mean: ``(P,)``. tying: orthonormal rows, the differences of all structures that are best under
    the residual. holding: of those among them that have weight in some average that is the mean.
    Where both are the same there is one Jacobian, the projection on them; else that on any space
    between is one of its limits nearby.
    """

    mean: np.ndarray
    tying: np.ndarray
    holding: np.ndarray

    @property
    def has_kink(self) -> bool:
        return len(self.tying) > len(self.holding)

    def accepts(self, jacobian: np.ndarray, tolerance: float) -> bool:
        """Whether ``(P, P)`` is the Jacobian, or at a kink between those at its sides."""
        inner, outer = self.holding.T @ self.holding, self.tying.T @ self.tying
        kept = np.abs(jacobian @ inner - inner).max(initial=0.0)
        beyond = np.abs(outer @ jacobian - jacobian).max(initial=0.0)
        turned = np.abs(jacobian - jacobian.T).max(initial=0.0)
        return max(kept, beyond, turned) <= tolerance


def solve(structures: np.ndarray, scores: np.ndarray) -> Solution:
    """``scores`` ``(P,)``, finite where a structure has a part."""
    given = np.where(structures.any(0), scores, 0.0)
    mean = nearest(structures, given)
    totals = structures @ (given - mean)
    best = structures[totals >= totals.max() - ROUNDING]
    return Solution(mean, _directions(best), _directions(best[_with_weight(best, mean)]))


def nearest(vertices: np.ndarray, point: np.ndarray) -> np.ndarray:
    """The nearest point to ``point`` of the convex hull of the rows of ``vertices`` (Wolfe 1976).
    Non-negative least squares of scipy are wrong at some ties."""
    rows = vertices - point
    chosen = [int((rows**2).sum(1).argmin())]
    weights = np.ones(1)
    while True:
        reached = weights @ rows[chosen]
        best = int((rows @ reached).argmin())
        if rows[best] @ reached > reached @ reached - 1e-13:
            return weights @ vertices[chosen]
        chosen, weights = [*chosen, best], np.append(weights, 0.0)
        while True:
            # The least of the affine hull.
            directions = (rows[chosen[1:]] - rows[chosen[0]]).T
            others = np.linalg.lstsq(directions, -rows[chosen[0]], rcond=1e-12)[0]
            goal = np.append(1.0 - others.sum(), others)
            falling = goal < 1e-14
            if not falling.any():
                weights = goal
                break
            change = goal - weights
            step = (-weights[falling] / change[falling]).min()
            weights = weights + step * change
            kept = weights > 1e-14
            kept[falling & (weights <= weights[falling].min())] = False
            chosen, weights = [i for i, own in zip(chosen, kept) if own], weights[kept]


def _directions(structures: np.ndarray) -> np.ndarray:
    _, values, rows = np.linalg.svd(structures - structures[:1], full_matrices=False)
    return rows[values > ROUNDING]


def _with_weight(structures: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Which of them have weight in some average of these that is the mean: w ≥ 0 and λ ≥ 0 with
    wᵀV = λ·mean and Σw = λ, as many of the w as possible at least 1."""
    count, parts = structures.shape
    # w, then t ≤ min(w, 1), then λ.
    equal = np.zeros((parts + 1, 2 * count + 1))
    equal[:parts, :count], equal[parts, :count] = structures.T, 1.0
    equal[:parts, -1], equal[parts, -1] = -mean, -1.0
    less = np.hstack([-np.eye(count), np.eye(count), np.zeros((count, 1))])
    slack = np.full(2 * len(equal), ROUNDING / LEAST)
    found = linprog(
        np.concatenate([np.zeros(count), -np.ones(count), [0.0]]),
        A_ub=np.vstack([less, equal, -equal]),
        b_ub=np.concatenate([np.zeros(count), slack]),
        bounds=[(0, None)] * count + [(0, 1)] * count + [(0, 1 / LEAST)],
    )
    assert found.status == 0, found.message
    return np.asarray(found.x[count : 2 * count] > 0.5)
