"""Kernels of sums over the classes of spans. labelled_spans describes scores and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.exponential import exponential, exponential_of
from spacy_latent.kernels.simd.logarithms import logarithm_of
from spacy_latent.kernels.simd.vector import LINE, constant, larger, line_of, vector_from

# Cache lines of neighbouring spans in a block. Each class is a run of memory that is long enough
# for prefetching.
TOGETHER = 8


def _blocks_of_classes(lines: int, body: Callable[..., None]) -> Any:
    """Return a compiled function of (matrix, begin, end, *rows) over blocks of columns.

    Columns are begin ≤ q < end. A block has ``lines`` cache lines, and the range at least one
    block. The last block may overlap the one before.

    Args:
        body: a function (builder, vectors, each, load, store) that generates the code of a block.
            ``vectors`` are the vector types of the matrix and the rows. each(use) calls use(values,
            c) for each row c of the matrix, in a loop, with the block's vectors. load(r) returns
            the vectors of a row, store(r, values) writes them, and store(r, values, c) writes them
            to row c of a matrix.
    """

    def build(typingctx, matrix, begin, end, rows):
        signature = types.none(matrix, types.int64, types.int64, rows)

        def generate(context, builder, signature, arguments):
            kinds = [signature.args[0], *signature.args[3].types]
            values = cgutils.unpack_tuple(builder, arguments[3], len(kinds) - 1)
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(kinds, [arguments[0], *values])
            ]
            classes, width = cgutils.unpack_tuple(builder, arrays[0].shape, 2)
            lanes, number = line_of(kinds[0]).count, width.type
            vectors = [ir.VectorType(array.data.type.pointee, lanes) for array in arrays]
            begin, end = arguments[1:3]
            block = number(lines * lanes)
            last = builder.sub(end, block)
            loop = cgutils.for_range_slice(builder, begin, end, block, number)
            with loop as (start, _):
                first = builder.select(builder.icmp_signed("<", start, last), start, last)

                def places(r: int, c: Any = None) -> list[Any]:
                    at = first if c is None else builder.add(builder.mul(c, width), first)
                    starts = [builder.add(at, number(lanes * k)) for k in range(lines)]
                    return [vector_from(builder, arrays[r].data, k, vectors[r]) for k in starts]

                def load(r: int, c: Any = None) -> list[Any]:
                    return [builder.load(place, align=4) for place in places(r, c)]

                def store(r: int, values: Sequence[Any], c: Any = None) -> None:
                    for value, place in zip(values, places(r, c)):
                        builder.store(value, place, align=4)

                def each(use: Callable[[list[Any], Any], None]) -> None:
                    loop = cgutils.for_range_slice(builder, number(0), classes, number(1), number)
                    with loop as (c, _):
                        use(load(0, c), c)

                body(builder, vectors, each, load, store)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(build)


def _sum_block(builder: Any, vectors: Any, each: Any, load: Any, store: Any) -> None:
    """Sum the classes of a block, whose rows are tops, scales and folded."""
    vector, wide = vectors[0], vectors[3]
    low, high, nothing = (constant(value, vector) for value in (-math.inf, math.inf, 0.0))
    count = len(load(1))
    with builder.goto_entry_block():
        tops, totals = ([cgutils.alloca_once(builder, vector) for _ in range(count)] for _ in "ab")
    for top, total in zip(tops, totals):
        builder.store(low, top)
        builder.store(nothing, total)

    def rise(values: list[Any], c: Any) -> None:
        for value, top in zip(values, tops):
            # Unordered: also true for NaN.
            wrong = builder.fcmp_unordered(">=", value, high)
            value = larger(builder, value, builder.load(top))
            builder.store(builder.select(wrong, high, value), top)

    each(rise)
    shifts = [builder.load(top) for top in tops]
    # The shift is 0 if all scores are −inf, since −inf minus −inf is NaN.
    shifts = [
        builder.select(builder.fcmp_ordered("==", shift, low), nothing, shift) for shift in shifts
    ]

    def add(values: list[Any], c: Any) -> None:
        for value, shift, total in zip(values, shifts, totals):
            share = exponential_of(builder, builder.fsub(value, shift))
            builder.store(builder.fadd(builder.load(total), share), total)

    each(add)
    scales, folded = [], []
    for shift, found in zip(shifts, totals):
        total = builder.load(found)
        some = builder.fcmp_ordered(">", total, nothing)
        scale = builder.fdiv(constant(1.0, vector), total)
        scales.append(builder.select(some, scale, nothing))
        parts = [shift, logarithm_of(builder, total)]
        if vector != wide:
            parts = [builder.fpext(part, wide) for part in parts]
        folded.append(builder.fadd(*parts))
    for row, made in enumerate((shifts, scales, folded), 1):
        store(row, made)


def _share_block(builder: Any, vectors: Any, each: Any, load: Any, store: Any) -> None:
    """Write the block of a matrix from its rows, tops and factors (see :func:`_share_classes`)."""
    shifts, factors = load(1), load(2)

    def share(values: list[Any], c: Any) -> None:
        shares = [
            exponential_of(builder, builder.fsub(value, shift))
            for value, shift in zip(values, shifts)
        ]
        store(3, [builder.fmul(*pair) for pair in zip(shares, factors)], c)

    each(share)


_sum_blocks, _sum_lines = (_blocks_of_classes(lines, _sum_block) for lines in (TOGETHER, 1))
_share_blocks, _share_lines = (_blocks_of_classes(lines, _share_block) for lines in (TOGETHER, 1))


@kernel
def _sum_classes(scores, begin, end, tops, scales, folded):
    """Write folded[q] = log Σ_c exp(scores[c, q]) for begin ≤ q < end.

    folded[q] is NaN if a score is NaN or +inf. The softmax is exp(scores[c, q] − tops[q]) ·
    scales[q], or 0 if all scores are −inf. All arrays are contiguous and of one type, except
    ``folded``, which is float64.
    """
    line = LINE // scores.itemsize
    if end - begin >= TOGETHER * line:
        _sum_blocks(scores, begin, end, (tops, scales, folded))
        return
    if end - begin >= line:
        _sum_lines(scores, begin, end, (tops, scales, folded))
        return
    for q in range(begin, end):
        top, total = -np.inf, 0.0
        for c in range(len(scores)):
            value = np.float64(scores[c, q])
            if not value < np.inf:
                top = np.inf
            elif value > top:
                top = value
        if top == -np.inf:
            top = 0.0
        for c in range(len(scores)):
            total += exponential(scores[c, q] - top) if top < np.inf else 0.0
        tops[q] = top
        scales[q] = 1.0 / total if total > 0.0 else 0.0
        folded[q] = top + (math.log(total) if total > 0.0 else -np.inf)


@kernel
def _share_classes(scores, begin, end, tops, factors, result):
    """Write result[c, q] = exp(scores[c, q] − tops[q]) · factors[q] for begin ≤ q < end.

    NaN counts as −inf.
    """
    line = LINE // scores.itemsize
    if end - begin >= TOGETHER * line:
        _share_blocks(scores, begin, end, (tops, factors, result))
        return
    if end - begin >= line:
        _share_lines(scores, begin, end, (tops, factors, result))
        return
    for q in range(begin, end):
        for c in range(len(scores)):
            below = np.float64(scores[c, q]) - tops[q]
            result[c, q] = exponential(below) * factors[q] if below <= 0.0 else 0.0


@kernel
def fold_rows(start, stop, spans, tops, scales, folded, chart):
    """Write the rows start .. stop−1 of the chart of sums over classes.

    Args:
        spans: starts, scores ``(C, P·B)`` and lengths, see labelled_spans.
        tops, scales, folded: written by :func:`_sum_classes`.
    """
    starts, scores, lengths = spans
    batch = len(lengths)
    _sum_classes(scores, starts[start] * batch, starts[stop] * batch, tops, scales, folded)
    for i in range(start, stop):
        own = folded[starts[i] * batch : starts[i + 1] * batch].reshape((-1, batch))
        for b in range(batch):
            chart[b, i] = 0.0
            row = chart[b, i, i:]
            for k in range(min(len(own), lengths[b] - i)):
                row[k] = own[k, b]


@kernel
def share_rows(start, stop, spans, tops, scales, change, result):
    """Write the gradient of the scores of rows start .. stop−1, ``(C, P·B)``, 0 for padding.

    ``change`` is the gradient of the chart.
    """
    starts, scores, lengths = spans
    batch = len(lengths)
    begin, end = starts[start] * batch, starts[stop] * batch
    factors = np.zeros_like(tops)
    for i in range(start, stop):
        own = factors[starts[i] * batch : starts[i + 1] * batch].reshape((-1, batch))
        for b in range(batch):
            row = change[b, i, i:]
            for k in range(min(len(own), lengths[b] - i)):
                own[k, b] = row[k]
    for q in range(begin, end):
        factors[q] *= scales[q]
    _share_classes(scores, begin, end, tops, factors, result)


@kernel
def agreeing_rows(start, stop, spans, cells, classes, chart):
    """Write the rows start .. stop−1 of the chart of trees that agree with observed spans.

    Such trees contain the observed spans, each with one of its observed classes. All other spans
    have the first class.

    Args:
        cells: ``(3, O)`` int64, item, first and last word of each observed span. Spans of an item
            must not cross.
        classes: ``(C, O)`` bool, the observed classes of each span.
    """
    starts, scores, lengths = spans
    batch = len(lengths)
    for i in range(start, stop):
        own = scores[0, starts[i] * batch : starts[i + 1] * batch].reshape((-1, batch))
        for b in range(batch):
            chart[b, i] = 0.0
            row = chart[b, i, i:]
            for k in range(min(len(own), lengths[b] - i)):
                row[k] = own[k, b]
        for o in range(cells.shape[1]):
            row, first, last = chart[cells[0, o], i], cells[1, o], cells[2, o]
            # Forbid spans that cross the observed span: from before it into it, or from inside it
            # to beyond it.
            if i < first:
                row[first:last] = -np.inf
            elif first < i <= last:
                row[last + 1 :] = -np.inf
        for o in range(cells.shape[1]):
            if cells[1, o] != i:
                continue
            q = (starts[i] + cells[2, o] - i) * batch + cells[0, o]
            top, total = -np.inf, 0.0
            for c in range(len(scores)):
                # NaN is kept, so that it shows in the chart.
                if classes[c, o] and not scores[c, q] <= top:
                    top = np.float64(scores[c, q])
            if top > -np.inf:
                for c in range(len(scores)):
                    total += math.exp(scores[c, q] - top) if classes[c, o] else 0.0
                top += math.log(total)
            chart[cells[0, o], i, cells[2, o]] = top


@kernel
def subtract_agreeing_rows(start, stop, spans, cells, classes, chart, marginals, result):
    """Subtract the gradient of the sum over agreeing trees from rows start .. stop−1 of ``result``.

    Args:
        marginals: marginals of the chart of :func:`agreeing_rows`; overwritten with 0 for observed
            spans.
        result: a gradient ``(C, P·B)``.
    """
    starts, scores, lengths = spans
    batch = len(lengths)
    for i in range(start, stop):
        for o in range(cells.shape[1]):
            if cells[1, o] != i:
                continue
            b, last = cells[0, o], cells[2, o]
            q = (starts[i] + last - i) * batch + b
            # Every agreeing tree contains the span, with one of its observed classes.
            marginals[b, i, last] = 0.0
            for c in range(len(scores)):
                if classes[c, o]:
                    result[c, q] -= math.exp(scores[c, q] - chart[b, i, last])
        own = result[0, starts[i] * batch : starts[i + 1] * batch].reshape((-1, batch))
        for b in range(batch):
            row = marginals[b, i, i:]
            for k in range(min(len(own), lengths[b] - i)):
                own[k, b] -= row[k]
