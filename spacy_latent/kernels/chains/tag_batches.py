"""Sums over a batch of tag sequences that share their transitions, in blocks of allowed pairs.

Most transitions of a span scheme are forbidden. Tags that allow the same next tags form a block
with these next tags. For example, BILUO with L labels has 4 L + 1 tags. The 2 L + 1 tags that leave
no span open go to 2 L + 1 tags. The two tags of each label that leave a span open go to two. The
blocks hold a quarter of all pairs, and sums only run over them. If blocks would overlap, one block
holds all pairs.

The exponentials of transitions are computed once for the batch. The expected uses of each pair are
products of forward and backward sums, summed over the batch. The weight of the pair is multiplied
at the end.

Methods are those of kernels.chains.tag_sequence. If the sums show that an item has lost precision,
that module solves it again on logarithms. Time is O(n·E) for E pairs, memory O(n·K + E).
"""

from __future__ import annotations

import numpy as np

from spacy_latent.kernels.autograd.families import check
from spacy_latent.kernels.chains.tag_blocks import Chain, Sums, add_pairs, blocks_of, sum_items
from spacy_latent.kernels.chains.tag_sequence import sum_over_sequences
from spacy_latent.kernels.core.operations import MARGINALS
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, INFEASIBLE, NOT_FINITE, UNSOLVED
from spacy_latent.kernels.simd.vector import LANES


class BatchSums:
    """Log-partitions of a batch, with the values that their gradients need.

    Attributes:
        emissions: ``(T, K)``, items one after the other, float32 or float64.
        lengths: ``(B,)``, which sum to T.
        transitions: ``(K + 2, K)`` float64, [previous tag, tag], then the scores of the first and
            of the last tag. −inf forbids.
        log_partition: ``(B,)`` float64, −inf if all sequences are forbidden.

    Raises:
        InvalidScores: there are NaN or +inf; the message names the items.
    """

    def __init__(
        self, emissions: np.ndarray, lengths: np.ndarray, transitions: np.ndarray, name: str
    ) -> None:
        count, tags = emissions.shape
        between, bounds = transitions[:tags], np.ascontiguousarray(transitions[tags:])
        blocks = blocks_of((between != -np.inf).tobytes(), tags)
        taken = between[blocks.pairs[0], blocks.pairs[1]]
        shift = float(taken.max()) if taken.size else 0.0
        self.lengths = np.ascontiguousarray(lengths, dtype=np.int64)
        self.offsets = np.cumsum(self.lengths) - self.lengths
        self.blocks = blocks
        self.weights = np.zeros(blocks.size + LANES)
        self.tags = np.empty((count, tags))
        self.log_partition = np.zeros(len(lengths))
        status = np.zeros(len(lengths), dtype=np.int8)
        forward, share = np.empty((2, count, tags + LANES))
        self.sums = Sums(forward, share, self.tags, self.log_partition, status)
        self.chain = Chain(
            bounds[0],
            bounds[1],
            shift,
            self.weights,
            blocks.order,
            blocks.place,
            blocks.extents,
            blocks.block_of,
        )
        # Expected uses ``(n + K + 2, K)`` of items that were solved again on logarithms.
        self.again: dict[int, np.ndarray] = {}
        if not np.isfinite(shift):
            check(name, np.where(self.lengths > 0, NOT_FINITE, FEASIBLE).astype(np.int8))
            return
        self.weights[blocks.entries] = np.exp(taken - shift)
        given = np.ascontiguousarray(emissions), self.offsets, self.lengths
        costs = self.lengths * (0.12 * len(blocks.entries) + 12.0 * tags)
        spread(sum_items, costs, (*given, self.chain, self.sums))
        for b in np.flatnonzero(status == UNSOLVED).tolist():
            rows = emissions[self.offsets[b] : self.offsets[b] + self.lengths[b]]
            status[b] = self._do_again(b, np.concatenate([rows, transitions]))
        check(name, np.where(status == INFEASIBLE, FEASIBLE, status))

    def _do_again(self, b: int, item: np.ndarray) -> int:
        uses, status = np.empty((1, *item.shape)), np.zeros(1, dtype=np.int8)
        scores, along = np.ascontiguousarray(item[None], dtype=np.float64), np.empty((0, 0, 0))
        batch = scores, self.lengths[b : b + 1], ()
        results = self.log_partition[b : b + 1], uses, np.empty((1, 0)), status
        sum_over_sequences(0, 1, batch, along, MARGINALS, results)
        if status[0] == FEASIBLE:
            self.again[b] = uses[0]
        elif status[0] == INFEASIBLE:
            self.log_partition[b] = -np.inf
        return int(status[0])

    def uses(self, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of Σ_b scale[b] · log_partition[b], over items that have sequences.

        Returns:
            The gradient for the emissions ``(T, K)``, and for the transitions ``(K + 2, K)``.
        """
        tags, blocks = self.tags.shape[1], self.blocks
        swept = np.isfinite(self.log_partition)
        swept[list(self.again)] = False
        plain = np.where(swept, scale, 0.0)
        factors = np.repeat(plain, self.lengths)[:, None]
        # Values of items that were solved again are uninitialised.
        emissions = np.multiply(
            self.tags, factors, where=factors != 0.0, out=np.zeros_like(self.tags)
        )
        sums = np.zeros(len(self.weights))
        steps = int(np.maximum(self.lengths - 1, 0).sum())
        widths = (blocks.extents[:, 3] - blocks.extents[:, 2])[blocks.block_of]
        arguments = (self.offsets, self.lengths, plain, self.chain, self.sums, sums)
        spread(add_pairs, steps * (0.1 * widths + 4.0), arguments)
        transitions = np.zeros((tags + 2, tags))
        transitions[blocks.pairs[0], blocks.pairs[1]] = (sums * self.weights)[blocks.entries]
        there = np.flatnonzero(self.lengths)
        begins, ends = self.offsets[there], self.offsets[there] + self.lengths[there] - 1
        transitions[tags] = emissions[begins].sum(0)
        transitions[tags + 1] = emissions[ends].sum(0)
        for b, uses in self.again.items():
            begin, end = self.offsets[b], self.offsets[b] + self.lengths[b]
            emissions[begin:end] = scale[b] * uses[: -tags - 2]
            transitions += scale[b] * uses[-tags - 2 :]
        return emissions, transitions
