"""The k best structures from a MAP oracle alone (Lawler 1972; Murty 1968)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, check_whole
from spacy_latent.structures.contract import StructureContract
from spacy_latent.structures.results import TopK

# Largest number of scores that are copied for one call of the oracle.
CALL_PARTS = 1 << 23
# A score that exceeds the sum of all smaller ones by this factor gets a bonus of its own.
FAR = 1e3


@dataclass(order=True)
class _Candidate:
    """Best structure among those that hold all of ``forced`` and no part of ``forbidden``."""

    cost: float
    order: int
    parts: np.ndarray = field(compare=False)
    forced: tuple[int, ...] = field(compare=False)
    forbidden: tuple[int, ...] = field(compare=False)


def lawler(structure: StructureContract, scores: Tensor, lengths: Tensor, k: int) -> TopK:
    """Return the ``k`` best structures of each item, exact up to rounding in float64.

    A subset of structures without its best one is split into subsets. Each agrees with the best one
    up to some part and differs there. The oracle finds the best of each, for all subsets of an item
    and all items in one batch. A part is forbidden by −inf. It is forced by forbidding its rivals
    if ``structure.exclusive_axes`` names them, else by a bonus, see :func:`_bonuses`.
    """
    check_whole(f"{structure.name}.top_k", error=InvalidScores, k=k)
    batch, shape = scores.shape[0], scores.shape[1:]
    masked = scores.detach().double()
    masked = masked.masked_fill(~structure.part_mask(scores, lengths), -torch.inf)
    flat = masked.flatten(1).cpu().numpy()
    solver = _Solver(structure, masked, flat, lengths)
    first = solver.solve([(b, (), ()) for b in range(batch)], required=True)
    lacking = [b for b, candidate in enumerate(first) if candidate is None]
    if lacking:
        # The oracle gave a structure with a forbidden part, in place of this error.
        raise InfeasibleError(structure.name, lacking)
    heaps = [[candidate] for candidate in first if candidate is not None]
    z = np.zeros((k, batch, flat.shape[1]), dtype=np.float32)
    values = np.full((k, batch), -np.inf)
    for rank in range(k):
        subsets: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        for b, heap in enumerate(heaps):
            if not heap:
                continue
            best = heapq.heappop(heap)
            z[rank, b, best.parts] = 1.0
            values[rank, b] = -best.cost
            if rank + 1 < k:
                subsets += [(b, *rest) for rest in _split(structure, best, flat[b])]
        for (b, _, _), candidate in zip(subsets, solver.solve(subsets)):
            if candidate is not None:
                heapq.heappush(heaps[b], candidate)
    found = TopK(torch.from_numpy(z).view(k, batch, *shape), torch.from_numpy(values))
    return found.to(scores.dtype).sent(scores.device)


def _split(
    structure: StructureContract, best: _Candidate, scores: np.ndarray
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    forced, forbidden = set(best.forced), set(best.forbidden)
    subsets = []
    kept, absent = list(best.forced), list(best.forbidden)
    free = [part for part in best.parts.tolist() if part not in forced]
    for part in free:
        subsets.append((tuple(kept), (*absent, part)))
        kept.append(part)
    if not (structure.exclusive_axes or structure.incomparable):
        # Another structure may be a proper superset.
        chosen = set(best.parts.tolist())
        for part in np.flatnonzero(scores > -np.inf).tolist():
            if part not in chosen and part not in forbidden:
                subsets.append(((*kept, part), tuple(absent)))
                absent.append(part)
    return subsets


def _bonuses(scores: np.ndarray) -> np.ndarray:
    """Return bonuses that force a part of an item with scores ``(P,)``, the smallest first.

    If the best structure under a bonus holds all forced parts, it is the best among all structures
    that hold them, whatever the bonus. A bonus above the sum of all scores fails only if there is
    no such structure. But if a score is -1e30, the mask of many models, such a bonus absorbs the
    differences between the other scores. So a smaller bonus is tried first. It exceeds the sum of
    all scores except much larger ones.
    """
    sizes = np.sort(np.abs(scores[np.isfinite(scores)]))
    with np.errstate(over="ignore"):
        sums = 1.0 + np.concatenate([[0.0], np.cumsum(sizes)])
    far = 1 + np.flatnonzero(sizes[1:] > FAR * sums[1:-1])
    bonuses = 2.0 * sums[[*far, len(sizes)]]
    # For scores near the largest number in float64, the bonus must still be a number.
    return np.minimum(bonuses, np.finfo(np.float64).max / (4 + 2 * len(scores)))


class _Solver:
    """Batched calls of the oracle on scores with forced and forbidden parts."""

    def __init__(
        self, structure: StructureContract, masked: Tensor, flat: np.ndarray, lengths: Tensor
    ) -> None:
        self.structure = structure
        self.masked = masked
        self.flat = flat
        self.lengths = lengths
        exclusive = bool(structure.exclusive_axes)
        self.bonuses = [np.zeros(1) if exclusive else _bonuses(row) for row in flat]
        self.made = 0

    def solve(
        self, subsets: list[tuple[int, tuple[int, ...], tuple[int, ...]]], required: bool = False
    ) -> list[_Candidate | None]:
        size = max(1, CALL_PARTS // max(1, self.flat.shape[1]))
        results: list[_Candidate | None] = []
        impossible: list[int] = []
        for start in range(0, len(subsets), size):
            call = subsets[start : start + size]
            try:
                results += self._solve(call, required)
            except InfeasibleError as error:
                # The oracle names positions in this call.
                impossible += [call[i][0] for i in error.items]
        if impossible:
            raise InfeasibleError(self.structure.name, impossible)
        return results

    def _solve(
        self, subsets: list[tuple[int, tuple[int, ...], tuple[int, ...]]], required: bool
    ) -> list[_Candidate | None]:
        results: list[_Candidate | None] = [None] * len(subsets)
        pending, level = list(range(len(subsets))), 0
        while pending:
            items = [subsets[i][0] for i in pending]
            scores = np.stack([self._changed(*subsets[i], level) for i in pending])
            missed = []
            for place, parts in self._ask(scores, items, required).items():
                i = pending[place]
                b, forced, forbidden = subsets[i]
                value, chosen = self.flat[b][parts].sum(), set(parts.tolist())
                if value > -np.inf and chosen.issuperset(forced) and chosen.isdisjoint(forbidden):
                    self.made += 1
                    results[i] = _Candidate(-float(value), self.made, parts, forced, forbidden)
                elif level + 1 < len(self.bonuses[b]):
                    missed.append(i)
            pending, level = missed, level + 1
        return results

    def _changed(
        self, b: int, forced: tuple[int, ...], forbidden: tuple[int, ...], level: int
    ) -> np.ndarray:
        """Return the scores of item b for the oracle, with the bonus of this level."""
        shape, exclusive = tuple(self.masked.shape[1:]), self.structure.exclusive_axes
        row = self.flat[b].copy()
        row[list(forbidden)] = -np.inf
        for part in forced:
            if exclusive:
                index = [
                    slice(None) if axis in exclusive else i
                    for axis, i in enumerate(np.unravel_index(part, shape))
                ]
                kept = row[part]
                row.reshape(shape)[tuple(index)] = -np.inf
                row[part] = kept
            else:
                row[part] += self.bonuses[b][level]
        return row

    def _ask(self, scores: np.ndarray, items: list[int], required: bool) -> dict[int, np.ndarray]:
        remaining = list(range(len(items)))
        while remaining:
            batch = torch.from_numpy(scores[remaining])
            batch = batch.view(len(remaining), *self.masked.shape[1:])
            lengths = self.lengths[[items[i] for i in remaining]]
            try:
                best = self.structure._map(batch.to(self.masked.device), lengths)
            except InfeasibleError as error:
                if required or not error.items:
                    raise
                # An empty subset: no candidate. The oracle names the positions in this call.
                gone = {remaining[i] for i in error.items}
                remaining = [i for i in remaining if i not in gone]
                continue
            self.structure._check_best(best, batch)
            rows = best.flatten(1).cpu().numpy()
            return {i: np.flatnonzero(row) for i, row in zip(remaining, rows)}
        return {}
