"""Negative log-likelihood of evidence under a chain of tags, and its gradient, without a graph.

All terms are differences of log-partitions: of all sequences, minus the same with the evidence as a
weight (Lafferty et al. 2001; Tsuboi et al. 2008 if some tags are not known).

A run of tags may also be known to be wrong. The sequences without the run then agree. They are a
disjoint union over the first position at which they leave the run. Summing over this union, instead
of computing 1 − P(run), loses no digits if P(run) is close to 0 or 1. For the same reason
:mod:`spacy_latent.models.entity_counts` sums over tags and numbers of entities instead of computing
1 − P(none).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.errors import InfeasibleError
from spacy_latent.models.entity_counts import batch_sums, jointly_counted, log_sums_with_counts
from spacy_latent.models.tag_evidence import EntityCount, Run, TagEvidence
from spacy_latent.structures.tag_sequence import TagSequence

if TYPE_CHECKING:
    from spacy_latent.kernels.chains.tag_batches import BatchSums


@dataclass
class Loss:
    """Losses of D docs and their gradient, float64.

    Attributes:
        losses: ``(D,)``, in nats.
        emissions: gradient of the sum of losses, ``(T, K)``.
        transitions: gradient for the bound transitions, ``(K + 2, K)``.
        left_out: docs whose annotation no sequence agrees with. Their annotation is ignored.
        posteriors: ``(T, K)``, probability of each tag given the evidence; 0 for docs that have no
            evidence or are left out. The gradient of the loss for the potentials is −posteriors.
        contradictory: docs whose tags agree with some sequence, although no such sequence has their
            counts.
    """

    losses: np.ndarray
    emissions: np.ndarray
    transitions: np.ndarray
    left_out: list[int]
    posteriors: np.ndarray
    contradictory: list[int]


# Largest number of rows of sums that are in memory at once, some 30 MB with 25 tags. Each departure
# from a run needs a copy of its doc.
ROWS = 30_000


def log_partitions(chain: TagSequence, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the log-partitions ``(B,)`` float64 of chains with bound transitions, on the CPU.

    This is :meth:`TagSequence.log_partition`, differentiable once, by sums over allowed pairs of
    tags. With hundreds of tags, a span scheme forbids most pairs.

    Args:
        scores: ``(B, N, K)``.
        lengths: ``(B,)``.

    Raises:
        InfeasibleError: an item has no feasible sequence.
    """
    assert chain.bound is not None
    found: Tensor = _LogPartitions.apply(scores, *chain.bound, lengths)
    return found


class _LogPartitions(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, between: Tensor, first: Tensor, last: Tensor, lengths: Tensor
    ) -> Tensor:
        ctx.inside = torch.arange(scores.shape[1]) < lengths[:, None]
        chain = TagSequence().bind(between, first, last)
        ctx.sums = chain.batch_sums(scores[ctx.inside], lengths)
        ctx.dtypes = scores.dtype, between.dtype
        values = torch.from_numpy(ctx.sums.log_partition)
        if values.isneginf().any():
            raise InfeasibleError(chain.name, values.isneginf().nonzero().flatten().tolist())
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        emissions, transitions = map(torch.from_numpy, ctx.sums.uses(gradient.numpy()))
        of_scores, of_bound = ctx.dtypes
        slopes = emissions.new_zeros((*ctx.inside.shape, emissions.shape[1]), dtype=of_scores)
        slopes[ctx.inside] = emissions.to(of_scores)
        between, (first, last) = transitions.to(of_bound).split([len(transitions) - 2, 2])
        return slopes, between, first, last, None


def crf_loss(chain: TagSequence, emissions: np.ndarray, evidence: Sequence[TagEvidence]) -> Loss:
    """Return the losses of all docs and their gradient.

    A rejected run of k tags takes the time of k docs of the same length. Memory does not depend on
    the number of runs. Counts take up to the time of one doc for each combination of numbers of
    entities: two combinations for a single "at least one".

    Args:
        chain: tag sequences with bound transitions, float64, on the CPU.
        emissions: ``(T, K)``, the docs one after the other.
    """
    terms = _Terms(chain, emissions.astype(np.float64, copy=False), evidence)
    terms.add_tags()
    terms.add_rejected([part.rejected for part in evidence])
    terms.add_counts()
    return terms.loss()


