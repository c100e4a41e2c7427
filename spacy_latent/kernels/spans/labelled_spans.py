"""Sums over the classes of spans, for charts of trees whose spans have one class each.

Scores are ``(C, P, B)``, [class, cell, item]. Classes come first, so that a vector holds
neighbouring spans and needs no reduction. Cells are first all spans that begin with the first word,
the shortest first, then those that begin with the next word, and so on. ``starts`` has n + 1
numbers: the first cell of each row, and P. A row may end before the longest spans; these have no
class and score 0.

Charts are ``(B, n, n)`` float64, [item, first word, last word], for the kernels of trees without
classes. Sums are in the precision of the scores, relative to their largest term, so scores may be
large. Nothing of the size of the scores is saved for the backward pass, since computing
exponentials twice is faster than writing and reading them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.kernels.autograd.derivatives import last_derivative
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.simd.exponential import exponential, exponential_of
from spacy_latent.kernels.simd.logarithms import logarithm_of
from spacy_latent.kernels.simd.vector import LINE, larger, line_of

# Estimated nanoseconds of a span, and of one of its classes, for sharing rows among threads.
SPAN_COST, CLASS_COST = 1.5, 0.2
# Cache lines of neighbouring spans in a block. Each class is a run of memory that is long enough
# for prefetching.
TOGETHER = 8
# The family of trees without classes.
FAMILY = "spacy_latent.kernels.spans.constituency:FAMILY"


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

    def build(typingctx: Any, matrix: Any, begin: Any, end: Any, rows: Any) -> Any:
        signature = types.none(matrix, types.int64, types.int64, rows)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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
                    pointers = [
                        builder.gep(arrays[r].data, [builder.add(at, number(lanes * k))])
                        for k in range(lines)
                    ]
                    return [builder.bitcast(own, vectors[r].as_pointer()) for own in pointers]

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


def _constant(vector: Any, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _sum_block(builder: Any, vectors: Any, each: Any, load: Any, store: Any) -> None:
    """Sum the classes of a block, whose rows are tops, scales and folded."""
    vector, wide = vectors[0], vectors[3]
    low, high, nothing = (_constant(vector, value) for value in (-math.inf, math.inf, 0.0))
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
        scale = builder.fdiv(_constant(vector, 1.0), total)
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
def fold_rows(start, stop, starts, scores, lengths, tops, scales, folded, chart):
    """Write the rows start .. stop−1 of the chart of sums over classes.

    Args:
        scores: ``(C, P·B)``.
        tops, scales, folded: written by :func:`_sum_classes`.
    """
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
def share_rows(start, stop, starts, scores, lengths, tops, scales, change, result):
    """Write the gradient of the scores of rows start .. stop−1, ``(C, P·B)``, 0 for padding.

    Args:
        change: the gradient of the chart.
    """
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
def agreeing_rows(start, stop, starts, scores, lengths, cells, classes, chart):
    """Write the rows start .. stop−1 of the chart of trees that agree with observed spans.

    Such trees contain the observed spans, each with one of its observed classes. All other spans
    have the first class.

    Args:
        cells: ``(3, O)`` int64, item, first and last word of each observed span. Spans of an item
            must not cross.
        classes: ``(C, O)`` bool, the observed classes of each span.
    """
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
def subtract_agreeing_rows(
    start, stop, starts, scores, lengths, cells, classes, chart, marginals, result
):
    """Subtract the gradient of the sum over agreeing trees from rows start .. stop−1 of ``result``.

    Args:
        marginals: marginals of the chart of :func:`agreeing_rows`; overwritten with 0 for observed
            spans.
        result: a gradient ``(C, P·B)``.
    """
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


class LabelledSpans:
    """Scores of labelled spans on the CPU, with the values that the gradient of their sums needs.

    Attributes:
        scores: ``(C, P, B)``, float32 or float64.
        lengths: ``(B,)`` int64, the number of words of each item.
        starts: see the module.
        tops, scales: ``(P · B,)``, see :func:`_sum_classes`.

    Raises:
        InvalidScores: shapes do not match. Kernels do not check bounds.
    """

    def __init__(
        self,
        scores: np.ndarray,
        lengths: np.ndarray,
        starts: Sequence[int],
        tops: np.ndarray | None = None,
        scales: np.ndarray | None = None,
    ) -> None:
        self.shape = scores.shape
        classes, cells, batch = scores.shape
        n = len(starts) - 1
        if list(starts[-1:]) != [cells] or lengths.shape != (batch,):
            raise InvalidScores(
                f"Labelled spans: scores have shape {scores.shape}, lengths {lengths.shape}, and "
                f"starts end with {list(starts[-1:])}; expected (C, P, B), (B,) and P."
            )
        if ((lengths < 0) | (lengths > n)).any():
            raise InvalidScores(
                f"Labelled spans: lengths lie between {lengths.min()} and {lengths.max()}, but the "
                f"spans are of texts of 0 to {n} words."
            )
        self.scores = np.ascontiguousarray(scores).reshape(classes, cells * batch)
        self.lengths = lengths
        self.starts = np.array(starts, dtype=np.int64)
        self.costs = np.diff(self.starts) * (batch * (SPAN_COST + CLASS_COST * classes))
        size = cells * batch
        self.tops = np.empty(size, self.scores.dtype) if tops is None else tops
        self.scales = np.empty(size, self.scores.dtype) if scales is None else scales

    def _spread(self, kernel: Callable[..., None], *arguments: Any) -> None:
        spread(kernel, self.costs, (self.starts, self.scores, self.lengths, *arguments))

    def fold(self, chart: np.ndarray) -> None:
        """Write the chart of sums over classes, ``(B, n, n)``; 0 for cells that are not spans."""
        folded = np.empty(len(self.tops))
        self._spread(fold_rows, self.tops, self.scales, folded, chart)

    def gradient(self, change: np.ndarray) -> np.ndarray:
        """Return the gradient of the scores, ``(C, P, B)``, after :meth:`fold`.

        Args:
            change: the gradient of the chart that :meth:`fold` wrote.
        """
        result = np.empty_like(self.scores)
        self._spread(share_rows, self.tops, self.scales, change, result)
        return result.reshape(self.shape)

    def fold_agreeing(self, cells: np.ndarray, classes: np.ndarray, chart: np.ndarray) -> None:
        """Write the chart of trees that agree with observed spans (see :func:`agreeing_rows`)."""
        self._spread(agreeing_rows, cells, classes, chart)

    def subtract_agreeing(
        self,
        cells: np.ndarray,
        classes: np.ndarray,
        chart: np.ndarray,
        marginals: np.ndarray,
        gradient: np.ndarray,
    ) -> None:
        """Subtract the gradient of agreeing trees (see :func:`subtract_agreeing_rows`)."""
        flat = gradient.reshape(self.scores.shape)
        self._spread(subtract_agreeing_rows, cells, classes, chart, marginals, flat)


@torch_operator("labelled_log_partition")
def _log_partition(
    scores: Tensor, lengths: Tensor, starts: Sequence[int], keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-partitions, and for the gradient the marginals of spans, tops and scales."""
    from spacy_latent.kernels.autograd import operators
    from spacy_latent.kernels.core import gpu_transfers

    array, sizes = operators.read(scores, lengths)
    spans = LabelledSpans(array, sizes, starts)
    n = len(starts) - 1
    values = np.empty((array.shape[2], n, n))
    spans.fold(values)
    chart, own = torch.from_numpy(values), torch.from_numpy(sizes)
    if keep:
        total, mean = operators.log_partition_and_marginals(chart, own, FAMILY, [])
    else:
        total = operators.log_partition(chart, own, FAMILY, [])
        mean = torch.empty(0, n, n, device="cpu")
    made = [total.to(scores.dtype), mean.double()]
    made += [torch.from_numpy(part) for part in (spans.tops, spans.scales)]
    total, mean, tops, scales = (gpu_transfers.send(part, scores.device) for part in made)
    return total, mean, tops, scales


