"""Jacobian of SparseMAP if structures tie.

It is taken on the whole face in which a solution lies. The support may span only a part of this
face, see :mod:`spacy_latent.kernels.sparsemap.faces`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.sparsemap import faces as kernel
from spacy_latent.kernels.sparsemap.support import row_size

# Function that returns the best structures of some items, given by their numbers, under two
# gradients of each, ``(2, flat)``. The result is ``(2, items, W)`` int32, parts counted from the
# item's first, padded with −1.
Ask = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Number of places by which arrays grow.
SPARE = 32


class Faces:
    """Solutions of F items by their supports.

    The supports grow by structures that tie with them when a gradient needs these.

    Attributes:
        items, offsets: as in kernels.sparsemap.faces.
        inverses, row_sums: the inverses are packed, with count² numbers of each item, and
            ``row_sums`` is None. Or they are ``(F, K, K)``, with K as for the atoms and a number of
            whole vectors, and ``row_sums`` ``(F, K)`` are their products with 1.
        most: number of structures that are added to a support for one gradient, after which no
            more are searched. Up to two are added at a time, so there may be one more. If more
            structures tie, the projection leaves out the directions with the smallest remainder.
    """

    def __init__(
        self,
        items: kernel.Items,
        inverses: np.ndarray,
        offsets: np.ndarray,
        row_sums: np.ndarray | None,
        most: int,
        ask: Ask,
    ) -> None:
        self.items = items._replace(residuals=items.residuals.copy())
        self.inverses = inverses
        self.offsets = offsets
        self.row_sums = row_sums
        self.most = most
        self.ask = ask

    def pull_back(self, upstream: np.ndarray) -> np.ndarray:
        """Return the product of each item's symmetric Jacobian with ``upstream``, both flat.

        The Jacobian projects on the directions of all structures that tie with the support. At a
        kink, the solution is at the edge of these. The result is then the Jacobian at its inner
        side.
        """
        counts, size = self.items.counts, len(self.items.counts)
        search = kernel.Search(*np.empty((2, len(upstream))), *np.zeros((5, size)))

        def survey(which: np.ndarray) -> None:
            packed = self.row_sums is None
            strides = counts if packed else np.full(size, self.inverses.shape[2])
            # Nanoseconds for the data that is read.
            own = counts[which].astype(np.float64)
            costs = own * (4.0 * self.items.atoms.shape[2] + own)
            inverses = kernel.Inverses(self.inverses.reshape(-1), self.offsets, strides)
            spread(kernel.survey, costs, (which, upstream, self.items, inverses, search))

        which = np.arange(size)
        survey(which)
        which = which[search.steps > 0.0]
        given, gradients = counts.copy(), np.empty((2, len(upstream)))
        while len(which):
            kernel.tilt(which, self.items, search, gradients)
            before = counts.copy()
            found = self.ask(which, gradients)
            if not any(kernel.is_useful(which, each, self.items, search) for each in found):
                break
            for candidates in found:
                self._enlarge(which, candidates.shape[1])
                known = self.items, self.inverses, self.row_sums
                kernel.take(which, candidates, *known, search)
            # The search ends if no structure that ties lies further along the remainder than the
            # support, in either direction.
            grown = (counts > before) & (counts < given + self.most) & (search.steps > 0.0)
            which = np.flatnonzero(grown)
        if self.row_sums is not None:
            # Repeated without the rounding errors of many small steps.
            survey(np.flatnonzero(counts > given))
        return search.pulled

    def _enlarge(self, which: np.ndarray, width: int) -> None:
        """Enlarge the arrays for one more structure of these items, with this number of parts."""
        size, capacity, known = self.items.atoms.shape
        wider = max(width - known, 0)
        if self.row_sums is None:
            needed = row_size(max(int(self.items.counts.max()) + SPARE, capacity))
            self._pad(((0, 0), (0, needed - capacity), (0, wider)))
            packed = self.inverses
            self.inverses = np.zeros((size, needed, needed))
            for f, count in enumerate(self.items.counts.tolist()):
                own = packed[self.offsets[f] : self.offsets[f] + count * count]
                self.inverses[f, :count, :count] = own.reshape(count, count)
            self.row_sums = self.inverses.sum(2)
            self.offsets = np.arange(size) * needed * needed
            return
        longer = row_size(SPARE) if int(self.items.counts[which].max()) == capacity else 0
        if longer or wider:
            self._pad(((0, 0), (0, longer), (0, wider)))
        if longer:
            self.inverses = np.pad(self.inverses, ((0, 0), (0, longer), (0, longer)))
            self.row_sums = np.pad(self.row_sums, ((0, 0), (0, longer)))
            self.offsets = np.arange(size) * (capacity + longer) ** 2

    def _pad(self, more: tuple[tuple[int, int], ...]) -> None:
        atoms = np.pad(self.items.atoms, more, constant_values=-1)
        self.items = self.items._replace(atoms=atoms)


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return parts of structures as one array ``(structures, W)`` int32, padded with −1."""
    result = np.full((len(rows), max([1, *map(len, rows)])), -1, dtype=np.int32)
    for target, row in zip(result, rows):
        target[: len(row)] = row
    return result
