"""Log-partitions of a chain of tags under conditions on the numbers of entities.

A state of the chain is a tag, together with the number of entities of each counted label that have
ended before. Numbers are counted up to the number in the condition. All terms are positive, so no
digits are lost if few sequences satisfy the condition. Inclusion and exclusion over labels would
sum as many chains, and subtract nearly equal numbers. An entity is counted at its last token. So
transitions have the same weights for all numbers, and the numbers are the lanes of vectors in
:mod:`spacy_latent.kernels.chains.counted_tags`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from spacy_latent.models.tag_evidence import EntityCount
from spacy_latent.structures.tag_sequence import TagSequence

if TYPE_CHECKING:
    from spacy_latent.kernels.chains.counted_tags import Counters
    from spacy_latent.kernels.chains.tag_batches import BatchSums

# Largest number of combinations of counts in one chain, enough for four labels with at least one
# entity each. More labels are summed in several groups.
MOST = 16


def batch_sums(
    chain: TagSequence, parts: Sequence[np.ndarray], sizes: Sequence[int] | np.ndarray
) -> BatchSums:
    """Return the sums over sequences of each text, whose scores are ``(n, K)``."""
    lengths = torch.tensor([int(size) for size in sizes], dtype=torch.int64)
    return chain.batch_sums(torch.from_numpy(np.concatenate(parts)), lengths)


def jointly_counted(counts: Sequence[EntityCount]) -> list[tuple[EntityCount, ...]]:
    """Return the counts in groups, each of which one chain sums jointly.

    A group has at most :data:`MOST` combinations. Within a group the sum accounts for tokens having
    only one label. Between groups it does not: given the known tags, groups count as independent.
    """
    groups: list[list[EntityCount]] = []
    size = 0
    for one in sorted(counts, key=lambda one: (one.least, one.ends)):
        size *= one.least + 1
        if not groups or size > MOST:
            groups.append([])
            size = one.least + 1
        groups[-1].append(one)
    return [tuple(group) for group in groups]


@dataclass
class CountedLogSums:
    """Log-partitions under conditions on counts, and the gradient of their sum.

    Attributes:
        values: ``(J,)`` float64, −inf if no sequence satisfies the condition. Such a value has no
            gradient.
        emissions: ``(n, K)`` for each job, the gradient for its scores.
        transitions: ``(K + 2, K)``.
    """

    values: np.ndarray
    emissions: list[np.ndarray]
    transitions: np.ndarray


def log_sums_with_counts(
    chain: TagSequence,
    scores: np.ndarray,
    jobs: Sequence[tuple[np.ndarray, tuple[EntityCount, ...]]],
) -> CountedLogSums:
    """Return the log-partition of each job, with each sequence weighted by its counts.

    Args:
        chain: tag sequences with bound transitions, float64.
        scores: ``(T, K)`` float64.
        jobs: for each job its adjacent rows of ``scores``, at least one, and its counts, at least
            one. The counts of a job have different labels.
    """
    from spacy_latent.kernels.chains.counted_tags import sum_with_counters

    assert chain.bound is not None
    between, start, end = (part.numpy() for part in chain.bound)
    transitions = np.concatenate([between, start[None], end[None]])
    if not jobs:
        return CountedLogSums(np.zeros(0), [], np.zeros_like(transitions))
    kind_of: dict[tuple[EntityCount, ...], int] = {}
    kinds = [kind_of.setdefault(counts, len(kind_of)) for _, counts in jobs]
    offsets = np.array([rows[0] for rows, _ in jobs], dtype=np.int64)
    lengths = np.array([len(rows) for rows, _ in jobs], dtype=np.int64)
    counters = _counters(list(kind_of), len(between))
    sums = sum_with_counters(
        scores, transitions, offsets, lengths, np.array(kinds, dtype=np.int64), counters
    )
    found = CountedLogSums(
        sums.log_partition, np.split(sums.tags, np.cumsum(lengths)[:-1]), sums.transitions
    )
    for j in np.flatnonzero(~sums.precise).tolist():
        rows, counts = jobs[j]
        found.values[j], found.emissions[j], uses = _sum_again(chain, scores[rows], counts)
        found.transitions += uses
    return found


def _counters(kinds: Sequence[tuple[EntityCount, ...]], tags: int) -> Counters:
    from spacy_latent.kernels.chains.counted_tags import Counters

    least = [tuple(one.least for one in counts) for counts in kinds]
    layers = [_layers(own) for own in least]
    sizes = np.array([len(own.counts) for own in layers], dtype=np.int64)
    most = int(sizes.max())
    moves = np.full((len(kinds), tags), -1, dtype=np.int64)
    weights, targets = np.zeros((len(kinds), most)), np.zeros((0, most), dtype=np.int64)
    first_of: dict[tuple[int, ...], int] = {}
    for k, (counts, own) in enumerate(zip(kinds, layers)):
        if least[k] not in first_of:
            first_of[least[k]] = len(targets)
            wide = np.zeros((len(counts), most), dtype=np.int64)
            wide[:, : sizes[k]] = own.after.T
            targets = np.concatenate([targets, wide])
        for place, one in enumerate(counts):
            moves[k, list(one.ends)] = first_of[least[k]] + place
        weights[k, : sizes[k]] = np.exp(
            sum(one.log_weights(own.counts[:, place]) for place, one in enumerate(counts))
        )
    return Counters(sizes, moves, targets, weights)


@dataclass(frozen=True)
class _Layers:
    """Combinations of counts of entities that have ended.

    Attributes:
        counts: ``(L, labels)``, the counts of each layer.
        after: ``(L, labels)``, the layer after one more entity of a label.
    """

    counts: np.ndarray
    after: np.ndarray


@lru_cache(maxsize=256)
def _layers(most: tuple[int, ...]) -> _Layers:
    """Return the layers of labels that are counted up to these numbers."""
    counts = np.array(list(product(*(range(least + 1) for least in most))), dtype=np.int64)
    strides = [prod(least + 1 for least in most[j + 1 :]) for j in range(len(most))]
    steps = np.where(counts < most, strides, 0)
    return _Layers(counts, np.arange(len(counts))[:, None] + steps)


def _sum_again(
    chain: TagSequence, scores: np.ndarray, counts: Sequence[EntityCount]
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log-partition of one job and its gradients, from a chain over tags and layers.

    It is slow, because the chain has L · K tags. It sums logarithms if necessary.
    """
    assert chain.bound is not None
    between, start, end = (part.numpy() for part in chain.bound)
    layers = _layers(tuple(one.least for one in counts))
    number, tags = len(layers.counts), len(between)
    after = np.tile(np.arange(number)[:, None], (1, tags))
    for place, one in enumerate(counts):
        after[:, list(one.ends)] = layers.after[:, place, None]
    # Rows and columns of transitions, [layer, tag, next tag]. A state has the layer before its tag.
    rows = np.arange(number * tags).reshape(number, tags, 1)
    columns = after[:, :, None] * tags + np.arange(tags)
    wide = np.full((number * tags, number * tags), -np.inf)
    wide[rows, columns] = between
    first = np.full(number * tags, -np.inf)
    first[:tags] = start
    bound = (wide, first, np.tile(end, number))
    whole = TagSequence().bind(*map(torch.from_numpy, bound))
    repeated = np.tile(scores, (1, number))
    weights = [one.log_weights(layers.counts[after, j]) for j, one in enumerate(counts)]
    repeated[-1] += np.sum(weights, axis=0).ravel()
    sums = batch_sums(whole, [repeated], [len(repeated)])
    emissions, uses = sums.uses(np.ones(1))
    ends = uses[-2:].reshape(2, number, tags).sum(1)
    transitions = np.concatenate([uses[rows, columns].sum(0), ends])
    emissions = emissions.reshape(len(scores), number, tags).sum(1)
    return float(sums.log_partition[0]), emissions, transitions
