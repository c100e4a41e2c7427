"""Kernels of sums over tag sequences that share their transitions, in blocks of allowed pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from spacy_latent.kernels.chains.linear_chain import TRUSTED, scale_by_largest, weigh
from spacy_latent.kernels.core.compilation import ANY_ORDER, kernel
from spacy_latent.kernels.core.status import FEASIBLE, NOT_FINITE, UNSOLVED
from spacy_latent.kernels.simd.vector import (
    LANES,
    add_four,
    add_one,
    dot_four,
    dot_one,
    whole_vectors,
)


@dataclass(frozen=True)
class Blocks:
    """The allowed pairs of K tags, in blocks.

    Attributes:
        order: ``(K,)``, the tag of each column. The columns of a block are adjacent.
        place: ``(R,)``, the column of the tag of each row. The rows of a block are adjacent.
        extents: ``(G, 5)``, for each block: first row and end of its rows, first column and end of
            its columns, and the start of its weights. Rows of weights are padded to whole vectors.
        block_of: ``(R,)``, the block of each row.
        entries: ``(E,)``, the index of the weight of each pair.
        pairs: ``(2, E)``, the tags of each pair.
        size: the number of weights, with padding.
    """

    order: np.ndarray
    place: np.ndarray
    extents: np.ndarray
    block_of: np.ndarray
    entries: np.ndarray
    pairs: np.ndarray
    size: int


class Chain(NamedTuple):
    """The scores of K tags that a batch shares.

    Attributes:
        first, final: ``(K,)``, scores of the first and of the last tag.
        shift: the largest score of a transition, which the weights lack.
        weights: exponentials of transitions.
        order, place, extents, block_of: see Blocks.
    """

    first: np.ndarray
    final: np.ndarray
    shift: float
    weights: np.ndarray
    order: np.ndarray
    place: np.ndarray
    extents: np.ndarray
    block_of: np.ndarray


class Sums(NamedTuple):
    """The sums of T tokens of B items.

    Attributes:
        forward, share: ``(T, K + LANES)``, by column. The marginal of neighbours is ``forward`` of
            the first, times the weight, times ``share`` of the second.
        tags: ``(T, K)``, marginals of tags.
        log_partition, status: ``(B,)``.
    """

    forward: np.ndarray
    share: np.ndarray
    tags: np.ndarray
    log_partition: np.ndarray
    status: np.ndarray


@lru_cache(maxsize=16)
def blocks_of(allowed: bytes, tags: int) -> Blocks:
    """Return the blocks of a table ``(K, K)`` of allowed pairs, as bytes of bool."""
    table = np.frombuffer(allowed, dtype=bool).reshape(tags, tags)
    rows_of: dict[bytes, list[int]] = {}
    for tag, row in enumerate(table):
        if row.any():
            rows_of.setdefault(row.tobytes(), []).append(tag)
    members = [(rows, np.flatnonzero(table[rows[0]]).tolist()) for rows in rows_of.values()]
    if sum(len(columns) for _, columns in members) > len({c for _, own in members for c in own}):
        members = [(list(range(tags)), list(range(tags)))]
    order = [column for _, columns in members for column in columns]
    order += sorted(set(range(tags)) - set(order))
    column_of = np.argsort(order)
    extents, block_of, entries, pairs = [], [], [], []
    first_row = first_column = size = 0
    for rows, columns in members:
        height, width = len(rows), len(columns)
        stride = -(-width // LANES) * LANES
        extents.append((first_row, first_row + height, first_column, first_column + width, size))
        block_of += [len(extents) - 1] * height
        entries.append((size + stride * np.arange(height)[:, None] + np.arange(width)).ravel())
        pairs.append(np.stack([np.repeat(rows, width), np.tile(columns, height)]))
        first_row, first_column = first_row + height, first_column + width
        size += height * stride
    return Blocks(
        order=np.array(order, dtype=np.int64),
        place=column_of[[row for rows, _ in members for row in rows]].astype(np.int64),
        extents=np.array(extents, dtype=np.int64).reshape(-1, 5),
        block_of=np.array(block_of, dtype=np.int64),
        entries=np.concatenate([*entries, np.empty(0, dtype=np.int64)]),
        pairs=np.concatenate([*pairs, np.empty((2, 0), dtype=np.int64)], 1),
        size=size,
    )


@kernel
def _forward(before, weights, extents, result):
    """Write result[c] = Σ_r before[r] · weight of (r, c), over the pairs of all blocks."""
    result[:] = 0.0
    for g in range(len(extents)):
        begin, end, first, after, position = extents[g]
        width = after - first
        stride, target = whole_vectors(width), result[first:]
        r = begin
        while r + 4 <= end:
            a = weights[position:]
            b = weights[position + stride :]
            c = weights[position + 2 * stride :]
            d = weights[position + 3 * stride :]
            factors = (before[r], before[r + 1], before[r + 2], before[r + 3])
            add_four((target, a, b, c, d), factors, 0, width)
            position += 4 * stride
            r += 4
        while r < end:
            add_one((target, weights[position:]), (before[r],), 0, width)
            position += stride
            r += 1


@kernel
def _backward(after, weights, extents, result):
    """Write result[r] = Σ_c weight of (r, c) · after[c], over the pairs of all blocks."""
    for g in range(len(extents)):
        begin, end, first, last, position = extents[g]
        width = last - first
        stride, own = whole_vectors(width), after[first:]
        r = begin
        while r + 4 <= end:
            a = weights[position:]
            b = weights[position + stride :]
            c = weights[position + 2 * stride :]
            d = weights[position + 3 * stride :]
            _, result[r], result[r + 1], result[r + 2], result[r + 3] = dot_four(
                (a, b, c, d, own), (0.0,), 0, width
            )
            position += 4 * stride
            r += 4
        while r < end:
            _, result[r] = dot_one((weights[position:], own), (0.0,), 0, width)
            position += stride
            r += 1


@kernel(fastmath=ANY_ORDER)
def _weigh(emissions, chain, factors, backward):
    """Write the weights of all tags at each token, and of the last tag, by column.

    The result is the logarithm by which products of weights are too small, NaN if a score is NaN or
    +inf.
    """
    n, tags = factors.shape
    row, order, shift = np.empty(tags), chain.order, (n - 1) * chain.shift
    for i in range(n):
        for c in range(tags):
            row[c] = emissions[i, order[c]]
        if i == 0:
            for c in range(tags):
                row[c] += chain.first[order[c]]
        shift += weigh(row, factors[i])
    for c in range(tags):
        row[c] = chain.final[order[c]]
    return shift + weigh(row, backward[:tags])


@kernel(fastmath=ANY_ORDER)
def _sum(emissions, chain, forward, share, gamma):
    """Compute the sums of an item like tag_sequence._sweep, with arrays of tags by column.

    The log-partition is NaN if a score is NaN or +inf.
    """
    weights, order, place, extents = chain.weights, chain.order, chain.place, chain.extents
    n, tags, rows = len(emissions), len(order), len(place)
    backward, scales = np.zeros(tags + LANES), np.empty(n)
    before, factors = np.empty(rows), np.empty((n, tags))
    log_partition = _weigh(emissions, chain, factors, backward)
    if math.isnan(log_partition):
        return False, log_partition
    forward[0, :tags] = factors[0]
    scales[0] = scale_by_largest(forward[0, :tags])
    for i in range(1, n):
        current, previous, factor = forward[i], forward[i - 1], factors[i]
        for r in range(rows):
            before[r] = previous[place[r]]
        _forward(before, weights, extents, current)
        for c in range(tags):
            current[c] *= factor[c]
        scales[i] = scale_by_largest(current[:tags])
        if scales[i] == 0.0:
            return False, 0.0
    total = 0.0
    for c in range(tags):
        total += forward[n - 1, c] * backward[c]
    if not total > 0.0:
        return False, 0.0
    log_partition += math.log(total)
    for i in range(n):
        log_partition += math.log(scales[i])
    for i in range(n - 1, -1, -1):
        current, factor, sharing, of_tags = forward[i], factors[i], share[i], gamma[i]
        total = 0.0
        for c in range(tags):
            total += current[c] * backward[c]
        if not total * scales[i] >= TRUSTED:
            return False, 0.0
        normal = 1.0 / total
        for c in range(tags):
            of_tags[order[c]] = current[c] * backward[c] * normal
        if i == 0:
            break
        normal /= scales[i]
        for c in range(tags):
            sharing[c] = factor[c] * backward[c] * normal
        sharing[tags:] = 0.0
        _backward(sharing, weights, extents, before)
        backward[:] = 0.0
        for r in range(rows):
            backward[place[r]] = before[r]
        scale_by_largest(backward[:tags])
    return True, log_partition


@kernel
def sum_items(start, stop, emissions, offsets, lengths, chain, sums):
    """Write the sums of items ``start`` to ``stop``; UNSOLVED if digits are lost.

    Args:
        emissions: ``(T, K)``, for the tokens of all items.
        offsets: ``(B,)``, the first token of each item.
        chain: the transitions that the items share, as a Chain.
        sums: written, as Sums.
    """
    log_partition, status = sums.log_partition, sums.status
    for b in range(start, stop):
        status[b], log_partition[b] = FEASIBLE, 0.0
        if lengths[b] == 0:
            continue
        own = slice(offsets[b], offsets[b] + lengths[b])
        trusted, value = _sum(
            emissions[own], chain, sums.forward[own], sums.share[own], sums.tags[own]
        )
        log_partition[b] = value
        if not trusted:
            status[b] = NOT_FINITE if math.isnan(value) else UNSOLVED


@kernel
def add_pairs(start, stop, offsets, lengths, scale, chain, sums, result):
    """Add the expected uses of pairs in the rows start .. stop−1, before they are weighted.

    It adds Σ scale · forward[i − 1, row] · share[i, column] over the neighbours i − 1, i of all
    items.

    Args:
        result: the layout of the weights; zeros at the call.
    """
    forward, share, place = sums.forward, sums.share, chain.place
    for b in range(len(lengths)):
        n, at, factor = lengths[b], offsets[b], scale[b]
        if factor == 0.0:
            continue
        for r in range(start, stop):
            begin, _, first, last, position = chain.extents[chain.block_of[r]]
            width, column = last - first, place[r]
            target = result[position + (r - begin) * whole_vectors(width) :]
            i = at + 1
            while i + 4 <= at + n:
                rows = (
                    target,
                    share[i, first:],
                    share[i + 1, first:],
                    share[i + 2, first:],
                    share[i + 3, first:],
                )
                factors = (
                    factor * forward[i - 1, column],
                    factor * forward[i, column],
                    factor * forward[i + 1, column],
                    factor * forward[i + 2, column],
                )
                add_four(rows, factors, 0, width)
                i += 4
            while i < at + n:
                rows_of_one = (target, share[i, first:])
                add_one(rows_of_one, (factor * forward[i - 1, column],), 0, width)
                i += 1
