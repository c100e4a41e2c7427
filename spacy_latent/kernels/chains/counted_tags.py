"""Sums over a batch of tag sequences with counters, whose combinations are the lanes of a vector.

A state is a tag and a *layer*, a combination of counters. Some tags move a sequence to another
layer. A transition between two tags has the same weight in all layers, so it multiplies a vector of
layers. All transitions are shared by the batch, and most are forbidden, as in
:mod:`spacy_latent.kernels.chains.tag_batches`, which has the blocks of allowed pairs.

The weights of an item are packed first. Tags that it never allows are left out. Small blocks are
joined, and all are padded to whole groups of rows and of columns, so that each product is of GROUP
by GROUP weights with GROUP vectors. Time is O(n·E·L) for E pairs and L layers. Memory is O(n·K·L)
for one item at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.chains.linear_chain import TRUSTED, weigh
from spacy_latent.kernels.chains.tag_blocks import blocks_of
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.pool import ranges, spread
from spacy_latent.kernels.simd.vector import (
    GROUP,
    LANES,
    VECTOR,
    add_product,
    broadcast,
    constant,
    fused_loop,
    larger,
    over_vectors,
    plus,
    read_arguments,
    times_plus,
    vector_from,
    whole_vectors,
)

# Number of positions whose pairs are summed at once. Their sums stay in the processor's cache.
POSITIONS = 32


class Counters(NamedTuple):
    """The layers of S kinds of items. Sequences begin in layer 0.

    Attributes:
        sizes: ``(S,)`` int64, numbers of layers.
        moves: ``(S, K)`` int64, for each tag the row of ``targets``, or −1 if it keeps the layer.
        targets: ``(M, L)`` int64, the next layer of each layer. L is the largest size. Entries past
            a size are 0.
        weights: ``(S, L)`` float64, weights of the layers after the last token, 0 past the size.
    """

    sizes: np.ndarray
    moves: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class CountedSums:
    """Log-partitions of J items, and the gradient of their sum.

    Attributes:
        log_partition: ``(J,)`` float64.
        precise: ``(J,)`` bool. The log-partition of the other items is undefined, and they have no
            gradient. They have too small sums, no sequence, or NaN or +inf among their scores.
        tags: ``(Σ n, K)``, the gradient for the scores of each item, one item after the other.
        transitions: ``(K + 2, K)``.
    """

    log_partition: np.ndarray
    precise: np.ndarray
    tags: np.ndarray
    transitions: np.ndarray


class Chain(NamedTuple):
    """The scores and the weights of K tags.

    Attributes:
        first, final: ``(K,)``, scores of the first and of the last tag.
        weights: ``(K, K)``, exponentials of transitions.
        extents, row_tags, column_tags: the blocks of allowed pairs, and the tags of their rows and
            columns.
    """

    first: np.ndarray
    final: np.ndarray
    weights: np.ndarray
    extents: np.ndarray
    row_tags: np.ndarray
    column_tags: np.ndarray


class Packed(NamedTuple):
    """The weights of an item.

    Attributes:
        rows, columns: the tag of each packed row and column, −1 for padding.
        blocks: ``(G, 5)``: first row and end of rows, first column and end of columns, and the
            start of the weights.
        weights: block by block and row by row.
    """

    rows: np.ndarray
    columns: np.ndarray
    blocks: np.ndarray
    weights: np.ndarray


class Workspace(NamedTuple):
    """Sums of an item, in rows of L numbers.

    Attributes:
        before, current, backward: sums at one position, a row for each packed row or column.
        forward, share: n · L numbers for each packed column, at distances of :func:`_stride`. The
            marginal of neighbours in a layer is ``forward`` of the first, times the weight, times
            ``share`` of the second.
    """

    before: np.ndarray
    current: np.ndarray
    backward: np.ndarray
    forward: np.ndarray
    share: np.ndarray


class Items(NamedTuple):
    """The items of :func:`sum_with_counters`, and the first of the rows of each in the results."""

    emissions: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    kinds: np.ndarray
    begins: np.ndarray


class Results(NamedTuple):
    """Results for all items; pairs ``(parts, K, K)`` for each part of them."""

    tags: np.ndarray
    log_partition: np.ndarray
    pairs: np.ndarray
    precise: np.ndarray


# Two rows by GROUP rows.
_dots = fused_loop([("dot", GROUP * a + b, ((a, 2 + b),)) for a in range(2) for b in range(GROUP)])


@intrinsic
def _scale_rows(
    typingctx, target, target_start, target_stride, source, source_start, source_stride,
    places, factors, shared, size,
):  # fmt: skip
    """Write shared · factors[c] · source row places[c] to target row c, for all c.

    Row c of an array begins at start + c · stride. Rows have ``size`` numbers, in whole vectors.
    Arrays are flat and contiguous, since numba counts references for each slice. This would take
    longer than the row. The largest number written, or 0, is returned.
    """
    number = types.int64
    signature = types.float64(
        target, number, number, source, number, number, places, factors, types.float64, number
    )

    def generate(context, builder, signature, arguments):
        values = read_arguments(context, builder, signature, arguments)
        (written, start, stride), (read, source_start, source_stride) = values[:3], values[3:6]
        chosen, scalars, shared, size = values[6:]
        best = cgutils.alloca_once_value(builder, constant(0.0))
        with cgutils.for_range(builder, builder.extract_value(chosen.shape, 0)) as loop:
            factor = builder.load(builder.gep(scalars.data, [loop.index]))
            factor = broadcast(builder, builder.fmul(factor, shared))
            row = builder.load(builder.gep(chosen.data, [loop.index]))
            to = builder.add(start, builder.mul(loop.index, stride))
            by = builder.add(source_start, builder.mul(row, source_stride))
            with over_vectors(builder, size.type(0), size) as index:
                place = vector_from(builder, read.data, builder.add(by, index))
                value = builder.fmul(factor, builder.load(place, align=8))
                place = vector_from(builder, written.data, builder.add(to, index))
                builder.store(value, place, align=8)
                builder.store(larger(builder, value, builder.load(best)), best)
        return _over_lanes(builder, builder.load(best), larger)

    return signature, generate


@intrinsic
def _dot_rows(typingctx, first, start, stride, second, result, size):
    """Write the dot products of rows of two arrays, see :func:`_scale_rows`.

    Rows of the second array begin at c · size.
    """
    number = types.int64
    signature = types.none(first, number, number, second, result, number)

    def generate(context, builder, signature, arguments):
        one, start, stride, two, written, size = read_arguments(
            context, builder, signature, arguments
        )
        total = cgutils.alloca_once(builder, VECTOR)
        with cgutils.for_range(builder, builder.extract_value(written.shape, 0)) as loop:
            builder.store(constant(0.0), total)
            begin = builder.add(start, builder.mul(loop.index, stride))
            other = builder.mul(loop.index, size)
            with over_vectors(builder, size.type(0), size) as index:
                factor, value = (
                    builder.load(vector_from(builder, array.data, builder.add(at, index)), align=8)
                    for array, at in ((one, begin), (two, other))
                )
                builder.store(times_plus(builder, factor, value, builder.load(total)), total)
            value = _over_lanes(builder, builder.load(total), plus)
            builder.store(value, builder.gep(written.data, [loop.index]))
        return context.get_dummy_value()

    return signature, generate


def _over_lanes(builder: Any, vector: Any, combine: Any) -> Any:
    lanes = [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(LANES)]
    while len(lanes) > 1:
        lanes = [combine(builder, a, b) for a, b in zip(lanes[::2], lanes[1::2])]
    return lanes[0]


@kernel
def _padded(size):
    return (size + GROUP - 1) // GROUP * GROUP


@kernel
def _open_tags(is_open, tags, begin, end, found, place):
    """Append the tags that the item allows to ``found`` at ``place``; return the new end."""
    for k in range(begin, end):
        if is_open[tags[k]]:
            found[place] = tags[k]
            place += 1
    return place


@kernel
def _stride(n, size):
    # Not a power of two, whose multiples share few lines of a cache.
    return n * size + LANES


@kernel
def _pack(is_open, chain, packed):
    """Pack the weights of an item that allows the tags ``is_open``.

    ``packed`` has capacity for all tags. The record is returned without the unneeded capacity.
    """
    extents, row_tags, column_tags = chain.extents, chain.row_tags, chain.column_tags
    rows, columns, blocks, weights = packed
    rows[:] = -1
    columns[:] = -1
    count = height = width = first_row = first_column = size = 0
    for g in range(len(extents)):
        row, column = height, width
        height = _open_tags(is_open, row_tags, extents[g, 0], extents[g, 1], rows, row)
        width = _open_tags(is_open, column_tags, extents[g, 2], extents[g, 3], columns, column)
        small = height - first_row <= GROUP and width - first_column <= GROUP
        if row > first_row and not small:
            # It begins behind the padding of the one before.
            rows[row:height] = -1
            columns[column:width] = -1
            blocks[count, 1] = first_row = first_row + _padded(row - first_row)
            blocks[count, 3] = first_column = first_column + _padded(column - first_column)
            count += 1
            height, width = first_row + height - row, first_column + width - column
            _open_tags(is_open, row_tags, extents[g, 0], extents[g, 1], rows, first_row)
            _open_tags(is_open, column_tags, extents[g, 2], extents[g, 3], columns, first_column)
        blocks[count, 0], blocks[count, 2] = first_row, first_column
    if len(extents):
        blocks[count, 1] = height = first_row + _padded(height - first_row)
        blocks[count, 3] = width = first_column + _padded(width - first_column)
        count += 1
        # Tags that follow no other tag.
        width = _open_tags(is_open, column_tags, extents[-1, 3], len(column_tags), columns, width)
    else:
        width = _open_tags(is_open, column_tags, 0, len(column_tags), columns, width)
    for g in range(count):
        blocks[g, 4] = size
        for r in range(blocks[g, 0], blocks[g, 1]):
            for c in range(blocks[g, 2], blocks[g, 3]):
                there = rows[r] >= 0 and columns[c] >= 0
                weights[size] = chain.weights[rows[r], columns[c]] if there else 0.0
                size += 1
    return Packed(rows[:height], columns[:width], blocks[:count], weights)


@kernel
def _forward(before, packed, result, size):
    """Add to result[c] the sum of before[r] times the weight of (r, c), in all blocks."""
    blocks = packed.blocks
    for g in range(len(blocks)):
        first_row, first, end = blocks[g, 0], blocks[g, 2], blocks[g, 3]
        width = end - first
        for r in range(first_row, blocks[g, 1], GROUP):
            begin = blocks[g, 4] + (r - first_row) * width - first
            for c in range(first, end, GROUP):
                add_product(result, c, packed.weights, begin + c, 1, width, before, r, size)


@kernel
def _backward(after, packed, result, size):
    """Add to result[r] the sum of after[c] times the weight of (r, c), in all blocks."""
    blocks = packed.blocks
    for g in range(len(blocks)):
        first_row, first = blocks[g, 0], blocks[g, 2]
        width = blocks[g, 3] - first
        for c in range(first, blocks[g, 3], GROUP):
            begin = blocks[g, 4] + c - first
            for r in range(first_row, blocks[g, 1], GROUP):
                place = begin + (r - first_row) * width
                add_product(result, r, packed.weights, place, width, 1, after, c, size)


@kernel
def _move(current, columns, moves, targets, spare):
    """Move the sums of tags that lead to another layer."""
    for c in range(len(columns)):
        move = moves[columns[c]] if columns[c] >= 0 else -1
        if move >= 0:
            for layer in range(len(spare)):
                spare[layer] = current[c, layer]
                current[c, layer] = 0.0
            for layer in range(len(spare)):
                current[c, targets[move, layer]] += spare[layer]


@kernel
def _move_back(backward, columns, moves, targets, spare):
    """Give each layer the sum of the layer to which the tag moves it."""
    for c in range(len(columns)):
        move = moves[columns[c]] if columns[c] >= 0 else -1
        if move >= 0:
            for layer in range(len(spare)):
                spare[layer] = backward[c, layer]
            for layer in range(len(spare)):
                backward[c, layer] = spare[targets[move, layer]]


@kernel
def _gather(weights, columns, factors):
    """Write the weight of each column's tag, 0 for padding."""
    for c in range(len(columns)):
        factors[c] = weights[columns[c]] if columns[c] >= 0 else 0.0


