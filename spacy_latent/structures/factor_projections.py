"""Euclidean projections on the hulls of factors: the active-set method for structures."""

from __future__ import annotations

import numpy as np
import torch

from spacy_latent.errors import InfeasibleError
from spacy_latent.kernels.sparsemap import factor_active_set, logic_factors
from spacy_latent.kernels.sparsemap.faces import Items
from spacy_latent.kernels.sparsemap.support import row_size
from spacy_latent.structures.encoded_graph import GraphBatch
from spacy_latent.structures.faces import Faces


class Infeasible(Exception):
    """Error for items of a batch whose factors have no point in common."""

    def __init__(self, items: list[int]) -> None:
        super().__init__(items)
        self.items = items


class Projections:
    """Projections of points, each with one number per edge, on the hulls of their factors.

    The projection on the hull of a structure starts from the support of the one before.

    Args:
        largest: largest size of the scores of each item ``(B,)``.

    Attributes:
        copies: the last projections, per edge.
        gradients: rest of the points per edge of structures, and −inf for padding.
        gaps: score of the best structure of each factor under its gradient, less the score of its
            support.
    """

    def __init__(self, graphs: GraphBatch, largest: np.ndarray) -> None:
        self.graphs = graphs
        self.copies = np.zeros(len(graphs.part))
        self.marks = np.zeros(len(graphs.part) - graphs.border, dtype=np.int8)
        self.tied = np.zeros(len(graphs.kinds), dtype=np.bool_)
        self.status = np.zeros(len(graphs.kinds), dtype=np.int8)
        self.gradients = np.zeros(graphs.border + 1)
        self.gradients[-1] = -np.inf
        structures = graphs.structures
        size, capacity = len(structures), row_size(1)
        self.gaps = np.zeros(size)
        widest = max([1, *(sum(f.parts.shape) for f in structures)])
        self.supports = factor_active_set.FactorSupports(
            np.full((size, capacity, widest), -1, dtype=np.int32),
            np.zeros(size, dtype=np.int64),
            np.zeros((size, capacity, capacity)),
            *np.zeros((2, size, capacity)),
        )
        # The gap is a difference of sums of parts that may be as large as the scores. It must reach
        # the size of their rounding: in the Jacobian, a structure of small weight counts as any
        # other.
        sizes = np.diff(graphs.starts)
        self.tolerances = 1e-15 * (1.0 + largest[graphs.factor_item]) * np.sqrt(1.0 + sizes)
        kinds = {id(f.structure): f.structure for f in structures}.values()
        same = ([i for i, f in enumerate(structures) if f.structure is kind] for kind in kinds)
        self.oracles = [_Oracle(graphs, factors) for factors in same]

    def project(self, points: np.ndarray, live: np.ndarray, rounds: int) -> None:
        """Set ``copies`` of the live items to the projections of ``points``.

        If a structure's projection needs more than ``rounds`` calls of its oracle, ``gaps`` is left
        above 0.
        """
        graphs, border = self.graphs, self.graphs.border
        logic_factors.project_logic(
            live[graphs.logic_item],
            logic_factors.Factors(graphs.kinds, graphs.limits, graphs.logic_starts, graphs.flips),
            points[border:],
            self.copies[border:],
            self.marks,
            self.tied,
            self.status,
        )
        if self.status.any():
            raise Infeasible(np.unique(graphs.logic_item[self.status != 0]).tolist())
        if not graphs.structures:
            return
        which = np.flatnonzero(live[graphs.factor_item])
        is_new = self.supports.counts[which] == 0
        for f in which[is_new]:
            own = slice(graphs.starts[f], graphs.starts[f + 1])
            self.gradients[own] = points[own]
        self._enlarge()
        begun = which[~is_new]
        factor_active_set.restart(begun, graphs.starts, points, self.gradients, self.supports)
        for oracle in self.oracles:
            asking = np.flatnonzero(live[graphs.factor_item[oracle.factors]])
            for _ in range(rounds):
                if not len(asking):
                    break
                candidates = self._ask(oracle, asking)
                self._enlarge(candidates.shape[1])
                changed = factor_active_set.offer(
                    oracle.factors[asking],
                    candidates,
                    graphs.starts,
                    self.tolerances,
                    self.gaps,
                    self.gradients,
                    self.supports,
                )
                asking = asking[changed]
        atoms, counts, _, _, weights = self.supports
        factor_active_set.means(which, graphs.starts, atoms, counts, weights, self.copies)

    def _ask(self, oracle: _Oracle, rows: np.ndarray) -> np.ndarray:
        """Return the best atom under the gradient of each factor in ``rows`` of the oracle."""
        items = self.graphs.factor_item[oracle.factors[rows]]
        try:
            candidates, wrong = oracle.best(rows, self.gradients, self.supports.atoms.shape[2])
        except InfeasibleError as error:
            raise Infeasible(sorted({int(items[i]) for i in error.items})) from None
        if wrong.any():
            raise Infeasible(np.unique(items[wrong]).tolist())
        return candidates

    def _enlarge(self, width: int = 0) -> None:
        """Enlarge the supports for one more atom of each, with this number of edges."""
        atoms, counts, *of_weights = self.supports
        capacity, known = atoms.shape[1:]
        longer = capacity if counts.max(initial=0) >= capacity else 0
        wider = max(width - known, 0)
        if longer or wider:
            atoms = np.pad(atoms, ((0, 0), (0, longer), (0, wider)), constant_values=-1)
            of_weights = [
                np.pad(own, ((0, 0), *[(0, longer)] * (own.ndim - 1))) for own in of_weights
            ]
            self.supports = factor_active_set.FactorSupports(atoms, counts, *of_weights)

    def unsolved(self) -> np.ndarray:
        """Return a bound on the distance of the copies of each item from the projections."""
        largest = np.zeros(self.graphs.size)
        np.maximum.at(largest, self.graphs.factor_item, np.sqrt(2.0 * self.gaps))
        return largest

    def along(self, directions: np.ndarray) -> np.ndarray:
        """Return the component of ``directions`` along the face on which each factor's copy lies.

        The directions have one number per edge. It is a face of the factor's hull.
        """
        graphs, result = self.graphs, np.empty(len(directions))
        after = slice(graphs.border, None)
        logic_factors.logic_jacobian(
            graphs.logic_starts, self.marks, self.tied, directions[after], result[after]
        )
        if graphs.structures:
            atoms, counts, inverses, row_sums, _ = self.supports
            factor_active_set.support_jacobian(
                graphs.starts, atoms, counts, inverses, row_sums, directions, result
            )
        return result

    def faces(self, strength: np.ndarray, most: int) -> Faces:
        """Return the faces of the structures' hulls on which their copies lie.

        Args:
            strength: penalty of each item ``(B,)``.
            most: see :class:`~spacy_latent.structures.faces.Faces`.
        """
        border = self.graphs.border
        atoms, counts, inverses, row_sums, _ = self.supports
        # In the scale of the multipliers, whatever the penalty.
        residuals = self.gradients[:border] * strength[self.graphs.edge_item[:border]]
        items = Items(self.graphs.starts, residuals, atoms, counts)
        offsets = np.arange(len(counts)) * atoms.shape[1] ** 2
        return Faces(items, inverses, offsets, row_sums, most, self._ask_both)

    def _ask_both(self, which: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Return the best atoms of the factors ``which`` under two gradients."""
        atoms, counts = self.supports[:2]
        found = np.full((2, len(which), atoms.shape[2]), -1, dtype=np.int32)
        place = np.full(len(counts), -1)
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


class _Oracle:
    """MAP oracle of one structure, for all factors with it, given by their numbers."""

    def __init__(self, graphs: GraphBatch, factors: list[int]) -> None:
        own = [graphs.structures[f] for f in factors]
        slots = [graphs.slots[f] for f in factors]
        self.structure = own[0].structure
        self.factors = np.array(factors)
        self.lengths = torch.tensor([f.length for f in own], dtype=torch.int64, device="cpu")
        self.shape = tuple(np.max([f.parts.shape for f in own], axis=0).tolist())
        size = int(np.prod(self.shape))
        widest = max(map(len, slots))
        # Padding reads a score of −inf and writes to a place after the last.
        self.edges = np.full((len(factors), widest), graphs.border)
        self.slots = np.full((len(factors), widest), size)
        self.local = np.full((len(factors), size), -1, dtype=np.int32)
        for row, (f, chosen) in enumerate(zip(factors, slots)):
            place = np.unravel_index(chosen, own[row].parts.shape)
            placed = np.ravel_multi_index(place, self.shape)
            count = len(chosen)
            self.edges[row, :count] = graphs.starts[f] + np.arange(count)
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