@torch_operator("labelled_gradient")
def _gradient(
    scores: Tensor,
    lengths: Tensor,
    starts: Sequence[int],
    tops: Tensor,
    scales: Tensor,
    change: Tensor,
) -> Tensor:
    from spacy_latent.kernels.autograd import operators
    from spacy_latent.kernels.core import gpu_transfers

    parts = [gpu_transfers.fetch(part).contiguous().numpy() for part in (tops, scales)]
    spans = LabelledSpans(*operators.read(scores, lengths), starts, *parts)
    found = spans.gradient(operators.read_float64(change))
    return gpu_transfers.send(torch.from_numpy(found), scores.device)


def log_partition(scores: Tensor, lengths: Tensor, starts: Sequence[int]) -> Tensor:
    """Return log Σ exp(score) over binary trees with a class for each span, ``(B,)``.

    It is once differentiable. If it requires a gradient, the forward pass also computes the
    marginals.

    Args:
        scores: ``(C, P, B)``, float32 or float64.
        lengths: ``(B,)`` int64.
        starts: see the module.
    """
    keep = scores.requires_grad and torch.is_grad_enabled()
    total: Tensor = _log_partition(scores, lengths, list(starts), keep)[0]
    return total


@_log_partition.register_fake
def _(
    scores: Tensor, lengths: Tensor, starts: Sequence[int], keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, (_, cells, batch) = len(starts) - 1, scores.shape
    mean = scores.new_empty((batch if keep else 0, n, n), dtype=torch.float64)
    tops, scales = (scores.new_empty(cells * batch) for _ in range(2))
    return scores.new_empty(batch), mean, tops, scales


@_gradient.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:2], *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.starts = inputs[2]


@last_derivative("the log-partition over labelled spans can be differentiated once")
def _log_partition_backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if gradient is None:
        return None, None, None, None
    scores, lengths, mean, tops, scales = ctx.saved_tensors
    change = gradient[:, None, None] * mean
    return _gradient(scores, lengths, ctx.starts, tops, scales, change), None, None, None


_log_partition.register_autograd(_log_partition_backward, setup_context=_keep)