@kernel
def _places(tags, others, count):
    """Return where ``others`` has each of ``tags``, and 1 if it does; otherwise 0 and 0."""
    place_of, found = np.full(count, -1), np.zeros(len(tags), dtype=np.int64)
    there = np.zeros(len(tags))
    for k in range(len(others)):
        if others[k] >= 0:
            place_of[others[k]] = k
    for k in range(len(tags)):
        if tags[k] >= 0 and place_of[tags[k]] >= 0:
            found[k] = place_of[tags[k]]
            there[k] = 1.0
    return found, there


@kernel
def _weigh(emissions, first, final, weighed):
    """Write the weights of all tags at each token, and of the last tags.

    The result is the logarithm by which the weights are too small, NaN if a score is NaN or +inf.
    """
    n, tags = emissions.shape
    row, shift = np.empty(tags), 0.0
    for i in range(n + 1):
        for t in range(tags):
            if i == n:
                row[t] = final[t]
            else:
                row[t] = emissions[i, t] + (first[t] if i == 0 else 0.0)
        shift += weigh(row, weighed[i])
    return shift


@kernel
def _sum_forward(weighed, moves, targets, packed, workspace, scales):
    """Write the forward sums of an item, with the scale of each token's sums.

    The function returns whether the sums are precise.
    """
    before, current, _, forward, _ = workspace
    n, tags, size = len(scales), weighed.shape[1], before.shape[1]
    columns, flat_before, flat = packed.columns, before.reshape(-1), current.reshape(-1)
    width, stride = len(columns), _stride(n, size)
    spare, itself, factors = np.empty(size), np.arange(width), np.zeros(width)
    column_of, has_column = _places(packed.rows, columns, tags)
    for i in range(n):
        at = i * size
        current[:width] = 0.0
        if i == 0:
            current[:width, 0] = 1.0
        else:
            _scale_rows(
                flat_before, 0, size, forward, at - size, stride, column_of, has_column,
                1.0 / scales[i - 1], size,
            )  # fmt: skip
            _forward(before, packed, current, size)
        _move(current, columns, moves, targets, spare)
        _gather(weighed[i], columns, factors)
        scales[i] = _scale_rows(forward, at, stride, flat, 0, size, itself, factors, 1.0, size)
        # With smaller ones, the sums of the backward pass could overflow.
        if scales[i] < TRUSTED:
            return False
    return True


