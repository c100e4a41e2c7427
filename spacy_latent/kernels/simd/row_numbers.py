"""Number types (semirings) for recurrences over the spans of one sentence, row by row.

A number type is a NamedTuple that holds the charts, ``(count, rows, columns)`` float64, and the
weights, ``(rows, columns)`` of any size. It is the first argument of a recurrence and of the
operations below. Its type selects the operations when the recurrence is compiled, as in
kernels.simd.lane_numbers.

Fields of a number type are told apart by their dimensions: matrices are weights, arrays of three
dimensions charts, and a scalar is the floor. Totals are written to the last charts. A new number
type needs rules in ``_RULES``, here and in kernels.simd.lane_numbers. A total is one float64 here,
and one vector there, for every number type.

A *cell* [i, k] is the entry of a chart for a span. A *total* is an accumulator, a float64 that is
not yet written to a chart. For ``Tangents``, a total is the tangent alone, since the charts hold
the values already.

Charts are filled row by row. When a span is finished, its products are added at once to all longer
spans of its row that begin with it. A recurrence is described by *joins*, see :class:`Join`. The
loops over rows, inside and outside, are generated from the joins for each number type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from spacy_latent.kernels.core.compilation import ANY_ORDER
from spacy_latent.kernels.simd.vector import VECTOR, Statement, larger, loop_of


class Join(NamedTuple):
    """A product of two spans, result[i, j] ⊕= finished[i, k] ⊗ following[f, j].

    Attributes:
        result: the chart of the longer span.
        finished: the chart of the span that is split off at the left.
        following: the chart of the rest, whose first index f is k or k + 1.
    """

    result: int
    finished: int
    following: int


class Sums(NamedTuple):
    """The semiring (+, ×).

    Attributes:
        floor: added to each sum and weight that may have underflowed. It is 0 for plain sums, and
            above 0 for upper bounds.
    """

    weights: NDArray[np.float64]
    charts: NDArray[np.float64]
    floor: float


class Tangents(NamedTuple):
    """Forward derivatives of ``Sums``.

    Attributes:
        d_weights: the tangents of the weights, dw.
        charts: the sums, with floor 0; only read.
        tangents: their tangents.
    """

    weights: NDArray[np.float64]
    d_weights: NDArray[np.float64]
    charts: NDArray[np.float64]
    tangents: NDArray[np.float64]


class Maxima(NamedTuple):
    """The semiring (max, +)."""

    weights: NDArray[np.float64]
    charts: NDArray[np.float64]


# ------------------------------------------------------------------------------------ arithmetic


def _plus(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=tuple(ANY_ORDER))


def _times(builder: Any, a: Any, b: Any) -> Any:
    return builder.fmul(a, b, flags=tuple(ANY_ORDER))


class _SumRules:
    """Arithmetic of ``Sums`` on llvmlite numbers.

    A cell is a list of its value and, for tangents, its tangent.
    """

    nothing, one, neutral = 0.0, 1.0, 1.0
    collect = "add"

    @staticmethod
    def plus(builder: Any, total: Any, other: Any) -> Any:
        return _plus(builder, total, other)

    @staticmethod
    def times_weight(builder: Any, total: Any, known: Any, weight: Any, floor: Any) -> Any:
        return _plus(builder, _times(builder, total, _plus(builder, weight[0], floor)), floor)

    @staticmethod
    def marginal(builder: Any, total: Any, gradient: Any, cell: Any) -> Any:
        return _times(builder, total, cell[0])

    @staticmethod
    def pushes(count: int) -> list[Statement]:
        """Return the statements that add the products of a finished span to longer spans.

        Rows are the longer spans, then the following spans. Scalars are the finished span.
        """
        return [("add", p, ((p, count + p),)) for p in range(count)]

    @staticmethod
    def pulls(count: int) -> list[Statement]:
        """Return the statements of the adjoint of ``pushes``.

        Rows are the gradients of the longer spans, the following spans, and their gradients.
        Scalars are the finished span.
        """
        return [
            statement
            for p in range(count)
            for statement in (("dot", p, ((p, count + p),)), ("add", 2 * count + p, ((p, p),)))
        ]


class _TangentRules(_SumRules):
    """Arithmetic of ``Tangents``.

    All rows and scalars come as values and then tangents. Only tangents are written.
    """

    one = 0.0

    @staticmethod
    def times_weight(builder: Any, total: Any, known: Any, weight: Any, floor: Any) -> Any:
        change = _times(builder, known, weight[1])
        return _plus(builder, _times(builder, total, weight[0]), change)

    @staticmethod
    def marginal(builder: Any, total: Any, gradient: Any, cell: Any) -> Any:
        change = _times(builder, gradient, cell[1])
        return _plus(builder, _times(builder, total, cell[0]), change)

    @staticmethod
    def pushes(count: int) -> list[Statement]:
        return [("add", p, ((p, count + p), (count + p, 2 * count + p))) for p in range(count)]

    @staticmethod
    def pulls(count: int) -> list[Statement]:
        return [
            statement
            for p in range(count)
            for statement in (
                ("dot", p, ((count + p, 2 * count + p), (p, 3 * count + p))),
                ("add", 4 * count + p, ((p, count + p), (count + p, p))),
            )
        ]


class _MaximumRules(_SumRules):
    """Arithmetic of ``Maxima``, which have no gradients."""

    nothing, one, neutral = -np.inf, 0.0, 0.0
    collect = "max"

    @staticmethod
    def plus(builder: Any, total: Any, other: Any) -> Any:
        return larger(builder, other, total)

    @staticmethod
    def times_weight(builder: Any, total: Any, known: Any, weight: Any, floor: Any) -> Any:
        return builder.fadd(total, weight[0])

    @staticmethod
    def pushes(count: int) -> list[Statement]:
        return [("max", p, ((p, count + p),)) for p in range(count)]


_RULES: dict[type, type[_SumRules]] = {
    Sums: _SumRules,
    Tangents: _TangentRules,
    Maxima: _MaximumRules,
}


# ------------------------------------------------------------------------------------ operations


class _Number:
    """A number type during code generation."""

    def __init__(self, context: Any, builder: Any, signature: Any, value: Any) -> None:
        self.context, self.builder = context, builder
        kind = signature.args[0]
        self.rules = _RULES[kind.instance_class]
        self.weights: list[Any] = []
        self.charts: list[Any] = []
        self.floor = None
        for place, part in enumerate(kind.types):
            field = builder.extract_value(value, place)
            if isinstance(part, types.Array):
                if part.layout != "C":
                    raise TypeError("Charts and weights of a number have to be contiguous.")
                array = context.make_array(part)(context, builder, field)
                (self.weights if part.ndim == 2 else self.charts).append(array)
            else:
                self.floor = field

    def row(self, array: Any, chart: Any, i: Any) -> Any:
        builder = self.builder
        rows, columns = (builder.extract_value(array.shape, axis) for axis in (1, 2))
        at = builder.mul(builder.add(builder.mul(chart, rows), i), columns)
        return builder.gep(array.data, [at])

    def place(self, array: Any, chart: Any, i: Any, k: Any) -> Any:
        return self.builder.gep(self.row(array, chart, i), [k])

    def load(self, chart: Any, i: Any, k: Any) -> list[Any]:
        """Return the value and, for tangents, its tangent."""
        return [self.builder.load(self.place(array, chart, i, k)) for array in self.charts]

    def weight(self, h: Any, m: Any) -> list[Any]:
        builder, found = self.builder, []
        for array in self.weights:
            columns = builder.extract_value(array.shape, 1)
            place = builder.gep(array.data, [builder.add(builder.mul(h, columns), m)])
            found.append(builder.load(place))
        return found

    def loop(self, statements: Any, rows: Sequence[Any], *others: Any) -> list[Any]:
        """Generate the loop of :func:`loop_of` over rows of float64."""
        return loop_of(self.builder, statements, rows, [VECTOR] * len(rows), *others)


def _constant(name: str) -> Any:
    def build(typingctx, number):
        def generate(context, builder, signature, arguments):
            return ir.DoubleType()(getattr(_RULES[signature.args[0].instance_class], name))

        return types.float64(number), generate

    return intrinsic(build)


# (number): the empty sum, and the empty product, as totals.
nothing = _constant("nothing")
one = _constant("one")


def _of_number(generate: Any) -> Any:
    """Return the code generator of an operation, from one that gets a ``_Number`` first."""
    return lambda context, builder, signature, arguments: generate(
        _Number(context, builder, signature, arguments[0]), *arguments[1:]
    )


@intrinsic
def read(typingctx, number, chart, i, k):
    """Return the cell [i, k] of a chart, as a total."""

    @_of_number
    def generate(own, chart, i, k):
        return own.builder.load(own.place(own.charts[-1], chart, i, k))

    return types.float64(number, types.int64, types.int64, types.int64), generate


@intrinsic
def write(typingctx, number, chart, i, k, total):
    """Write the cell [i, k] of a chart, and return the total."""

    @_of_number
    def generate(own, chart, i, k, total):
        own.builder.store(total, own.place(own.charts[-1], chart, i, k))
        return total

    integers = [types.int64] * 3
    return types.float64(number, *integers, types.float64), generate


@intrinsic
def plus(typingctx, number, total, other):
    """Return the sum of two totals."""

    @_of_number
    def generate(own, total, other):
        return own.rules.plus(own.builder, total, other)

    return types.float64(number, types.float64, types.float64), generate


@intrinsic
def times_weight(typingctx, number, total, chart, i, k, h, m):
    """Return the total of the cell [i, k] of a chart times the weight [h, m].

    Tangents read the value of the cell, which must be written before.
    """

    @_of_number
    def generate(own, total, chart, i, k, h, m):
        known = own.builder.load(own.place(own.charts[0], chart, i, k))
        return own.rules.times_weight(own.builder, total, known, own.weight(h, m), own.floor)

    integers = [types.int64] * 5
    return types.float64(number, types.float64, *integers), generate


@intrinsic
def marginal(typingctx, number, total, chart, source, i, k):
    """Return a gradient times its cell, which is a marginal, as a total.

    The gradient is the cell [i, k] of ``chart``. It belongs to the cell [i, k] of ``source``.
    """

    @_of_number
    def generate(own, total, chart, source, i, k):
        gradient = own.builder.load(own.place(own.charts[0], chart, i, k))
        return own.rules.marginal(own.builder, total, gradient, own.load(source, i, k))

    integers = [types.int64] * 4
    return types.float64(number, types.float64, *integers), generate


# ------------------------------------------------------------------------------------ rows


def _of_two_rows(copy: bool) -> Any:
    def build(typingctx, number, chart, i, source, k, begin, end):
        @_of_number
        def generate(own, chart, i, source, k, begin, end):
            array = own.charts[-1]
            rows = [own.row(array, chart, i), own.row(array, source, k)]
            kind = "set" if copy else own.rules.collect
            neutral = ir.DoubleType()(1.0 if copy else own.rules.neutral)
            own.loop([(kind, 0, ((0, 1),))], rows, [neutral], begin, end)
            return own.context.get_dummy_value()

        return types.none(number, *[types.int64] * 6), generate

    return intrinsic(build)


# (number, chart, i, source, k, begin, end): copy row k of ``source`` to row i of ``chart``, or add
# it, for begin ≤ j < end in whole vectors.
copy_row = _of_two_rows(copy=True)
add_row = _of_two_rows(copy=False)


def pushes_of(joins: Sequence[Join]) -> Any:
    """Return an operation (number, i, k, following, totals, begin, end) that pushes a span.

    For each join the operation adds

        result[i, j] += t · following[f, j] for begin ≤ j < end, in whole vectors,

    with f and t at the index of the join in ``following`` and ``totals``. t is the total of the
    cell finished[i, k], which need not be written yet.
    """
    count = len(joins)
    finished, followers = [join.finished for join in joins], [join.following for join in joins]

    def build(typingctx, number, i, k, following, totals, begin, end):
        @_of_number
        def generate(own, i, k, following, totals, begin, end):
            builder, chart = own.builder, i.type
            follows = cgutils.unpack_tuple(builder, following, count)
            scalars = cgutils.unpack_tuple(builder, totals, count)
            rows = [own.row(own.charts[-1], chart(join.result), i) for join in joins]
            for array in own.charts:
                rows += [own.row(array, chart(x), f) for x, f in zip(followers, follows)]
            for array in own.charts[:-1]:
                scalars += [builder.load(own.place(array, chart(x), i, k)) for x in finished]
            own.loop(own.rules.pushes(count), rows, scalars, begin, end)
            return own.context.get_dummy_value()

        integer = types.int64
        tuples = types.UniTuple(integer, count), types.UniTuple(types.float64, count)
        return types.none(number, integer, integer, *tuples, integer, integer), generate

    return intrinsic(build)


def pulls_of(joins: Sequence[Join], gradient: Mapping[int, int]) -> Any:
    """Return the adjoint of :func:`pushes_of`, an operation (number, i, k, following, begin, end).

    The operation adds to the gradients of the following spans. It returns one total for each join:
    its contribution to the gradient of the cell finished[i, k].

    Args:
        gradient: maps each chart to the chart of its gradients.
    """
    count = len(joins)
    finished, followers = [join.finished for join in joins], [join.following for join in joins]

    def build(typingctx, number, i, k, following, begin, end):
        @_of_number
        def generate(own, i, k, following, begin, end):
            builder, chart = own.builder, i.type
            follows = cgutils.unpack_tuple(builder, following, count)
            rows, scalars = [], []
            for array in own.charts:
                rows += [own.row(array, chart(gradient[join.result]), i) for join in joins]
            for array in own.charts:
                rows += [own.row(array, chart(x), f) for x, f in zip(followers, follows)]
                scalars += [builder.load(own.place(array, chart(x), i, k)) for x in finished]
            rows += [
                own.row(own.charts[-1], chart(gradient[join.following]), f)
                for join, f in zip(joins, follows)
            ]
            totals = own.loop(own.rules.pulls(count), rows, scalars, begin, end)
            return own.context.make_tuple(builder, result, totals)

        integer, result = types.int64, types.UniTuple(types.float64, count)
        places = types.UniTuple(integer, count)
        return result(number, integer, integer, places, integer, integer), generate

    return intrinsic(build)