class _Terms:
    """The log-partitions of all docs, whose differences are the losses.

    A doc adds up to three terms: its tags, rejected runs, counts. A doc without evidence adds 0. If
    its evidence allows one sequence, a score replaces the sum. If its counts form one group, that
    sum covers the tags, too.

    The gradient of a doc's terms comes from four places: ``scale``, ``paths``, the shares of
    :class:`_Complements`, and ``log_sums_with_counts``. A factor of a doc's loss belongs in all
    four. It does not belong in the posteriors, from which other parameters learn.

    Attributes:
        rows: rows of each doc in the emissions.
        free, single: docs whose evidence allows all sequences of tags, or a single one.
        tags: ``(T,)``, the tags of single sequences.
        counted: counts of each doc, in groups that are summed together.
        with_tags: docs whose evidence about tags is a term of its own.
        constrained: docs among these whose evidence needs a sum of its own.
        place: the place of this sum in ``sums``, after the sums of all docs.
        sums, log_partitions: sums over sequences, first of all docs, then of the constrained ones.
        paths: rows of the docs whose single sequence has a score in place of a sum.
        scale: factor of each sum in the sum of the losses.
    """

    def __init__(
        self, chain: TagSequence, emissions: np.ndarray, evidence: Sequence[TagEvidence]
    ) -> None:
        self.chain, self.emissions = chain, emissions
        sizes = [len(part.potentials) for part in evidence]
        ends = np.cumsum(sizes, dtype=np.int64)
        self.rows = [np.arange(end - size, end) for size, end in zip(sizes, ends)]
        none = np.zeros((0, emissions.shape[1]))
        self.potentials = np.concatenate([none, *(part.potentials for part in evidence)])
        open_to = self.potentials != -np.inf
        choices = open_to.sum(1)
        self.free = {d for d, own in enumerate(self.rows) if not self.potentials[own].any()}
        self.single = {d for d, own in enumerate(self.rows) if (choices[own] == 1).all()}
        self.tags, self.losses = open_to.argmax(1), np.zeros(len(sizes))
        self.left_out: list[int] = []
        self.contradictory: list[int] = []
        self.counted: dict[int, list[tuple[EntityCount, ...]]] = {}
        for d, part in enumerate(evidence):
            if part.counts and d in self.single:
                # A single sequence has a known number of entities.
                own = self.tags[self.rows[d]]
                for one in part.counts:
                    self.losses[d] -= float(one.log_weights(np.isin(own, one.ends).sum()))
            elif part.counts:
                self.counted[d] = jointly_counted(part.counts)
        self.with_tags = [d for d in range(len(sizes)) if len(self.counted.get(d, ())) != 1]
        self.constrained = [
            d for d in self.with_tags if d not in self.free and d not in self.single
        ]
        self.place = {d: len(sizes) + place for place, d in enumerate(self.constrained)}
        parts = [self._with_potentials(d) for d in self.constrained]
        self.sums = batch_sums(chain, [emissions, *parts], [*sizes, *(len(part) for part in parts)])
        self.log_partitions = self.sums.log_partition
        self.scale = np.zeros(len(self.log_partitions))
        self.paths: list[np.ndarray] = []
        self.complements = _Complements(chain, emissions, self.rows)

    def _with_potentials(self, d: int) -> np.ndarray:
        return self.emissions[self.rows[d]] + self.potentials[self.rows[d]]

    def add_tags(self) -> None:
        """Add the evidence about tags."""
        for d in self.with_tags:
            if d in self.free:
                # A doc that has a single sequence and no evidence about its tags is empty.
                if self.losses[d] == np.inf:
                    self.contradictory.append(d)
                continue
            own = self.rows[d]
            if d in self.place:
                value = self.log_partitions[self.place[d]]
            else:
                value = _score(self.chain, self.emissions[own], self.tags[own])
                if value != -np.inf:
                    given = np.take_along_axis(self.potentials[own], self.tags[own, None], 1)
                    value += float(given.sum())
            if value == -np.inf:
                self.left_out.append(d)
                self.losses[d] = 0.0
                self.counted.pop(d, None)
            elif self.losses[d] == np.inf:
                self.contradictory.append(d)
            else:
                self.losses[d] += self.log_partitions[d] - value
                self.scale[d] += 1.0
                if d in self.place:
                    self.scale[self.place[d]] -= 1.0
                else:
                    self.paths.append(own)

    def add_rejected(self, rejected: Sequence[Sequence[Run]]) -> None:
        """Add the runs that are wrong."""
        for d, runs in enumerate(rejected):
            for run in runs:
                if not self.complements.add(d, run):
                    # No sequence except the run is possible.
                    self.left_out.append(d)
        for d, value in self.complements.finish():
            self.losses[d] += self.log_partitions[d] - value
            self.scale[d] += 1.0

    def add_counts(self) -> None:
        """Add the evidence about numbers of entities."""
        self.jobs = [(d, counts) for d, groups in self.counted.items() for counts in groups]
        self.with_counts = log_sums_with_counts(
            self.chain,
            self.emissions + self.potentials,
            [(self.rows[d], counts) for d, counts in self.jobs],
        )
        for (d, _), value in zip(self.jobs, self.with_counts.values.tolist()):
            if value == -np.inf:
                allowed = batch_sums(self.chain, [self._with_potentials(d)], [len(self.rows[d])])
                some = allowed.log_partition[0] != -np.inf
                (self.contradictory if some else self.left_out).append(d)
                continue
            # If counts are not all summed together, each group is conditioned on the known tags.
            given = d if d in self.free or len(self.counted[d]) == 1 else self.place[d]
            self.losses[d] += self.log_partitions[given] - value
            self.scale[given] += 1.0

    def loss(self) -> Loss:
        """Return the losses and their gradient, when all evidence is added."""
        d_items, d_transitions = self.sums.uses(self.scale)
        d_emissions, begin = d_items[: len(self.emissions)], len(self.emissions)
        posteriors = np.zeros_like(self.emissions)
        for d in self.constrained:
            # The scale of this sum is −1, plus the share of the counts that are conditioned on the
            # tags.
            own = self.rows[d]
            posteriors[own] -= d_items[begin : begin + len(own)]
            begin += len(own)
        d_transitions -= self.with_counts.transitions
        for (d, _), found in zip(self.jobs, self.with_counts.emissions):
            posteriors[self.rows[d]] += found
        for path in self.paths:
            own = self.tags[path]
            posteriors[path, own] += 1.0
            np.subtract.at(d_transitions, (own[:-1], own[1:]), 1.0)
            d_transitions[-2, own[0]] -= 1.0
            d_transitions[-1, own[-1]] -= 1.0
        d_emissions -= posteriors + self.complements.emissions
        d_transitions -= self.complements.transitions
        # Rounding may make the difference of a nearly certain gold sequence negative.
        self.losses[self.contradictory] = 0.0
        losses = np.maximum(self.losses, 0.0)
        return Loss(
            losses, d_emissions, d_transitions, self.left_out, posteriors, self.contradictory
        )