@kernel
def _sweep(emissions, chain, moves, targets, last, packed, workspace, gamma):
    """Run the forward and the backward pass of an item.

    Args:
        moves, last: (K,) and (L,), see Counters.
        workspace: ``forward`` and ``share`` are written.
        gamma: (n, K), zeros; the marginals of tags are written.

    Returns:
        Whether the sums are precise, and the log-partition without the shift of the weights.
    """
    (n, tags), size, columns = emissions.shape, len(last), packed.columns
    before, current, backward, forward, share = workspace
    height, width, stride = len(packed.rows), len(columns), _stride(n, size)
    flat_before, flat, flat_backward = before.reshape(-1), current.reshape(-1), backward.reshape(-1)
    spare, scales, weighed = np.empty(size), np.empty(n), np.empty((n + 1, tags))
    itself, ones = np.arange(width), np.ones(width)
    shares, factors = np.empty(width), np.empty(width)
    row_of, has_row = _places(columns, packed.rows, tags)
    log_partition = _weigh(emissions, chain.first, chain.final, weighed)
    if math.isnan(log_partition):
        return False, log_partition
    if not _sum_forward(weighed, moves, targets, packed, workspace, scales):
        return False, 0.0
    for i in range(n):
        log_partition += math.log(scales[i])
    _gather(weighed[n], columns, factors)
    for c in range(width):
        for layer in range(size):
            backward[c, layer] = factors[c] * last[layer]
    highest = 1.0
    for i in range(n - 1, -1, -1):
        at, total = i * size, 0.0
        _dot_rows(forward, at, stride, flat_backward, shares, size)
        for c in range(width):
            total += shares[c]
        if not total >= TRUSTED * highest:
            return False, 0.0
        if i == n - 1:
            log_partition += math.log(total / scales[i])
        for c in range(width):
            if columns[c] >= 0:
                gamma[i, columns[c]] = shares[c] / total
        if i == 0:
            break
        _move_back(backward, columns, moves, targets, spare)
        _gather(weighed[i], columns, factors)
        normal = 1.0 / (total * scales[i - 1])
        _scale_rows(flat_before, 0, size, flat_backward, 0, size, itself, factors, normal, size)
        _scale_rows(share, at, stride, flat_before, 0, size, itself, ones, 1.0, size)
        current[:height] = 0.0
        _backward(before, packed, current, size)
        highest = _scale_rows(flat_backward, 0, size, flat, 0, size, row_of, has_row, 1.0, size)
    return True, log_partition


