"""Log-partitions of a chain of tags under conditions on the numbers of entities.

A state of the chain is a tag and, for each counted label, the number of its entities that have
ended before, up to the number in the condition. All terms are positive, so no digit is lost when
few sequences satisfy the condition. Inclusion and exclusion over labels would sum as many chains
and subtract nearly equal numbers. An entity is counted at its last token. The states then keep the
block structure of the tags, which the sums over a batch use: m states for each tag take the time
of m texts.
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
    from spacy_latent.kernels.chains.tag_batches import BatchSums

# Largest number of combinations of counts in one chain: four labels with at least one entity each.
# More labels are summed in several groups.
MOST = 16
# For each label its last tags and the number up to which it is counted.
Counted = tuple[tuple[tuple[int, ...], int], ...]
# Key of a chain: with a mask of the tags that the item allows anywhere, as bytes of ``(K,)`` bool.
Signature = tuple[Counted, bytes]


def batch_sums(
    chain: TagSequence, parts: Sequence[np.ndarray], sizes: Sequence[int] | np.ndarray
) -> BatchSums:
    """Return the sums over sequences of each text, whose scores are ``(n, K)``."""
    lengths = torch.tensor([int(size) for size in sizes], dtype=torch.int64)
    return chain.batch_sums(torch.from_numpy(np.concatenate(parts)), lengths)


def jointly_counted(counts: Sequence[EntityCount]) -> list[tuple[EntityCount, ...]]:
    """Return the counts in groups, each of which one chain sums jointly.

    A group has at most :data:`MOST` combinations. Within it a token of one label is known to be of
    no other. Groups are taken as independent of each other, given the known tags.
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
class CountedSums:
    """Log-partitions under conditions on counts, with their gradient.

    Attributes:
        values: ``(J,)`` float64, −inf if no sequence satisfies the condition.
    """

    values: np.ndarray
    sizes: list[int]
    tags: int
    _groups: list[tuple[list[int], _CountingChain, BatchSums]]

    def uses(self, scale: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the gradient of Σ_j scale[j] · values[j].

        Returns:
            The gradient for the scores of each item, ``(n, K)``, and for the transitions,
            ``(K + 2, K)``.
        """
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
    """Return the log-partition of each item, with each sequence weighted by its counts.

    Args:
        chain: tag sequences with bound transitions, float64.
        scores: ``(n, K)`` for each item, n at least 1.
        counts: for each item at least one, each for another label.
    """
    assert chain.bound is not None
    tags = len(chain.bound[1])
    by_signature: dict[Signature, list[int]] = {}
    for j, own in enumerate(counts):
        counted = tuple((one.ends, one.least) for one in own)
        # Tags that the item never allows are left out, to save time.
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
    """The chain over tags and counts for one signature.

    A layer is a combination of counts of entities that ended before the token. States are numbered
    layer by layer, and within a layer by allowed tag.
    """

    def __init__(self, chain: TagSequence, signature: Signature) -> None:
        assert chain.bound is not None
        counted, is_open = signature
        self.open = _counted_first(
            chain, np.flatnonzero(np.frombuffer(is_open, dtype=bool)), counted
        )
        between, start, end = (part.numpy()[..., self.open] for part in chain.bound)
        between = between[self.open]
        self.tags = len(self.open)
        counts = np.array(list(product(*(range(least + 1) for _, least in counted))))
        self.layers = len(counts)
        most = np.array([least for _, least in counted])
        strides = np.array([prod(most[j + 1 :] + 1) for j in range(len(most))], dtype=np.int64)
        ended = np.stack([np.isin(self.open, ends) for ends, _ in counted], 1)
        # For each layer and tag, the counts after a token with that tag, (L, K, labels), and the
        # layer of these counts, (L, K).
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
        """Return scores of the states, ``(n, L · K)``; the last token has the weight of counts."""
        found = np.tile(scores[:, self.open], (1, self.layers)).astype(np.float64, copy=False)
        weights = [one.log_weights(self.after[..., j]) for j, one in enumerate(counts)]
        found[-1] += np.sum(weights, axis=0).ravel()
        return found

    def of_tags(self, transitions: np.ndarray) -> np.ndarray:
        """Return the gradient for the transitions of allowed tags from the gradient for states."""
        by_layer = transitions[self.rows, self.columns].sum(0)
        ends = transitions[-2:].reshape(2, self.layers, self.tags).sum(1)
        return np.concatenate([by_layer, ends])


def _counted_first(chain: TagSequence, tags: np.ndarray, counted: Counted) -> np.ndarray:
    """Return the tags with those of each counted label first.

    Chains that count as many labels then allow the same transitions, whichever the labels are. The
    layout of these is made once and kept, which takes longer than the sums over a text.
    """
    assert chain.bound is not None
    between, start, _ = (part.numpy()[..., tags] != -np.inf for part in chain.bound)
    between = between[tags]
    # From within an entity no tag follows with which a text may begin.
    within = ~between[:, start].any(1)
    key = np.full(len(tags), len(counted))
    for place, (ends, _) in enumerate(counted):
        ended = np.isin(tags, ends)
        key[ended | within & between[:, ended].any(1)] = place
    return tags[np.argsort(key, kind="stable")]


__all__ = ["MOST", "CountedSums", "batch_sums", "jointly_counted", "log_sums_with_counts"]
