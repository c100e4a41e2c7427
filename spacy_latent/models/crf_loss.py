"""−log p of annotation under a chain of tags, and its gradient in one pass, without a graph.

All terms are differences of log-partitions: of all sequences less those that agree with what is
known (Lafferty et al. 2001; Tsuboi et al. 2008 where that is not every token). What is known of a
run of tags may also be that it is wrong: then the sequences that agree are those without it, which
are a disjoint union over the first position at which they leave the run. A sum over these, in the
place of 1 − P(run), loses no digit where P(run) is close to 0 or to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from spacy_latent.structures.tag_sequence import TagSequence

if TYPE_CHECKING:
    from spacy_latent.kernels.tag_batches import BatchSums


@dataclass(frozen=True)
class Run:
    """Tags, by number, of the tokens from ``start`` on."""

    start: int
    tags: tuple[int, ...]


@dataclass
class Loss:
    """In nats, of each doc, ``(D,)``; the gradient of their sum for emissions ``(T, K)`` and for
    what is bound, ``(K + 2, K)``; and the docs whose annotation no sequence agrees with, for which
    that does not count. All float64."""

    losses: np.ndarray
    emissions: np.ndarray
    transitions: np.ndarray
    left_out: list[int]


# Of sums that are kept at once, the rows: what is without a wrong run is a copy of its doc. With 25
# tags they take some 30 MB.
ROWS = 30_000


def crf_loss(
    chain: TagSequence,
    emissions: np.ndarray,
    allowed: Sequence[np.ndarray],
    rejected: Sequence[Sequence[Run]],
) -> Loss:
    """chain: bound, float64, on the CPU. emissions: ``(T, K)``, of the docs one after the other.
    allowed: for each doc ``(n, K)`` bool, tags that its annotation allows.
    rejected: for each doc, runs of which each adds −log(1 − P(run)). Time for one of k tags is that
        of k docs like its own; memory does not grow with their number.
    """
    sizes = np.array([len(part) for part in allowed], dtype=np.int64)
    count, ends = len(sizes), np.cumsum(sizes)
    rows = [np.arange(end - size, end) for size, end in zip(sizes, ends)]
    open_to = np.concatenate([np.zeros((0, emissions.shape[1]), dtype=bool), *allowed])
    choices = open_to.sum(1)
    # What is free adds 0, and of one sequence there is nothing to sum.
    free = [bool((choices[own] == open_to.shape[1]).all()) for own in rows]
    single = [bool((choices[own] == 1).all()) for own in rows]
    known = [d for d in range(count) if not free[d] and not single[d]]
    gold = {d: count + place for place, d in enumerate(known)}
    parts = [np.where(open_to[rows[d]], emissions[rows[d]], -np.inf) for d in known]
    sums = _sums(chain, [emissions, *parts], [*sizes, *sizes[known]])
    whole, scale = sums.log_partition, np.zeros(count + len(known))
    tags, losses, left_out, paths = open_to.argmax(1), np.zeros(count), [], []
    for d in range(count):
        if free[d]:
            continue
        own = rows[d]
        value = whole[gold[d]] if d in gold else _score(chain, emissions[own], tags[own])
        if value == -np.inf:
            left_out.append(d)
            continue
        losses[d] += whole[d] - value
        scale[d] += 1.0
        if d in gold:
            scale[gold[d]] -= 1.0
        else:
            paths.append(own)
    complements = _Complements(chain, emissions, rows)
    for d, run in ((d, run) for d, runs in enumerate(rejected) for run in runs):
        if not complements.add(d, run):
            # Nothing but the run is possible.
            left_out.append(d)
    for d, value in complements.finish():
        losses[d] += whole[d] - value
        scale[d] += 1.0
    d_items, d_transitions = sums.uses(scale)
    d_emissions, begin = d_items[: len(emissions)], len(emissions)
    for d in known:
        d_emissions[rows[d]] += d_items[begin : begin + sizes[d]]
        begin += sizes[d]
    d_emissions -= complements.emissions
    d_transitions -= complements.transitions
    for path in paths:
        own = tags[path]
        d_emissions[path, own] -= 1.0
        np.subtract.at(d_transitions, (own[:-1], own[1:]), 1.0)
        d_transitions[-2, own[0]] -= 1.0
        d_transitions[-1, own[-1]] -= 1.0
    # Of a sure gold sequence the difference may come out below zero.
    return Loss(np.maximum(losses, 0.0), d_emissions, d_transitions, left_out)


def _sums(chain: TagSequence, parts: Sequence[np.ndarray], sizes: Sequence[int]) -> BatchSums:
    lengths = torch.tensor([int(size) for size in sizes], dtype=torch.int64)
    return chain.batch_sums(torch.from_numpy(np.concatenate(parts)), lengths)


class _Complements:
    """The logarithms of how much all sequences without a run add up to, and the gradient of the sum
    of these: for ``emissions`` ``(T, K)`` and for ``transitions`` ``(K + 2, K)``.

    rows: of each doc, in the emissions.
    """

    def __init__(self, chain: TagSequence, scores: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        assert chain.bound is not None
        self.chain, self.scores, self.rows = chain, scores, rows
        self.emissions = np.zeros(scores.shape)
        self.transitions = np.zeros((scores.shape[1] + 2, scores.shape[1]))
        self.values: list[tuple[int, float]] = []
        self.waiting: list[tuple[int, Run, list[_Departure]]] = []
        self.waiting_rows = 0

    def add(self, doc: int, run: Run) -> bool:
        """RETURNS: whether there is any sequence without the run."""
        found = _departures(self.chain, run, len(self.rows[doc]))
        if found:
            size = len(found) * len(self.rows[doc])
            if self.waiting and self.waiting_rows + size > ROWS:
                self._sum_up()
            self.waiting.append((doc, run, found))
            self.waiting_rows += size
        return bool(found)

    def finish(self) -> list[tuple[int, float]]:
        """RETURNS: of each run its doc and the logarithm."""
        if self.waiting:
            self._sum_up()
        return self.values

    def _sum_up(self) -> None:
        # More than one part only of one run alone: these are summed again when their shares are
        # known.
        parts: list[list[tuple[int, Run, _Departure]]] = [[]]
        size = 0
        for d, run, departures in self.waiting:
            for one in departures:
                size += len(self.rows[d])
                if size > ROWS and parts[-1]:
                    parts.append([])
                    size = len(self.rows[d])
                parts[-1].append((d, run, one))
        only = self._of(parts[0]) if len(parts) == 1 else None
        sums = [only] if only is not None else (self._of(part) for part in parts)
        whole = np.concatenate([one.log_partition for one in sums])
        shares, begin = np.zeros(len(whole)), 0
        for d, _, departures in self.waiting:
            mine = slice(begin, begin + len(departures))
            value = np.logaddexp.reduce(whole[mine])
            self.values.append((d, value))
            shares[mine] = np.exp(whole[mine] - value)
            begin += len(departures)
        begin = 0
        for part in parts:
            again = self._of(part) if only is None else only
            found, transitions = again.uses(shares[begin : begin + len(part)])
            self.transitions += transitions
            begin, at = begin + len(part), 0
            for d, _, _ in part:
                own = self.rows[d]
                self.emissions[own] += found[at : at + len(own)]
                at += len(own)
        self.waiting, self.waiting_rows = [], 0

    def _of(self, items: Sequence[tuple[int, Run, _Departure]]) -> BatchSums:
        parts = [_departing(self.scores[self.rows[d]], run, one) for d, run, one in items]
        return _sums(self.chain, parts, [len(part) for part in parts])


def _score(chain: TagSequence, emissions: np.ndarray, tags: np.ndarray) -> float:
    assert chain.bound is not None
    transitions, start, end = (part.numpy() for part in chain.bound)
    total = np.take_along_axis(emissions, tags[:, None], 1).sum(dtype=np.float64)
    total += transitions[tags[:-1], tags[1:]].sum()
    return float(total + start[tags[0]] + end[tags[-1]])


@dataclass(frozen=True)
class _Departure:
    """A sequence that follows a run for ``followed`` tags, and then has one of ``others``, ``(K,)``
    bool."""

    followed: int
    others: np.ndarray


def _departures(chain: TagSequence, run: Run, size: int) -> list[_Departure]:
    """All ways to leave a run in a doc of so many tokens, of which no sequence has two."""
    assert chain.bound is not None
    transitions, _, end = (part.numpy() for part in chain.bound)
    found = []
    for k, (i, tag) in enumerate(enumerate(run.tags, run.start)):
        others = np.arange(len(transitions)) != tag
        if k:
            others &= transitions[run.tags[k - 1]] != -np.inf
        if i == size - 1:
            others &= end != -np.inf
        if others.any():
            found.append(_Departure(k, others))
    return found


def _departing(scores: np.ndarray, run: Run, departure: _Departure) -> np.ndarray:
    """Scores ``(n, K)`` of a doc, −inf for all sequences but those that leave the run there."""
    found, followed = scores.copy(), departure.followed
    for i, tag in enumerate(run.tags[:followed], run.start):
        found[i] = -np.inf
        found[i, tag] = scores[i, tag]
    found[run.start + followed, ~departure.others] = -np.inf
    return found
