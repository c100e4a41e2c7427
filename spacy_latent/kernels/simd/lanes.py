"""Charts of LANES sentences in SIMD lanes: each cell is a vector with one number per sentence.

Charts are ``(rows, columns, LANES)``, contiguous float64. Kernels on them have the same loops as
kernels on one sentence. They need no reductions within a vector, no remainder loops, and no
branches on the values of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.core.status import FEASIBLE
from spacy_latent.kernels.simd.exponential import exponential_of
from spacy_latent.kernels.simd.vector import (
    FLAGS,
    INTEGERS,
    LANES,
    VECTOR,
    broadcast,
    constant,
    in_blocks,
    larger,
    plus,
    read_arguments,
    times_plus,
    transposed,
    vector_from,
    vector_of,
)

if TYPE_CHECKING:
    import torch

# LANES sentences of one length in lanes take as long as this many sentences one by one.
COST = 3.0
# Charts that start at a cache line are read in half the time.
ALIGNMENT = 8
# Charts of LANES sentences longer than this do not fit in the caches.
LONGEST = 200
# Header of the values saved by marginals: a flag, the offset of the charts, and the sum over
# structures of each lane.
HEADER, KEPT = 2 + LANES, 2.0
# Numbers that may be saved beside the charts.
SPARE = HEADER + ALIGNMENT
# The maximum over an empty set, finite since −inf minus −inf is NaN.
LOWEST = -1e300
# Products of weights whose logarithm is above LOG_SMALLEST fit in float64. Numbers that may have
# underflowed are below FLOOR.
LOG_SMALLEST, FLOOR = -640.0, 1e-290


class _Lanes(types.Type):
    """The numba type of a vector in a register."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


LANES_TYPE = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


def _cell(context: Any, builder: Any, kind: Any, chart: Any, i: Any, j: Any) -> Any:
    array = context.make_array(kind)(context, builder, chart)
    cell = builder.add(builder.mul(i, builder.extract_value(array.shape, 1)), j)
    return vector_at(builder, array.data, cell)


def vector_at(builder: Any, data: Any, cell: Any) -> Any:
    """Return the address of a cell, counted from the start of a chart."""
    return vector_from(builder, data, builder.mul(cell, cell.type(LANES)))


@intrinsic
def load(typingctx, chart, i, j):
    """Return the cell (i, j)."""

    def generate(context, builder, signature, arguments):
        return builder.load(_cell(context, builder, signature.args[0], *arguments), align=8)

    return LANES_TYPE(chart, types.int64, types.int64), generate


@intrinsic
def store(typingctx, chart, i, j, value):
    """Write the cell (i, j)."""

    def generate(context, builder, signature, arguments):
        place = _cell(context, builder, signature.args[0], *arguments[:3])
        builder.store(arguments[3], place, align=8)
        return context.get_dummy_value()

    return types.none(chart, types.int64, types.int64, LANES_TYPE), generate


@intrinsic
def every(typingctx, number):
    """Return a vector with the same number in each lane."""

    def generate(context, builder, signature, arguments):
        return broadcast(builder, arguments[0])

    return LANES_TYPE(types.float64), generate


def _operation(count: int, build: Callable[..., Any]) -> Any:
    """Return a compiled function of ``count`` vectors."""

    def generate(context, builder, signature, arguments):
        return build(builder, *arguments)

    if count == 1:
        return intrinsic(lambda typingctx, a: (LANES_TYPE(LANES_TYPE), generate))
    if count == 2:
        return intrinsic(lambda typingctx, a, b: (LANES_TYPE(LANES_TYPE, LANES_TYPE), generate))
    return intrinsic(
        lambda typingctx, a, b, c: (LANES_TYPE(LANES_TYPE, LANES_TYPE, LANES_TYPE), generate)
    )


def _where_positive(builder: Any, a: Any, b: Any) -> Any:
    zero = constant(0.0)
    return builder.select(builder.fcmp_ordered(">", a, zero), b, zero)


def _smaller_above(builder: Any, a: Any, b: Any) -> Any:
    finite = builder.fcmp_ordered(">", b, constant(-np.inf))
    return builder.select(builder.and_(builder.fcmp_ordered("<", b, a), finite), b, a)


add = _operation(2, plus)
subtract = _operation(2, lambda builder, a, b: builder.fsub(a, b, flags=FLAGS))
multiply = _operation(2, lambda builder, a, b: builder.fmul(a, b, flags=FLAGS))
divide = _operation(2, lambda builder, a, b: builder.fdiv(a, b, flags=FLAGS))
# total + a · b
add_product = _operation(3, lambda builder, total, a, b: times_plus(builder, a, b, total))
maximum = _operation(2, larger)
# The smaller number, or the first if the second is −inf.
smaller_above = _operation(2, _smaller_above)
# The second number if the first is above 0, else 0.
where_positive = _operation(2, _where_positive)
# See kernels.simd.exponential.exponential.
exponential_lanes = _operation(1, exponential_of)