@kernel
def add_pairs(n, size, packed, workspace, result):
    """Add the expected uses of neighbours, before they are weighted, to ``result`` (K, K)."""
    rows, columns, blocks, _ = packed
    forward, share, stride = workspace.forward, workspace.share, _stride(n, size)
    column_of, _ = _places(rows, columns, len(result))
    for start in range(0, n - 1, POSITIONS):
        length = min(POSITIONS, n - 1 - start) * size
        begin, after = start * size, (start + 1) * size
        for g in range(len(blocks)):
            for r in range(blocks[g, 0], blocks[g, 1], 2):
                if rows[r] < 0:
                    break
                other = r + 1 if rows[r + 1] >= 0 else r
                above = forward[column_of[r] * stride + begin :]
                below = forward[column_of[other] * stride + begin :]
                for c in range(blocks[g, 2], blocks[g, 3], GROUP):
                    place = c * stride + after
                    columns_of_four = (
                        share[place:],
                        share[place + stride :],
                        share[place + 2 * stride :],
                        share[place + 3 * stride :],
                    )
                    found = _dots((above, below, *columns_of_four), (0.0,), 0, length)
                    for k in range(GROUP):
                        tag = columns[c + k]
                        if tag >= 0:
                            result[rows[r], tag] += found[1 + k]
                            if other > r:
                                result[rows[other], tag] += found[1 + GROUP + k]