class _Complements:
    """Log-partitions of the sequences that do not contain a rejected run, and their gradient.

    These sequences are a disjoint union of departures from the run. The gradient of the sum is in
    ``emissions`` ``(T, K)`` and ``transitions`` ``(K + 2, K)``.
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
        """Add a rejected run; return whether any sequence is without it."""
        found = _departures(self.chain, run, len(self.rows[doc]))
        if found:
            size = len(found) * len(self.rows[doc])
            if self.waiting and self.waiting_rows + size > ROWS:
                self._sum_up()
            self.waiting.append((doc, run, found))
            self.waiting_rows += size
        return bool(found)

    def finish(self) -> list[tuple[int, float]]:
        """Return the doc and the log-partition of each run."""
        if self.waiting:
            self._sum_up()
        return self.values

    def _sum_up(self) -> None:
        # The departures of one long run may exceed ROWS. They are then summed in parts, and each
        # part again for its gradient, so that only one part is in memory.
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
        return batch_sums(self.chain, parts, [len(part) for part in parts])


def _score(chain: TagSequence, emissions: np.ndarray, tags: np.ndarray) -> float:
    assert chain.bound is not None
    transitions, start, end = (part.numpy() for part in chain.bound)
    total = np.take_along_axis(emissions, tags[:, None], 1).sum(dtype=np.float64)
    total += transitions[tags[:-1], tags[1:]].sum()
    return float(total + start[tags[0]] + end[tags[-1]])


@dataclass(frozen=True)
class _Departure:
    """Sequences that follow a run for some tags and then leave it.

    Attributes:
        followed: number of tags of the run that they have.
        others: ``(K,)`` bool, the possible next tags.
    """

    followed: int
    others: np.ndarray


def _departures(chain: TagSequence, run: Run, size: int) -> list[_Departure]:
    """Return all ways to leave a run in a doc of this size; they exclude each other."""
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
    """Return the scores ``(n, K)`` of a doc, with −inf for sequences without this departure."""
    found, followed = scores.copy(), departure.followed
    for i, tag in enumerate(run.tags[:followed], run.start):
        found[i] = -np.inf
        found[i, tag] = scores[i, tag]
    found[run.start + followed, ~departure.others] = -np.inf
    return found
