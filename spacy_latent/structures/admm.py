"""Solver of LP-SparseMAP: the alternating direction method of multipliers (ADMM).

It works on a batch of factor graphs. The exact solution on the faces that it finds completes it,
and the Jacobian is computed there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from spacy_latent.errors import InfeasibleError
from spacy_latent.kernels.sparsemap import factor_active_set, logic_factors
from spacy_latent.kernels.sparsemap.active_set import row_room
from spacy_latent.structures.base import Structure
from spacy_latent.structures.encoded_graph import EncodedGraph
from spacy_latent.structures.faces import Faces

# Calls of a structure's oracle in an iteration. While copies differ much, exact ones are of little
# use, and supports are kept for the next iteration.
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


class Infeasible(Exception):
    def __init__(self, items: list[int]) -> None:
        super().__init__(items)
        self.items = items


class Problem:
    """Problem min ½‖μ − s‖² with the parts of μ of every factor f in its hull M_f.

    Items, and within them factors and parts, lie one after the other. An *edge* is a part in a
    factor; the edges of structures come first.

    ADMM splits the problem into a copy z_f of the parts of each factor and the consensus μ. A copy
    is the projection of μ − u_f on M_f, with u_f the scaled multipliers. The copy of a structure is
    found by the active-set method, starting from the support of the iteration before. Unlike in the
    paper, the quadratic term stays with μ. Each part is then counted once, and all projections are
    plainly Euclidean.
    """

    def __init__(self, graphs: Sequence[EncodedGraph], scores: np.ndarray) -> None:
        self.batch = len(graphs)
        counts = [int(np.prod(g.shape)) for g in graphs]
        offsets = np.cumsum([0, *counts])
        self.item = np.repeat(np.arange(self.batch), counts)
        self.num_parts = len(scores)

        def both(of_structures: list[np.ndarray], of_logic: list[np.ndarray]) -> np.ndarray:
            return np.concatenate([*of_structures, *of_logic, np.empty(0, np.int64)])

        edges = [g.edges + offset for g, offset in zip(graphs, offsets)]
        split = [g.num_structure_edges for g in graphs]
        self.part = both(
            [own[:k] for own, k in zip(edges, split)], [own[k:] for own, k in zip(edges, split)]
        ).astype(np.int64)
        self.owned = both(
            [g.owned[:k] for g, k in zip(graphs, split)],
            [g.owned[k:] for g, k in zip(graphs, split)],
        ).astype(np.bool_)
        self.edge_item = self.item[self.part]
        self.border = sum(split)
        self.degree = np.bincount(self.part, minlength=self.num_parts)

        exists = self.degree > 0
        wrong = exists & ~(scores < np.inf)
        self.not_finite = np.unique(self.item[wrong]).tolist()
        self.allowed = exists & np.isfinite(scores)
        given = np.where(self.allowed, scores, 0.0)
        self.target = given.clip(-LARGEST_SCORE, LARGEST_SCORE)
        self.cut = given - self.target
        self.edge_allowed = self.allowed[self.part]

        structures = [f for g in graphs for f in g.structures]
        own = [len(g.structures) for g in graphs]
        self.factor_item = np.repeat(np.arange(self.batch), own)
        self.logic_item = np.repeat(np.arange(self.batch), [len(g.kinds) for g in graphs])
        self.kinds = both([], [g.kinds for g in graphs]).astype(np.int8)
        self.limits = both([], [g.limits for g in graphs]).astype(np.float64)
        self.flips = both([], [g.flips for g in graphs]).astype(np.bool_)
        sizes = both([g.sizes[:k] for g, k in zip(graphs, own)], []).astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        logic_sizes = both([], [g.sizes[k:] for g, k in zip(graphs, own)]).astype(np.int64)
        self.logic_starts = np.concatenate([[0], np.cumsum(logic_sizes)]).astype(np.int64)

        num_edges = len(self.part)
        self.copies = np.zeros(num_edges)
        self.marks = np.zeros(num_edges - self.border, dtype=np.int8)
        self.tied = np.zeros(len(self.kinds), dtype=np.bool_)
        self.status = np.zeros(len(self.kinds), dtype=np.int8)
        self.gradients = np.zeros(self.border + 1)
        self.gradients[-1] = -np.inf
        self.gaps = np.zeros(len(self.factor_item))
        self.residual = np.zeros(self.batch)
        self.iterations = np.zeros(self.batch, dtype=np.int64)

        capacity, widest = row_room(1), 1
        for f in structures:
            widest = max(widest, sum(f.parts.shape))
        self.atoms = np.full((len(structures), capacity, widest), -1, dtype=np.int32)
        self.supports = np.zeros(len(structures), dtype=np.int64)
        self.inverses = np.zeros((len(structures), capacity, capacity))
        self.row_sums = np.zeros((len(structures), capacity))
        self.weights = np.zeros((len(structures), capacity))
        # The gap is a difference of sums of parts that may be as large as the scores. It must reach
        # the size of their rounding: in the Jacobian, a structure of small weight counts as any
        # other.
        largest = np.zeros(self.batch)
        np.maximum.at(largest, self.item, np.abs(self.target))
        self.tolerances = 1e-15 * (1.0 + largest[self.factor_item]) * np.sqrt(1.0 + sizes)

        slots = [own for g in graphs for own in g.slots]
        self.oracles: list[_Oracle] = []
        for structure in {id(f.structure): f.structure for f in structures}.values():
            same = [i for i, f in enumerate(structures) if f.structure is structure]
            self.oracles.append(
                _Oracle(
                    structure,
                    np.array(same),
                    [structures[i].parts.shape for i in same],
                    [structures[i].length for i in same],
                    [slots[i] for i in same],
                    self.starts,
                    self.border,
                )
            )

    # ---------------------------------------------------------------- projections

    def project(self, points: np.ndarray, live: np.ndarray, rounds: int) -> None:
        """Set ``copies`` of the live items to the projections of ``points``, per edge.

        If a structure's projection needs more than ``rounds`` calls of its oracle, ``gaps`` is left
        above 0.
        """
        border = self.border
        logic_factors.project_logic(
            live[self.logic_item],
            self.kinds,
            self.limits,
            self.logic_starts,
            self.flips,
            points[border:],
            self.copies[border:],
            self.marks,
            self.tied,
            self.status,
        )
        if self.status.any():
            raise Infeasible(np.unique(self.logic_item[self.status != 0]).tolist())
        if not len(self.supports):
            return
        which = np.flatnonzero(live[self.factor_item])
        fresh = which[self.supports[which] == 0]
        for f in fresh:
            own = slice(self.starts[f], self.starts[f + 1])
            self.gradients[own] = points[own]
        self._enlarge()
        begun = which[self.supports[which] > 0]
        factor_active_set.restart(begun, self.starts, points, self.gradients, self._supports())
        for oracle in self.oracles:
            asking = np.flatnonzero(live[self.factor_item[oracle.factors]])
            for _ in range(rounds):
                if not len(asking):
                    break
                candidates = self._ask(oracle, asking)
                self._enlarge()
                changed = factor_active_set.offer(
                    oracle.factors[asking],
                    candidates,
                    self.starts,
                    self.tolerances,
                    self.gaps,
                    self.gradients,
                    self._supports(),
                )
                asking = asking[changed]
        factor_active_set.means(
            which, self.starts, self.atoms, self.supports, self.weights, self.copies
        )

    def _supports(self) -> factor_active_set.FactorSupports:
        return factor_active_set.FactorSupports(
            self.atoms, self.supports, self.inverses, self.row_sums, self.weights
        )

    def _ask(self, oracle: _Oracle, rows: np.ndarray) -> np.ndarray:
        """Return the best atom under the gradient of each factor in ``rows`` of the oracle."""
        items = self.factor_item[oracle.factors[rows]]
        try:
            candidates, wrong = oracle.best(rows, self.gradients, self.atoms.shape[2])
        except InfeasibleError as error:
            raise Infeasible(sorted({int(items[i]) for i in error.items})) from None
        if wrong.any():
            raise Infeasible(np.unique(items[wrong]).tolist())
        if candidates.shape[1] > self.atoms.shape[2]:
            wider = ((0, 0), (0, 0), (0, candidates.shape[1] - self.atoms.shape[2]))
            self.atoms = np.pad(self.atoms, wider, constant_values=-1)
        return candidates

    def _enlarge(self) -> None:
        capacity = self.atoms.shape[1]
        if self.supports.max(initial=0) >= capacity:
            self.atoms = np.pad(self.atoms, ((0, 0), (0, capacity), (0, 0)), constant_values=-1)
            self.inverses = np.pad(self.inverses, ((0, 0), (0, capacity), (0, capacity)))
            self.row_sums = np.pad(self.row_sums, ((0, 0), (0, capacity)))
            self.weights = np.pad(self.weights, ((0, 0), (0, capacity)))

    def normal(self, directions: np.ndarray) -> np.ndarray:
        """Return the component of ``directions`` that is normal to the face of each factor's copy.

        The directions have one number per edge.

        It is the face of the factor's hull on which the copy lies.
        """
        along = np.empty(len(directions))
        border = self.border
        logic_factors.logic_jacobian(
            self.logic_starts, self.marks, self.tied, directions[border:], along[border:]
        )
        if len(self.supports):
            factor_active_set.support_jacobian(
                self.starts,
                self.atoms,
                self.supports,
                self.inverses,
                self.row_sums,
                directions,
                along,
            )
        return np.where(self.edge_allowed, directions - along, 0.0)

    # ---------------------------------------------------------------- sums

    def _gather(self, edges: np.ndarray) -> np.ndarray:
        """Return the sums over the edges of each part."""
        return np.bincount(self.part, edges, minlength=self.num_parts)

    def _per_item(self, edges: np.ndarray) -> np.ndarray:
        return np.bincount(self.edge_item, edges, minlength=self.batch)

    def _norms(self, parts: np.ndarray) -> np.ndarray:
        return np.sqrt(np.bincount(self.item, parts * parts, minlength=self.batch))

    # ---------------------------------------------------------------- solving

    def solve(self, max_iter: int, tolerance: float) -> np.ndarray:
        """Solve the problem, and set ``residual`` and ``iterations``.

        Returns:
            μ, per part.
        """
        live = np.ones(self.batch, dtype=np.bool_)
        self.penalty = penalty = np.ones(self.batch)
        # Disjoint factors alone are solved by their projections. If the projections also satisfy
        # all other factors, the first iteration has nothing to do.
        points = np.where(self.edge_allowed, self.target[self.part], -np.inf)
        finishing = max(FINISHING_ROUNDS, max_iter)
        self.project(points, live, finishing)
        np.maximum.at(self.residual, self.factor_item, np.sqrt(2.0 * self.gaps))
        mean = self.target.copy()
        mean[self.part[self.owned]] = self.copies[self.owned]
        duals = np.where(self.owned, (mean - self.target)[self.part], 0.0)
        normals = np.zeros(len(duals))
        live = np.bincount(self.edge_item, ~self.owned, minlength=self.batch) > 0
        attempt, since = FIRST_ATTEMPT, 0
        for iteration in range(1, max_iter + 1):
            if not live.any():
                break
            trying = iteration >= attempt
            if trying:
                kept = mean, duals, self.residual
                strength = penalty[self.edge_item]
                found, multipliers, exists = self._on_faces(normals * strength, live)
                mean = np.where(exists[self.item], found, mean)
                duals = np.where(exists[self.edge_item], -multipliers / strength, duals)
            points = np.where(self.edge_allowed, mean[self.part] - duals, -np.inf)
            self.project(points, live, finishing if trying else ROUNDS)
            strength = penalty[self.item]
            total = self._gather(np.where(self.edge_allowed, self.copies + duals, 0.0))
            after = (self.target + strength * total) / (1.0 + strength * self.degree)
            after[~self.allowed] = 0.0
            normals = np.where(self.edge_allowed, points - self.copies, 0.0)
            apart = np.where(self.edge_allowed, self.copies - after[self.part], 0.0)
            primal = np.sqrt(self._per_item(apart * apart))
            explained = strength * self._gather(normals)
            dual = self._norms(np.where(self.allowed, self.target - after - explained, 0.0))
            unsolved = np.zeros(self.batch)
            np.maximum.at(unsolved, self.factor_item, np.sqrt(2.0 * self.gaps))
            residual = np.maximum(np.maximum(primal, dual), unsolved)
            mean = np.where(live[self.item], after, mean)
            duals = np.where(live[self.edge_item], duals + apart, duals)
            self.residual = np.where(live, residual, self.residual)
            self.iterations[live] = iteration
            if trying:
                worse = exists & (self.residual > 0.5 * kept[2])
                mean = np.where(worse[self.item], kept[0], mean)
                duals = np.where(worse[self.edge_item], kept[1], duals)
                self.residual = np.where(worse, kept[2], self.residual)
                # Faces belong to the kept point only after another iteration.
                attempt = iteration + 1
                if not (exists & ~worse).any():
                    attempt = int(iteration * LATER_ATTEMPTS)
            live = live & (self.residual > tolerance)
            since += 1
            if since >= 10 and not trying:
                since = 0
                self._prove_infeasible(normals, live & (unsolved == 0))
                growth = np.ones(self.batch)
                growth[live & (primal > PENALTY_FACTOR**2 * dual)] = PENALTY_FACTOR
                growth[live & (dual > PENALTY_FACTOR**2 * primal)] = 1.0 / PENALTY_FACTOR
                if iteration <= max_iter // 2:
                    penalty *= growth
                    duals /= growth[self.edge_item]
                    normals /= growth[self.edge_item]
        mean = np.clip(mean, 0.0, 1.0)
        self.residual = np.maximum(self.residual, self._clipping_error(mean, tolerance))
        return mean

    def _clipping_error(self, mean: np.ndarray, tolerance: float) -> np.ndarray:
        """Return a bound on the error of the solution of each item because of clipped scores.

        If the part is 0, or 1 with a high score, no point of [0, 1] gains by the clipped amount.
        Otherwise a point gains at most the product, and the solution is within √(2·gain).
        """
        missing = np.where(self.cut > 0.0, 1.0 - mean, mean)
        missing[missing <= tolerance] = 0.0
        return np.sqrt(2.0 * np.bincount(self.item, np.abs(self.cut) * missing, self.batch))

    def _on_faces(
        self, multipliers: np.ndarray, live: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the solution if every factor's copy moved only on the face on which it lies now.

        Returns:
            μ; the multipliers, per edge, that explain it; and whether the faces of the item meet at
            all. Near the solution, μ and the multipliers are exact.
        """
        start = self.target - self._gather(multipliers)
        start[~self.allowed] = 0.0
        found, change, missed = self._fit(start, self.copies, live, TRIAL_STEPS)
        return found, multipliers + change, live & (missed <= MEETING)

    def _prove_infeasible(self, normals: np.ndarray, live: np.ndarray) -> None:
        """Raise if the normals w_f prove that the hulls have no common point.

        For a common point x in [0, 1], Σ w_f·x ≤ Σ max over M_f of w_f·z, which is Σ w_f·z_f. But
        Σ_f w_f·x is at least the sum of its negative coefficients.
        """
        bound = self._per_item(normals * self.copies)
        least = np.bincount(self.item, np.minimum(self._gather(normals), 0.0), minlength=self.batch)
        margin = 1e-9 * (1.0 + self._per_item(np.abs(normals)))
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
        kept = self.atoms, self.supports, self.inverses, self.row_sums
        # Restored afterwards, so that the structures added for one gradient do not affect the next,
        # and the same call gives the same result.
        self.atoms, self.supports, self.inverses, self.row_sums = (part.copy() for part in kept)
        try:
            return self._fit_on_faces(upstream)
        finally:
            self.atoms, self.supports, self.inverses, self.row_sums = kept

    def _fit_on_faces(self, upstream: np.ndarray) -> np.ndarray:
        # In exact arithmetic, the number of dimensions of the largest item would suffice.
        most = 4 * int(np.bincount(self.edge_item, minlength=1).max(initial=0)) + 10
        everything = np.ones(self.batch, dtype=np.bool_)
        left, goals = np.where(self.allowed, upstream, 0.0), np.zeros(len(self.part))
        faces = self._faces()
        while True:
            found, normals, _ = self._fit(left, goals, everything, most)
            before = int(faces.counts.sum())
            # Components that a face does not determine must be equal for all structures that tie.
            faces.pull_back(normals[: self.border])
            self.atoms, self.inverses = faces.atoms, faces.inverses
            assert faces.row_sums is not None
            self.row_sums = faces.row_sums
            if int(faces.counts.sum()) == before:
                return found

    def _faces(self) -> Faces:
        """Return the faces of the structures' hulls on which their copies lie."""
        border, capacity = self.border, self.atoms.shape[1]
        strength = self.penalty[self.edge_item[:border]]
        return Faces(
            self.starts,
            # In the scale of the multipliers, whatever the penalty.
            self.gradients[:border] * strength,
            self.atoms,
            self.supports,
            self.inverses,
            np.arange(len(self.supports)) * capacity * capacity,
            self.row_sums,
            FINISHING_ROUNDS,
            self._ask_both,
        )

    def _ask_both(self, which: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Return the best atoms of the factors ``which`` under two gradients."""
        found = np.full((2, len(which), self.atoms.shape[2]), -1, dtype=np.int32)
        place = np.full(len(self.supports), -1)
        place[which] = np.arange(len(which))
        for sign, gradient in enumerate(gradients):
            given = np.append(gradient, -np.inf)
            for oracle in self.oracles:
                rows = np.flatnonzero(place[oracle.factors] >= 0)
                own, _ = oracle.best(rows, given, found.shape[2])
                wider = own.shape[1] - found.shape[2]
                found = np.pad(found, ((0, 0), (0, 0), (0, wider)), constant_values=-1)
                found[sign, place[oracle.factors[rows]]] = own
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
        taken = np.zeros(len(self.part))
        slope = self.normal(left[self.part] - goals)
        direction = slope.copy()
        power = self._per_item(slope * slope)
        best, stalled = power, np.zeros(self.batch, dtype=np.int64)
        for _ in range(steps):
            # Below this the remainder is rounding, ultimately of the inverses.
            busy = live & (power > 1e-26) & (stalled < STALLED)
            if not busy.any():
                break
            image = self._gather(direction)
            image[~self.allowed] = 0.0
            length = np.bincount(self.item, image * image, minlength=self.batch)
            moving = busy & (length > FLAT * self._per_item(direction * direction))
            step = np.divide(power, length, out=np.zeros(self.batch), where=moving)
            left = left - step[self.item] * image
            taken += step[self.edge_item] * direction
            slope = self.normal(left[self.part] - goals)
            before, power = power, self._per_item(slope * slope)
            ratio = np.divide(power, before, out=np.zeros(self.batch), where=moving)
            direction = slope + ratio[self.edge_item] * direction
            stalled = np.where(power < 0.5 * best, 0, stalled + busy)
            best = np.minimum(best, power)
        return left, taken, np.sqrt(power)


class _Oracle:
    """MAP oracle of one structure, for all factors with it."""

    def __init__(
        self,
        structure: Structure,
        factors: np.ndarray,
        shapes: list[tuple[int, ...]],
        lengths: list[int | tuple[int, ...]],
        slots: list[np.ndarray],
        starts: np.ndarray,
        dummy: int,
    ) -> None:
        self.structure = structure
        self.factors = factors
        self.lengths = torch.tensor(lengths, dtype=torch.int64, device="cpu")
        self.shape = tuple(np.max(shapes, axis=0).tolist())
        size = int(np.prod(self.shape))
        widest = max(len(own) for own in slots)
        # Padding reads a score of −inf and writes to a place after the last.
        self.edges = np.full((len(factors), widest), dummy)
        self.slots = np.full((len(factors), widest), size)
        self.local = np.full((len(factors), size), -1, dtype=np.int32)
        for row, (f, shape, own) in enumerate(zip(factors, shapes, slots)):
            placed = np.ravel_multi_index(np.unravel_index(own, shape), self.shape)
            count = len(own)
            self.edges[row, :count] = starts[f] + np.arange(count)
            self.slots[row, :count] = placed
            self.local[row, placed] = np.arange(count)

    def best(
        self, rows: np.ndarray, gradients: np.ndarray, width: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return atoms of the best structures, and whether each of them contains a forbidden part.

        Edges are counted from the factor's first edge, and padded with −1 to ``width`` or more.
        """
        size = int(np.prod(self.shape))
        scores = np.full((len(rows), size + 1), -np.inf)
        np.put_along_axis(scores, self.slots[rows], gradients[self.edges[rows]], 1)
        scores = np.ascontiguousarray(scores[:, :size])
        given = torch.from_numpy(scores).view(len(rows), *self.shape)
        best = self.structure._map(given, self.lengths[torch.from_numpy(rows)])
        item, place = np.nonzero(best.reshape(len(rows), size).numpy())
        counts = np.bincount(item, minlength=len(rows))
        position = np.arange(len(item)) - np.repeat(np.cumsum(counts) - counts, counts)
        atoms = np.full((len(rows), max(int(counts.max(initial=0)), width)), -1, dtype=np.int32)
        atoms[item, position] = self.local[rows[item], place]
        forbidden = np.isneginf(scores[item, place])
        return atoms, np.bincount(item, forbidden, minlength=len(rows)) > 0