@kernel
def _sum_parts(start, stop, bounds, items, chain, counters, results):
    """Sum the items bounds[part] .. bounds[part + 1] − 1 of each part."""
    lengths, kinds, sizes = items.lengths, items.kinds, counters.sizes
    tags, most, wide = len(chain.first), 0, LANES
    for b in range(bounds[start], bounds[stop]):
        size = whole_vectors(sizes[kinds[b]])
        most, wide = max(most, _stride(lengths[b], size)), max(wide, size)
    # Each block may need a group of padding.
    blocks = len(chain.extents) + 1
    rows = tags + GROUP * blocks
    packing = Packed(
        np.empty(rows, dtype=np.int64),
        np.empty(rows, dtype=np.int64),
        np.zeros((blocks, 5), dtype=np.int64),
        np.empty(rows * rows),
    )
    is_open = np.empty(tags, dtype=np.bool_)
    forward, share = np.empty(rows * most), np.empty(rows * most)
    before, current, backward = np.empty(rows * wide), np.empty(rows * wide), np.empty(rows * wide)
    for part in range(start, stop):
        for b in range(bounds[part], bounds[part + 1]):
            n, kind = lengths[b], kinds[b]
            item = items.emissions[items.offsets[b] : items.offsets[b] + n]
            own = results.tags[items.begins[b] : items.begins[b] + n]
            is_open[:] = False
            for i in range(n):
                for t in range(tags):
                    # Also if it is NaN.
                    is_open[t] |= not item[i, t] == -np.inf
            packed = _pack(is_open, chain, packing)
            size = whole_vectors(sizes[kind])
            workspace = Workspace(
                before[: rows * size].reshape((rows, size)),
                current[: rows * size].reshape((rows, size)),
                backward[: rows * size].reshape((rows, size)),
                forward,
                share,
            )
            last = counters.weights[kind, :size]
            results.precise[b], results.log_partition[b] = _sweep(
                item, chain, counters.moves[kind], counters.targets, last, packed, workspace, own
            )
            if results.precise[b]:
                add_pairs(n, size, packed, workspace, results.pairs[part])
            else:
                own[:] = 0.0


