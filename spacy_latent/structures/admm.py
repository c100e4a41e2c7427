"""Solver of LP-SparseMAP: the alternating direction method of multipliers (ADMM).

It works on a batch of factor graphs. The exact solution on the faces that it finds completes it,
and the Jacobian is computed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.sparsemap.factor_active_set import FactorSupports
from spacy_latent.structures.encoded_graph import EncodedGraph, GraphBatch
from spacy_latent.structures.factor_projections import Infeasible, Projections

# Calls of a structure's oracle in an iteration. While the copies of a part differ much, exact
# projections are of little use. Supports are kept for the next iteration.
ROUNDS = 10
# Smallest bound on these calls before the first iteration, and in an attempt to finish. The bound
# may be as large as the number of iterations: a structure that is missing from a support is missing
# from its face.
FINISHING_ROUNDS = 200
# Iterations before the first attempt to finish, and the factor by which the number grows.
FIRST_ATTEMPT, LATER_ATTEMPTS = 10, 1.5
# Steps of conjugate gradients in an attempt. Near the solution few are needed.
TRIAL_STEPS = 60
# Steps of conjugate gradients without progress before they end.
STALLED = 25
# Faces meet if points on them differ by at most this.
MEETING = 1e-7
# Penalties change by this factor if residuals differ by more than its square.
PENALTY_FACTOR = 2.0
# Scores are clipped to this: beyond it float64 has no digits left for the quadratic term.
LARGEST_SCORE = 1e8
# Conjugate gradients make no step along a direction whose image is only rounding.
FLAT = 1e-15


class _Iteration(NamedTuple):
    """Result of one iteration.

    Attributes:
        mean: consensus, per part.
        normals, apart: distances of the copies from the points, and from the consensus, per edge.
        primal, dual, unsolved: residuals ``(B,)``, the last one of the projections.
    """

    mean: np.ndarray
    normals: np.ndarray
    apart: np.ndarray
    primal: np.ndarray
    dual: np.ndarray
    unsolved: np.ndarray


class Problem:
    """Problem min ½‖μ − s‖² with the parts of μ of every factor f in its hull M_f.

    ADMM splits the problem into a copy z_f of the parts of each factor and the consensus μ. A copy
    is the projection of μ − u_f on M_f, with u_f the scaled multipliers. The copy of a structure is
    found by the active-set method, starting from the support of the iteration before. Unlike in the
    paper, the quadratic term stays with μ. Each part is then counted once, and all projections are
    plainly Euclidean.
    """

    def __init__(self, graphs: Sequence[EncodedGraph], scores: np.ndarray) -> None:
        self.graphs = batch = GraphBatch(graphs)
        exists = batch.degree > 0
        wrong = exists & ~(scores < np.inf)
        self.not_finite = np.unique(batch.item[wrong]).tolist()
        self.allowed = exists & np.isfinite(scores)
        given = np.where(self.allowed, scores, 0.0)
        self.target = given.clip(-LARGEST_SCORE, LARGEST_SCORE)
        self.cut = given - self.target
        self.edge_allowed = self.allowed[batch.part]
        largest = np.zeros(batch.size)
        np.maximum.at(largest, batch.item, np.abs(self.target))
        self.projections = Projections(batch, largest)
        self.residual = np.zeros(batch.size)
        self.iterations = np.zeros(batch.size, dtype=np.int64)
        self.penalty = np.ones(batch.size)

    def normal(self, directions: np.ndarray) -> np.ndarray:
        """Return the component of ``directions`` that is normal to the face of each factor's copy.

        The directions have one number per edge.
        """
        along = self.projections.along(directions)
        return np.where(self.edge_allowed, directions - along, 0.0)

    # ---------------------------------------------------------------- solving

    def solve(self, max_iter: int, tolerance: float) -> np.ndarray:
        """Solve the problem, and set ``residual`` and ``iterations``.

        Returns:
            μ, per part.
        """
        graphs, penalty = self.graphs, self.penalty
        item, edge_item, owned = graphs.item, graphs.edge_item, graphs.owned
        live = np.ones(graphs.size, dtype=np.bool_)
        # Disjoint factors alone are solved by their projections. If the projections also satisfy
        # all other factors, the first iteration has nothing to do.
        points = np.where(self.edge_allowed, self.target[graphs.part], -np.inf)
        finishing = max(FINISHING_ROUNDS, max_iter)
        self.projections.project(points, live, finishing)
        self.residual = self.projections.unsolved()
        mean = self.target.copy()
        mean[graphs.part[owned]] = self.projections.copies[owned]
        duals = np.where(owned, (mean - self.target)[graphs.part], 0.0)
        normals = np.zeros(len(duals))
        live = graphs.per_item(~owned) > 0
        attempt, since = FIRST_ATTEMPT, 0
        for iteration in range(1, max_iter + 1):
            if not live.any():
                break
            trying = iteration >= attempt
            if trying:
                kept = mean, duals, self.residual
                strength = penalty[edge_item]
                found, multipliers, exists = self._on_faces(normals * strength, live)
                mean = np.where(exists[item], found, mean)
                duals = np.where(exists[edge_item], -multipliers / strength, duals)
            made = self._iterate(mean, duals, live, finishing if trying else ROUNDS)
            normals = made.normals
            residual = np.maximum(np.maximum(made.primal, made.dual), made.unsolved)
            mean = np.where(live[item], made.mean, mean)
            duals = np.where(live[edge_item], duals + made.apart, duals)
            self.residual = np.where(live, residual, self.residual)
            self.iterations[live] = iteration
            if trying:
                worse = exists & (self.residual > 0.5 * kept[2])
                mean = np.where(worse[item], kept[0], mean)
                duals = np.where(worse[edge_item], kept[1], duals)
                self.residual = np.where(worse, kept[2], self.residual)
                # Faces belong to the kept point only after another iteration.
                attempt = iteration + 1
                if not (exists & ~worse).any():
                    attempt = int(iteration * LATER_ATTEMPTS)
            live = live & (self.residual > tolerance)
            since += 1
            if since >= 10 and not trying:
                since = 0
                self._prove_infeasible(normals, live & (made.unsolved == 0))
                if iteration <= max_iter // 2:
                    growth = _growth(made, live)
                    penalty *= growth
                    duals /= growth[edge_item]
                    normals /= growth[edge_item]
        mean = np.clip(mean, 0.0, 1.0)
        self.residual = np.maximum(self.residual, self._clipping_error(mean, tolerance))
        return mean

    def _iterate(
        self, mean: np.ndarray, duals: np.ndarray, live: np.ndarray, rounds: int
    ) -> _Iteration:
        """Set the copies to the projections of μ − u, and return their consensus."""
        graphs, strength = self.graphs, self.penalty[self.graphs.item]
        points = np.where(self.edge_allowed, mean[graphs.part] - duals, -np.inf)
        self.projections.project(points, live, rounds)
        copies = self.projections.copies
        total = graphs.gather(np.where(self.edge_allowed, copies + duals, 0.0))
        after = (self.target + strength * total) / (1.0 + strength * graphs.degree)
        after[~self.allowed] = 0.0
        normals = np.where(self.edge_allowed, points - copies, 0.0)
        apart = np.where(self.edge_allowed, copies - after[graphs.part], 0.0)
        explained = strength * graphs.gather(normals)
        rest = np.where(self.allowed, self.target - after - explained, 0.0)
        primal, dual = graphs.per_item(apart * apart), graphs.per_item_of_parts(rest * rest)
        unsolved = self.projections.unsolved()
        return _Iteration(after, normals, apart, np.sqrt(primal), np.sqrt(dual), unsolved)

    def _clipping_error(self, mean: np.ndarray, tolerance: float) -> np.ndarray:
        """Return a bound on the error of the solution of each item because of clipped scores.

        A part with a low score should be 0, and a part with a high score 1. Then the clipped amount
        changes nothing. Otherwise another point gains at most this amount times the distance of the
        part from there, and the solution is within √(2·gain).
        """
        missing = np.where(self.cut > 0.0, 1.0 - mean, mean)
        missing[missing <= tolerance] = 0.0
        return np.sqrt(2.0 * self.graphs.per_item_of_parts(np.abs(self.cut) * missing))

    def _on_faces(
        self, multipliers: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the solution if every factor's copy moved only on the face on which it lies now.

        Returns:
            μ; the multipliers, per edge, that explain it; and whether the faces of the item meet at
            all. Near the solution, μ and the multipliers are exact.
        """
        start = self.target - self.graphs.gather(multipliers)
        start[~self.allowed] = 0.0
        found, change, missed = self._fit(start, self.projections.copies, live, TRIAL_STEPS)
        return found, multipliers + change, live & (missed <= MEETING)

    def _prove_infeasible(self, normals: np.ndarray, live: np.ndarray) -> None:
        """Raise if the normals w_f prove that the hulls have no common point.

        For a common point x in [0, 1], Σ w_f·x ≤ Σ max over M_f of w_f·z, which is Σ w_f·z_f. But
        Σ_f w_f·x is at least the sum of its negative coefficients.
        """
        bound = self.graphs.per_item(normals * self.projections.copies)
        least = self.graphs.per_item_of_parts(np.minimum(self.graphs.gather(normals), 0.0))
        margin = 1e-9 * (1.0 + self.graphs.per_item(np.abs(normals)))
        wrong = np.flatnonzero(live & (bound < least - margin))
        if len(wrong):
            raise Infeasible(wrong.tolist())

    # ---------------------------------------------------------------- backward

    def jacobian(self, upstream: np.ndarray) -> np.ndarray:
        """Return the product of the Jacobian of μ, which is symmetric, with ``upstream``.

        Near s the solution is the projection on the intersection of the faces. So its Jacobian
        projects on the directions that all faces share: the residual of a least-squares fit by
        normals. Conjugate gradients need the factors' own Jacobians only. Supports grow by
        structures that tie with them, see :class:`~spacy_latent.structures.faces.Faces`.
        """
        kept = self.projections.supports
        # Restored afterwards, so that the structures added for one gradient do not affect the next,
        # and the same call gives the same result.
        self.projections.supports = FactorSupports(*(part.copy() for part in kept))
        try:
            return self._fit_on_faces(upstream)
        finally:
            self.projections.supports = kept

    def _fit_on_faces(self, upstream: np.ndarray) -> np.ndarray:
        # In exact arithmetic, the number of dimensions of the largest item would suffice.
        most = 4 * int(np.bincount(self.graphs.edge_item, minlength=1).max(initial=0)) + 10
        everything = np.ones(self.graphs.size, dtype=np.bool_)
        left, goals = np.where(self.allowed, upstream, 0.0), np.zeros(len(self.graphs.part))
        faces = self.projections.faces(self.penalty, FINISHING_ROUNDS)
        while True:
            found, normals, _ = self._fit(left, goals, everything, most)
            before = int(faces.items.counts.sum())
            # Components that a face does not determine must be equal for all structures that tie.
            faces.pull_back(normals[: self.graphs.border])
            assert faces.row_sums is not None
            self.projections.supports = self.projections.supports._replace(
                atoms=faces.items.atoms, inverses=faces.inverses, row_sums=faces.row_sums
            )
            if int(faces.items.counts.sum()) == before:
                return found

    def _fit(
        self, left: np.ndarray, goals: np.ndarray, live: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the nearest point to ``left`` that differs from ``goals`` only along the faces.

        ``left`` is per part and ``goals`` per edge. The method is conjugate gradients on the normal
        equations of the least-squares fit.

        Returns:
            The point; the normals, per edge, whose sum leads there; and, per item, the size of the
            differences in other directions.
        """
        graphs = self.graphs
        taken = np.zeros(len(graphs.part))
        slope = self.normal(left[graphs.part] - goals)
        direction = slope.copy()
        power = graphs.per_item(slope * slope)
        best, stalled = power, np.zeros(graphs.size, dtype=np.int64)
        for _ in range(steps):
            # Below this the remainder is rounding, ultimately of the inverses.
            busy = live & (power > 1e-26) & (stalled < STALLED)
            if not busy.any():
                break
            image = graphs.gather(direction)
            image[~self.allowed] = 0.0
            length = graphs.per_item_of_parts(image * image)
            moving = busy & (length > FLAT * graphs.per_item(direction * direction))
            step = np.divide(power, length, out=np.zeros(graphs.size), where=moving)
            left = left - step[graphs.item] * image
            taken += step[graphs.edge_item] * direction
            slope = self.normal(left[graphs.part] - goals)
            before, power = power, graphs.per_item(slope * slope)
            ratio = np.divide(power, before, out=np.zeros(graphs.size), where=moving)
            direction = slope + ratio[graphs.edge_item] * direction
            stalled = np.where(power < 0.5 * best, 0, stalled + busy)
            best = np.minimum(best, power)
        return left, taken, np.sqrt(power)


def _growth(made: _Iteration, live: np.ndarray) -> np.ndarray:
    """Return the factor of each item's penalty that brings its two residuals closer."""
    growth = np.ones(len(live))
    growth[live & (made.primal > PENALTY_FACTOR**2 * made.dual)] = PENALTY_FACTOR
    growth[live & (made.dual > PENALTY_FACTOR**2 * made.primal)] = 1.0 / PENALTY_FACTOR
    return growth
