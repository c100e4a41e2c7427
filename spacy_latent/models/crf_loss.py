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

import numpy as np
import torch

from spacy_latent.structures.tag_sequence import TagSequence


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


class _Batch:
    """Items to sum over: the docs, then sequences of them that leave out some tags."""

    def __init__(self, emissions: np.ndarray, sizes: np.ndarray) -> None:
        self.emissions = [emissions]
        ends = np.cumsum(sizes)
        self.rows = [np.arange(end - size, end) for size, end in zip(sizes, ends)]

    def add(self, doc: int, closed: np.ndarray) -> int:
        """Another item: doc ``doc`` without the tags ``closed`` ``(n, K)``. RETURNS: its place."""
        own = self.emissions[0][self.rows[doc]]
        self.emissions.append(np.where(closed, -np.inf, own).astype(own.dtype))
        self.rows.append(self.rows[doc])
        return len(self.rows) - 1


def crf_loss(
    chain: TagSequence,
    emissions: np.ndarray,
    allowed: Sequence[np.ndarray],
    rejected: Sequence[Sequence[Run]],
) -> Loss:
    """chain: bound, float64, on the CPU. emissions: ``(T, K)``, of the docs one after the other.
    allowed: for each doc ``(n, K)`` bool, tags that its annotation allows.
    rejected: for each doc, runs of which each adds −log(1 − P(run)).
    """
    sizes = np.array([len(part) for part in allowed], dtype=np.int64)
    batch, count = _Batch(emissions, sizes), len(sizes)
    open_to = np.concatenate([np.zeros((0, emissions.shape[1]), dtype=bool), *allowed])
    choices = open_to.sum(1)
    # What is free adds 0, and of one sequence there is nothing to sum.
    free = [bool((choices[rows] == open_to.shape[1]).all()) for rows in batch.rows]
    single = [bool((choices[rows] == 1).all()) for rows in batch.rows]
    gold = {
        d: batch.add(d, ~open_to[rows])
        for d, rows in enumerate(batch.rows[:count])
        if not free[d] and not single[d]
    }
    without = [
        (d, [batch.add(d, closed) for closed in _first_departures(chain, run, int(sizes[d]))])
        for d, runs in enumerate(rejected)
        for run in runs
    ]
    lengths = torch.tensor([len(rows) for rows in batch.rows], dtype=torch.int64)
    sums = chain.batch_sums(torch.from_numpy(np.concatenate(batch.emissions)), lengths)
    whole, scale = sums.log_partition, np.zeros(len(batch.rows))
    tags, losses, left_out, paths = open_to.argmax(1), np.zeros(count), [], []
    for d in range(count):
        if free[d]:
            continue
        rows = batch.rows[d]
        value = whole[gold[d]] if d in gold else _score(chain, emissions[rows], tags[rows])
        if value == -np.inf:
            left_out.append(d)
            continue
        losses[d] += whole[d] - value
        scale[d] += 1.0
        if d in gold:
            scale[gold[d]] -= 1.0
        else:
            paths.append(rows)
    for d, places in without:
        if not places:
            # Nothing but the run is possible.
            left_out.append(d)
            continue
        value = np.logaddexp.reduce(whole[places])
        losses[d] += whole[d] - value
        scale[d] += 1.0
        scale[places] -= np.exp(whole[places] - value)
    d_items, d_transitions = sums.uses(scale)
    d_emissions, begin = d_items[: len(emissions)], len(emissions)
    for rows in batch.rows[count:]:
        d_emissions[rows] += d_items[begin : begin + len(rows)]
        begin += len(rows)
    for rows in paths:
        own = tags[rows]
        d_emissions[rows, own] -= 1.0
        np.subtract.at(d_transitions, (own[:-1], own[1:]), 1.0)
        d_transitions[-2, own[0]] -= 1.0
        d_transitions[-1, own[-1]] -= 1.0
    # Of a sure gold sequence the difference may come out below zero.
    return Loss(np.maximum(losses, 0.0), d_emissions, d_transitions, left_out)


def _score(chain: TagSequence, emissions: np.ndarray, tags: np.ndarray) -> float:
    assert chain.bound is not None
    transitions, start, end = (part.numpy() for part in chain.bound)
    total = np.take_along_axis(emissions, tags[:, None], 1).sum(dtype=np.float64)
    total += transitions[tags[:-1], tags[1:]].sum()
    return float(total + start[tags[0]] + end[tags[-1]])


def _first_departures(chain: TagSequence, run: Run, size: int) -> list[np.ndarray]:
    """Tags ``(n, K)`` bool to leave out, for each position at which a sequence may leave the run
    that it has followed up to there."""
    assert chain.bound is not None
    transitions, _, end = (part.numpy() for part in chain.bound)
    found, kept = [], np.zeros((size, len(transitions)), dtype=bool)
    for k, (i, tag) in enumerate(enumerate(run.tags, run.start)):
        others = np.arange(len(transitions)) != tag
        if k:
            others &= transitions[run.tags[k - 1]] != -np.inf
        if i == size - 1:
            others &= end != -np.inf
        if others.any():
            closed = kept.copy()
            closed[i] = ~others
            found.append(closed)
        kept[i] = True
        kept[i, tag] = False
    return found