@kernel
def lanes_shape(n):
    """Return the rows and columns of a chart for n + 1 nodes and up to one more.

    Each row has an odd number of cache lines, so that neighbouring rows do not evict each other.
    """
    return n + 2, (n + 2) | 1


@kernel
def charts_size(count, n):
    """Return the float64 numbers in ``count`` charts of :func:`lanes_shape`."""
    rows, columns = lanes_shape(n)
    return count * rows * columns * LANES


@kernel
def aligned(memory):
    """Return the first index at the start of a cache line."""
    return -(np.int64(memory.ctypes.data) // 8) % ALIGNMENT


@intrinsic
def _interleave_blocks(typingctx, source, starts, limits, size, row):
    """Compute :func:`interleave_row` for sizes of at least LANES."""
    signature = types.none(source, starts, limits, types.int64, row)

    def generate(context, builder, signature, arguments):
        source, starts, limits, size, row = read_arguments(context, builder, signature, arguments)
        places = ir.Constant(INTEGERS, list(range(LANES)))
        firsts, limits = (
            [builder.load(builder.gep(array.data, [size.type(lane)])) for lane in range(LANES)]
            for array in (starts, limits)
        )
        with in_blocks(builder, size.type(0), size) as j:
            found = []
            for first, limit in zip(firsts, limits):
                place = vector_from(builder, source.data, builder.add(first, j))
                values = builder.load(place, align=8)
                left = broadcast(builder, builder.sub(limit, j))
                inside = builder.icmp_signed("<", places, left)
                found.append(builder.select(inside, values, constant(-np.inf)))
            for k, value in enumerate(transposed(builder, found)):
                place = vector_at(builder, row.data, builder.add(j, size.type(k)))
                builder.store(value, place, align=8)
        return context.get_dummy_value()

    return signature, generate


@kernel
def interleave_row(source, starts, limits, size, row):
    """Set row[j, lane] to source[starts[lane] + j] if j < limits[lane], else −inf, for j < size.

    Args:
        source: contiguous float64, with ``size`` numbers from each start on.
        starts, limits: ``(LANES,)`` int64.
        row: ``(columns, LANES)`` float64, contiguous.
    """
    if size >= LANES:
        _interleave_blocks(source, starts, limits, size, row)
        return
    for lane in range(LANES):
        for j in range(size):
            row[j, lane] = source[starts[lane] + j] if j < limits[lane] else -np.inf


@kernel
def interleave(items, size, chart):
    """Write ``items`` (LANES, rows, columns) float64 to ``size`` rows and columns of a chart."""
    starts, limits = np.empty(LANES, np.int64), np.full(LANES, size)
    source = items.reshape(-1)
    for i in range(size):
        for lane in range(LANES):
            starts[lane] = (lane * items.shape[1] + i) * items.shape[2]
        interleave_row(source, starts, limits, size, chart[i])


@intrinsic
def _separate_blocks(typingctx, row, begin, size, result, starts):
    """Compute :func:`separate_row` for at least LANES cells."""
    signature = types.none(row, types.int64, types.int64, result, starts)

    def generate(context, builder, signature, arguments):
        row, begin, size, result, starts = read_arguments(context, builder, signature, arguments)
        number, vector = size.type, vector_of(signature.args[3])
        firsts = [builder.load(builder.gep(starts.data, [number(k)])) for k in range(LANES)]
        with in_blocks(builder, begin, size) as j:
            values = [
                builder.load(vector_at(builder, row.data, builder.add(j, number(k))), align=8)
                for k in range(LANES)
            ]
            for first, value in zip(firsts, transposed(builder, values)):
                with builder.if_then(builder.icmp_signed(">=", first, number(0))):
                    place = vector_from(builder, result.data, builder.add(first, j), vector)
                    builder.store(builder.fptrunc(value, vector), place, align=4)
        return context.get_dummy_value()

    return signature, generate


@kernel
def separate_row(row, begin, size, result, starts):
    """Set result[starts[lane] + j] to row[j, lane] for begin ≤ j < size.

    Lanes with a negative start are left out.

    Args:
        row: ``(columns, LANES)`` float64, contiguous.
        result: contiguous, float32 or float64.
    """
    if size - begin >= LANES:
        _separate_blocks(row, begin, size, result, starts)
        return
    for lane in range(LANES):
        if starts[lane] >= 0:
            for j in range(begin, size):
                result[starts[lane] + j] = row[j, lane]


@kernel
def log_of_products(tops, totals, n, lane):
    """Return Σ_{1 ≤ m ≤ n} tops[m] + log totals[m] of a lane, for totals up to n + 1."""
    result, product = 0.0, 1.0
    for m in range(1, n + 1):
        result += tops[m, lane]
        product *= totals[m, lane]
        if product > 1e200:
            result += np.log(product)
            product = 1.0
    return result + np.log(product)


@kernel
def group_length(items, lengths):
    """Return the length of the longest item of a group, or 0 if solving one by one is faster.

    The group has LANES item numbers, −1 for a free lane.
    """
    longest, work = 0, 0.0
    for b in items:
        if b >= 0:
            n = lengths[b]
            longest = max(longest, n)
            work += n * n * (n + 10.0)
    pays = work >= COST * longest * longest * (longest + 10.0)
    return longest if pays and len(items) == LANES else 0


@kernel
def begin_group(items, lengths, operation, sizes, partitions, log_partition, result, status):
    """Write the lengths of a group's items, and the results of items without tokens.

    The result of :func:`group_length` is returned.
    """
    for lane in range(LANES):
        b = items[lane]
        sizes[lane], partitions[lane] = 0, 0.0
        if b >= 0:
            sizes[lane] = lengths[b]
        if b >= 0 and operation != LOG_PARTITION:
            result[b] = 0.0
        if b >= 0 and sizes[lane] == 0:
            log_partition[b], status[b] = 0.0, FEASIBLE
    return group_length(items, lengths)


@kernel
def open_charts(group, longest, count, operation, kept, spare, partitions):
    """Return the charts of a group of sentences, ``(count, *lanes_shape(longest), LANES)``.

    Args:
        kept: values saved for each item. If its width is 0, the charts are in ``spare`` instead.
        partitions: the sums over structures, written if the charts hold results of an earlier call.

    Returns:
        The charts, the header before them for :func:`keep`, and whether they hold such results.
    """
    record = spare
    if kept.shape[1] > 0:
        record = kept[LANES * group : LANES * (group + 1)].reshape(-1)
    known = operation == HESSIAN_PRODUCT and kept.shape[1] > 0 and record[0] == KEPT
    begin = int(record[1]) if known else HEADER + aligned(record[HEADER:])
    record[1] = begin
    if known:
        for lane in range(LANES):
            partitions[lane] = record[2 + lane]
    rows, columns = lanes_shape(longest)
    area = count * rows * columns * LANES
    charts = record[begin : begin + area].reshape((count, rows, columns, LANES))
    return charts, record[:HEADER], known


@kernel
def keep_trusted(bounds, sizes, partitions):
    """Set to 0 each sum over structures that may have lost terms by underflow.

    Args:
        bounds: upper bounds of the sums: the same recurrence with FLOOR added wherever an underflow
            is possible. A bound of 0 means that no underflow is possible.

    Returns:
        Whether no sum has lost terms.
    """
    all_trusted = True
    for lane in range(LANES):
        total, bound = partitions[lane], bounds[lane]
        trusted = 0.0 < total < np.inf
        if not bound <= 0.0:
            # A sum below FLOOR may itself have lost precision.
            trusted &= total > FLOOR and bound - total <= 1e-15 * total
        partitions[lane] = total if trusted else 0.0
        all_trusted &= trusted or sizes[lane] == 0
    return all_trusted


@kernel
def drop_lost(lost, row, partitions):
    """Set the sum over structures to 0 in lanes whose results have overflowed.

    A sum over spans may be so small that its relative tangent overflows.

    Args:
        lost: a vector, the sum of all results times zero, which is NaN after an overflow.
        row: workspace.
    """
    store(row, 0, 0, lost)
    for lane in range(LANES):
        if not row[0, 0, lane] == 0.0:
            partitions[lane] = 0.0


@kernel
def keep(header, partitions):
    """Mark the charts as filled, so that Hessian products read them."""
    header[0] = KEPT
    for lane in range(LANES):
        header[2 + lane] = partitions[lane]


def group_size(shape: torch.Size) -> int:
    """Return the size of a group (see ``Family.group`` of kernels.autograd.families)."""
    return LANES if shape[0] >= COST and shape[1] <= LONGEST else 1


def saved_size_in_lanes(n, charts):
    """Return the float64 numbers per item that a group in lanes may save, in whole vectors.

    The items have up to n words, and ``charts`` charts of :func:`lanes_shape`. n may be a symbolic
    size of torch.
    """
    columns = (n + 2) // 2 * 2 + 1
    size = SPARE + charts * (n + 2) * columns * LANES
    return (size + LANES**2 - 1) // LANES**2 * LANES
