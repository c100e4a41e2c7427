"""SparseMAP on listed structures, and on averages of them that satisfy constraints.

Plain linear algebra finds the solution, the face that it lies in, and the Jacobian there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

# Gaps and singular values below this are rounding errors.
ROUNDING = 1e-8
# Weights below this count as 0.
LEAST = 1e-4


@dataclass
class Solution:
    """Solution of one item, whose allowed structures are the rows ``(M, P)``.

    If ``tying`` and ``holding`` span the same space, there is one Jacobian: the projection on this
    space. Otherwise the solution is at a kink: the projection on any space between them is a limit
    of Jacobians nearby.

    Attributes:
        mean: ``(P,)``.
        tying: Orthonormal rows that span the differences of all structures that are best under the
            residual.
        holding: The same for the structures among them that have weight in some average equal to
            the mean.
    """

    mean: np.ndarray
    tying: np.ndarray
    holding: np.ndarray

    @property
    def has_kink(self) -> bool:
        return len(self.tying) > len(self.holding)

    def accepts(self, jacobian: np.ndarray, tolerance: float) -> bool:
        """Return whether ``(P, P)`` is the Jacobian, or at a kink lies between the Jacobians on
        either side."""
        inner, outer = self.holding.T @ self.holding, self.tying.T @ self.tying
        kept = np.abs(jacobian @ inner - inner).max(initial=0.0)
        beyond = np.abs(outer @ jacobian - jacobian).max(initial=0.0)
        turned = np.abs(jacobian - jacobian.T).max(initial=0.0)
        return max(kept, beyond, turned) <= tolerance


def solve(structures: np.ndarray, scores: np.ndarray) -> Solution:
    """Solve SparseMAP of ``scores`` ``(P,)``, which must be finite at parts that some structure
    has."""
    given = np.where(structures.any(0), scores, 0.0)

    def best_of_all(direction: np.ndarray) -> np.ndarray:
        found: np.ndarray = structures[(structures @ direction).argmax()]
        return found

    mean = nearest(best_of_all, given)
    totals = structures @ (given - mean)
    best = structures[totals >= totals.max() - ROUNDING]
    return Solution(mean, _directions(best), _directions(best[_with_weight(best, mean)]))


def solve_constrained(
    structures: np.ndarray, scores: np.ndarray, lines: np.ndarray, limits: np.ndarray
) -> Solution:
    """Solve as :func:`solve` does, among the averages μ of structures with lines·μ ≤ limits.

    The face of the solution depends on the structures and the constraints together.

    Args:
        lines: ``(C, P)``.
    """
    given = np.where(structures.any(0), scores, 0.0)
    count = len(structures)

    def best(direction: np.ndarray) -> np.ndarray:
        found = linprog(
            -(structures @ direction),
            A_ub=lines @ structures.T,
            b_ub=limits,
            A_eq=np.ones((1, count)),
            b_eq=[1.0],
            method="highs-ds",
        )
        assert found.status == 0, found.message
        return np.asarray(found.x @ structures)

    mean = nearest(best, given)
    held = lines[lines @ mean >= limits - LEAST * LEAST]
    residual = (given - mean) / max(np.linalg.norm(given - mean), 1.0)
    weighted = _with_weight(structures, mean)
    inside = _across(_directions(np.vstack([mean, structures[weighted]])), held)
    # Find the directions v·(structures − mean) of the polytope that are orthogonal to the residual.
    # The linear program sets as many as possible of the weights v ≥ 0 and of the slacks of
    # constraints to 1.
    steps = structures - mean
    of_steps, of_lines = np.eye(count)[~weighted], np.eye(len(held))
    rest, number = np.zeros((1, count + len(held))), len(of_steps)
    against = steps @ residual
    less = np.vstack(
        [
            np.hstack([-of_steps, of_steps, np.zeros((number, len(held)))]),
            np.hstack([held @ steps.T, np.zeros((len(held), count)), of_lines]),
            np.hstack([against[None], rest]),
            np.hstack([-against[None], rest]),
        ]
    )
    most = np.concatenate([np.zeros(number + len(held)), [ROUNDING / LEAST] * 2])
    found = linprog(
        np.concatenate([np.zeros(count), -np.ones(count + len(held))]),
        A_ub=less,
        b_ub=most,
        bounds=[(-1 / LEAST if own else 0, 1 / LEAST) for own in weighted]
        + [(0, 0 if own else 1) for own in weighted]
        + [(0, 1)] * len(held),
    )
    assert found.status == 0, found.message
    reached = found.x[count:] > 0.5
    entered, left = reached[:count] | weighted, reached[count:]
    tying = _directions(np.vstack([mean, structures[entered]]))
    return Solution(mean, _across(_across(tying, held[~left]), residual[None]), inside)


def nearest(best: Callable[[np.ndarray], np.ndarray], point: np.ndarray) -> np.ndarray:
    """Return the point of a polytope that is nearest to ``point`` (Wolfe 1976).

    SciPy's non-negative least squares are wrong at some ties.

    Args:
        best: Returns the best vertex along a direction.
    """
    chosen = [best(point)]
    weights = np.ones(1)
    while True:
        rows = np.stack(chosen) - point
        reached = weights @ rows
        new = best(-reached)
        if (new - point) @ reached > reached @ reached - 1e-13:
            return np.asarray(weights @ np.stack(chosen))
        chosen, weights = [*chosen, new], np.append(weights, 0.0)
        while True:
            # The point of least norm in the affine hull.
            rows = np.stack(chosen) - point
            directions = (rows[1:] - rows[0]).T
            others = np.linalg.lstsq(directions, -rows[0], rcond=1e-12)[0]
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
            chosen, weights = [own for own, k in zip(chosen, kept) if k], weights[kept]


def _directions(structures: np.ndarray) -> np.ndarray:
    _, values, rows = np.linalg.svd(structures - structures[:1], full_matrices=False)
    return rows[values > ROUNDING]


def _across(directions: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the directions in the span of ``directions`` that change no
    line."""
    if not lines.size or not directions.size:
        return directions
    _, values, rows = np.linalg.svd(lines @ directions.T)
    return np.asarray(rows[(values > ROUNDING).sum() :] @ directions)


def _with_weight(structures: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return a mask of the structures that have weight in some average equal to the mean.

    The linear program solves wᵀV = λ·mean and Σw = λ for w ≥ 0 and λ ≥ 0. As many w as possible are
    at least 1.
    """
    count, parts = structures.shape
    # The variables are w, then t ≤ min(w, 1), then λ.
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