def sum_with_counters(
    emissions: np.ndarray,
    transitions: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    kinds: np.ndarray,
    counters: Counters,
) -> CountedSums:
    """Return the log-partition of each item, with each sequence weighted by its last layer.

    Args:
        emissions: ``(T, K)`` float64.
        transitions: ``(K + 2, K)`` float64, [previous tag, tag], then the scores of the first and
            of the last tag. −inf forbids.
        offsets, lengths: ``(J,)`` int64, the first row of each item, and its size, at least 1.
            Several items may have the same rows.
        kinds: ``(J,)`` int64, the kind of counters of each item.
        counters: the layers of each kind.
    """
    tags, items = emissions.shape[1], len(lengths)
    between, bounds = transitions[:tags], np.ascontiguousarray(transitions[tags:])
    blocks = blocks_of((between != -np.inf).tobytes(), tags)
    taken = between[blocks.pairs[0], blocks.pairs[1]]
    shift = float(taken.max()) if taken.size else 0.0
    log_partition, precise = np.zeros(items), np.zeros(items, dtype=np.bool_)
    found, uses = np.zeros((int(lengths.sum()), tags)), np.zeros(transitions.shape)
    if not items or not np.isfinite(shift):
        return CountedSums(log_partition, precise, found, uses)
    weights, begins = np.exp(between - shift), np.cumsum(lengths) - lengths
    costs = lengths * counters.sizes[kinds] * (0.13 * len(blocks.entries) + 1.0 * tags)
    parts = ranges(costs)
    padding = (0, 0), (0, -counters.targets.shape[1] % LANES)
    pairs = np.zeros((len(parts), tags, tags))
    arguments = (
        np.array([0, *(stop for _, stop in parts)], dtype=np.int64),
        Items(np.ascontiguousarray(emissions), offsets, lengths, kinds, begins),
        Chain(
            bounds[0], bounds[1], weights, blocks.extents, blocks.order[blocks.place], blocks.order
        ),
        counters._replace(
            targets=np.pad(counters.targets, padding), weights=np.pad(counters.weights, padding)
        ),
        Results(found, log_partition, pairs, precise),
    )
    spread(_sum_parts, np.array([costs[start:stop].sum() for start, stop in parts]), arguments)
    log_partition += (lengths - 1) * shift
    uses[:tags] = pairs.sum(0) * weights
    uses[tags] = found[begins].sum(0)
    uses[tags + 1] = found[begins + lengths - 1].sum(0)
    return CountedSums(log_partition, precise, found, uses)
