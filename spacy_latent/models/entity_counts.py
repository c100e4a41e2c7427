"""Sums over the sequences of tags that have so many entities, by a chain over tags and counts.

The states of the chain are a tag and, for each label that is counted, how many entities of it have
ended before, up to the number that is asked for. All terms are positive, so that no digit is lost
where hardly any sequence has the entities; inclusion and exclusion over labels sums as many chains
and takes differences of nearly equal numbers there. An entity is counted where it ends: then states
whose tags may follow each other still fall into blocks, which is what sums over a batch make use
of, and m states for each tag take the time of m texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from spacy_latent.models.tag_evidence import EntityCount
from spacy_latent.structures.tag_sequence import TagSequence

if TYPE_CHECKING:
    from spacy_latent.kernels.tag_batches import BatchSums

# Combinations of counts that are told apart at once: four labels of which there is one at least.
# More are summed in several groups.
MOST = 16
# What tells chains apart: the last tags of entities, how many of these are counted, and which tags
# an item has at all, as bytes of ``(K,)`` bool.
Signature = tuple[tuple[tuple[tuple[int, ...], int], ...], bytes]


def batch_sums(
    chain: TagSequence, parts: Sequence[np.ndarray], sizes: Sequence[int] | np.ndarray
) -> BatchSums:
    """Sums over sequences of each part, scores ``(n, K)``."""
    lengths = torch.tensor([int(size) for size in sizes], dtype=torch.int64)
    return chain.batch_sums(torch.from_numpy(np.concatenate(parts)), lengths)


def jointly_counted(counts: Sequence[EntityCount]) -> list[tuple[EntityCount, ...]]:
    """Counts in groups that are summed together: all of them where they need at most :data:`MOST`
    combinations, so that what there is of one label is known to be no entity of another. Groups are
    taken as independent of each other, given the tags that are known."""
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
class CountedSums:
    """values: ``(J,)``, the log-partitions, −inf where no sequence agrees."""

    values: np.ndarray
    sizes: list[int]
    tags: int
    _groups: list[tuple[list[int], _CountingChain, BatchSums]]

    def uses(self, scale: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The gradient of Σ_j scale[j] · values[j]: for the scores of each item ``(n, K)``, and for
        what is bound ``(K + 2, K)``."""
        emissions = [np.zeros((size, self.tags)) for size in self.sizes]
        shared = np.zeros((self.tags + 2, self.tags))
        for items, counting, sums in self._groups:
            found, transitions = sums.uses(scale[items])
            places = np.append(counting.open, [self.tags, self.tags + 1])
            shared[np.ix_(places, counting.open)] += counting.of_tags(transitions)
            summed = found.reshape(len(found), counting.layers, counting.tags).sum(1)
            begin = 0
            for j in items:
                emissions[j][:, counting.open] = summed[begin : begin + self.sizes[j]]
                begin += self.sizes[j]
        return emissions, shared


def log_sums_with_counts(
    chain: TagSequence, scores: Sequence[np.ndarray], counts: Sequence[Sequence[EntityCount]]
) -> CountedSums:
    """The log-partition of each item, all of whose sequences have the weight of its counts.

    chain: bound, float64. scores: of each item ``(n, K)``, n at least 1.
    counts: of each item at least one, of different labels.
    """
    assert chain.bound is not None
    tags = len(chain.bound[1])
    by_signature: dict[Signature, list[int]] = {}
    for j, own in enumerate(counts):
        counted = tuple((one.ends, one.least) for one in own)
        # Tags of labels that an item does not have, by another flag, take no time.
        is_open = (scores[j] != -np.inf).any(0)
        is_open |= not is_open.any()
        by_signature.setdefault((counted, is_open.tobytes()), []).append(j)
    values, groups = np.zeros(len(scores)), []
    for signature, items in by_signature.items():
        counting = _CountingChain(chain, signature)
        parts = [counting.scores(scores[j], counts[j]) for j in items]
        sums = batch_sums(counting.chain, parts, [len(part) for part in parts])
        values[items] = sums.log_partition
        groups.append((items, counting, sums))
    return CountedSums(values, [len(own) for own in scores], tags, groups)


class _CountingChain:
    """States are numbered layer by layer, in each layer as the tags that are open; a layer is a
    combination of counts of entities that ended before the token."""

    def __init__(self, chain: TagSequence, signature: Signature) -> None:
        assert chain.bound is not None
        counted, is_open = signature
        self.open = np.flatnonzero(np.frombuffer(is_open, dtype=bool))
        between, start, end = (part.numpy()[..., self.open] for part in chain.bound)
        between = between[self.open]
        self.tags = len(self.open)
        counts = np.array(list(product(*(range(least + 1) for _, least in counted))))
        self.layers = len(counts)
        most = np.array([least for _, least in counted])
        strides = np.array([prod(most[j + 1 :] + 1) for j in range(len(most))], dtype=np.int64)
        ended = np.stack([np.isin(self.open, ends) for ends, _ in counted], 1)
        # Of each layer and tag, those after the token, (L, K, labels) and (L, K).
        self.after = np.minimum(counts[:, None] + ended, most)
        target = self.after @ strides
        origin = np.arange(self.layers)[:, None] * self.tags + np.arange(self.tags)
        # [layer, tag, next tag].
        self.rows = np.broadcast_to(origin[:, :, None], (*origin.shape, self.tags))
        self.columns = target[:, :, None] * self.tags + np.arange(self.tags)
        states = self.layers * self.tags
        wide = np.full((states, states), -np.inf)
        wide[self.rows, self.columns] = between
        first = np.full(states, -np.inf)
        first[: self.tags] = start
        bound = (wide, first, np.tile(end, self.layers))
        self.chain = TagSequence().bind(*map(torch.from_numpy, bound))

    def scores(self, scores: np.ndarray, counts: Sequence[EntityCount]) -> np.ndarray:
        """Those of the states, ``(n, L · K)``, with the weight of the counts at the last token."""
        found = np.tile(scores[:, self.open], (1, self.layers)).astype(np.float64, copy=False)
        weights = [one.log_weights(self.after[..., j]) for j, one in enumerate(counts)]
        found[-1] += np.sum(weights, axis=0).ravel()
        return found

    def of_tags(self, transitions: np.ndarray) -> np.ndarray:
        """The gradient for what is bound of the open tags, from that of the states."""
        by_layer = transitions[self.rows, self.columns].sum(0)
        ends = transitions[-2:].reshape(2, self.layers, self.tags).sum(1)
        return np.concatenate([by_layer, ends])


__all__ = ["MOST", "CountedSums", "batch_sums", "jointly_counted", "log_sums_with_counts"]
