"""Number types (semirings) in SIMD lanes, for the recurrences of kernels.simd.lanes.

A number type is a NamedTuple that holds the charts, ``(count, rows, columns, LANES)``. It is the
first argument of a recurrence and of the operations below. Its type selects the operations when the
recurrence is compiled. A recurrence is thus written once, and its machine code is cached for each
number type.

The operations pass two kinds of vectors. A *cell* is an entry of a chart. A *total* is an
accumulator: a sum that is not yet written to a chart. They differ only for ``Tangents``, whose cell
is the pair of value and tangent. Its total is the tangent alone, since the charts hold the values
already.

Operations are intrinsics that generate LLVM code. With ``compilation.implements`` instead, the
first call took 13 % longer. Functions that take a number and are called in a loop have forceinline
and no branch. With a branch, the outside pass of constituency trees took twice as long, probably
because numba counts references to the charts at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.lanes import LANES_TYPE, store, vector_at
from spacy_latent.kernels.simd.vector import FLAGS, LANES, VECTOR, broadcast, constant, larger
from spacy_latent.kernels.simd.vector import plus as _plus

# The chart of the weights, [i, j]. It holds scores for maxima. In ``Tangents.tangents`` it holds
# the tangents of the log-weights, d log w; in kernels.simd.row_numbers they are dw.
WEIGHT = 0


class Sums(NamedTuple):
    """The semiring (+, ×).

    Attributes:
        floor: added to each sum and weight that may have underflowed. It is 0 for plain sums, and
            above 0 for upper bounds (see kernels.simd.lanes.keep_trusted).
    """

    charts: NDArray[np.float64]
    floor: float


class Tangents(NamedTuple):
    """Forward derivatives of ``Sums``.

    Attributes:
        charts: the sums, with floor 0; only read.
        tangents: their tangents.
    """

    charts: NDArray[np.float64]
    tangents: NDArray[np.float64]


class Maxima(NamedTuple):
    """The semiring (max, +)."""

    charts: NDArray[np.float64]


# ------------------------------------------------------------------------------------ arithmetic


def _times(builder: Any, a: Any, b: Any) -> Any:
    return builder.fmul(a, b, flags=FLAGS)


class _SumRules:
    """Arithmetic of ``Sums`` on llvmlite vectors.

    A cell is a list of vectors, and a total is a vector.
    """

    one = 1.0

    @staticmethod
    def change(cell: Sequence[Any]) -> Any:
        """Return the part of a cell that a total holds."""
        return cell[0]

    @staticmethod
    def plus(builder: Any, total: Any, other: Any) -> Any:
        return _plus(builder, total, other)

    @staticmethod
    def plus_product(builder: Any, total: Any, a: Sequence[Any], b: Sequence[Any]) -> Any:
        return _plus(builder, total, _times(builder, a[0], b[0]))

    @staticmethod
    def times_weight(
        builder: Any, total: Any, weight: Sequence[Any], known: Any, floor: Any
    ) -> Any:
        """Return ``total`` times a weight as stored in the charts.

        Args:
            known: the value of the product, for tangents.
        """
        return _plus(builder, floor, _times(builder, total, _plus(builder, weight[0], floor)))

    @staticmethod
    def products(builder: Any, pairs: Sequence[Any]) -> Any:
        """Return Σ a · weight over pairs (a, weight)."""
        (a, weight), *others = pairs
        total = _times(builder, a[0], weight[0])
        for a, weight in others:
            total = _plus(builder, total, _times(builder, a[0], weight[0]))
        return total

    @staticmethod
    def gradient(builder: Any, gradient: Sequence[Any], cell: Sequence[Any]) -> Any:
        """Return the vector to write for the gradient of a cell."""
        return gradient[0]


class _MaximumRules(_SumRules):
    """Arithmetic of ``Maxima``, which have no gradients."""

    one = 0.0

    @staticmethod
    def plus(builder: Any, total: Any, other: Any) -> Any:
        return larger(builder, other, total)

    @staticmethod
    def plus_product(builder: Any, total: Any, a: Sequence[Any], b: Sequence[Any]) -> Any:
        return larger(builder, builder.fadd(a[0], b[0]), total)

    @staticmethod
    def times_weight(
        builder: Any, total: Any, weight: Sequence[Any], known: Any, floor: Any
    ) -> Any:
        return builder.fadd(total, weight[0], flags=FLAGS)


class _TangentRules(_SumRules):
    one = 0.0

    @staticmethod
    def change(cell: Sequence[Any]) -> Any:
        return cell[1]

    @staticmethod
    def plus_product(builder: Any, total: Any, a: Sequence[Any], b: Sequence[Any]) -> Any:
        total = _plus(builder, total, _times(builder, a[0], b[1]))
        return _plus(builder, total, _times(builder, a[1], b[0]))

    @staticmethod
    def times_weight(
        builder: Any, total: Any, weight: Sequence[Any], known: Any, floor: Any
    ) -> Any:
        product = _times(builder, known, weight[1])
        return _plus(builder, product, _times(builder, total, weight[0]))

    @staticmethod
    def products(builder: Any, pairs: Sequence[Any]) -> Any:
        total = _SumRules.products(builder, [(a[1:], weight) for a, weight in pairs])
        # In this order, since gradients may be close to the range of float64 if weights are small.
        for a, weight in pairs:
            change = _times(builder, weight[0], weight[1])
            total = _plus(builder, total, _times(builder, a[0], change))
        return total

    @staticmethod
    def gradient(builder: Any, gradient: Sequence[Any], cell: Sequence[Any]) -> Any:
        # The tangent of the marginal. No other result needs the tangent of the gradient.
        total = _times(builder, gradient[1], cell[0])
        return _plus(builder, total, _times(builder, gradient[0], cell[1]))


_RULES: dict[type, type[_SumRules]] = {
    Sums: _SumRules,
    Tangents: _TangentRules,
    Maxima: _MaximumRules,
}


# ------------------------------------------------------------------------------------ operations


def _cell_type(number: Any) -> Any:
    return types.UniTuple(LANES_TYPE, 2) if number.instance_class is Tangents else LANES_TYPE


class _Number:
    """A number type during code generation."""

    def __init__(self, context: Any, builder: Any, signature: Any, value: Any) -> None:
        self.context, self.builder, self.kinds = context, builder, signature.args
        self.kind = signature.args[0]
        self.rules = _RULES[self.kind.instance_class]
        self.arrays, self.floor = [], None
        for place, kind in enumerate(self.kind.types):
            field = builder.extract_value(value, place)
            if isinstance(kind, types.Array):
                self.arrays.append(context.make_array(kind)(context, builder, field))
            else:
                self.floor = broadcast(builder, field)
        self.sizes = [builder.extract_value(self.arrays[0].shape, axis) for axis in (1, 2)]

    def start(self, array: Any, chart: Any) -> Any:
        """Return the address of a chart.

        The offset of a cell from it is the same in each chart.
        """
        builder = self.builder
        cells = builder.mul(chart, builder.mul(*self.sizes))
        return builder.gep(array.data, [builder.mul(cells, cells.type(LANES))])

    def places(self, chart: Any, i: Any, j: Any) -> list[Any]:
        """Return the addresses of a cell's value and, for tangents, its tangent."""
        cell = self.builder.add(self.builder.mul(i, self.sizes[1]), j)
        return [vector_at(self.builder, self.start(array, chart), cell) for array in self.arrays]

    def load(self, chart: Any, i: Any, j: Any) -> list[Any]:
        return [self.builder.load(place, align=8) for place in self.places(chart, i, j)]

    def store(self, total: Any, places: list[Any]) -> list[Any]:
        """Store a total and return its cell."""
        self.builder.store(total, places[-1], align=8)
        return [*(self.builder.load(place, align=8) for place in places[:-1]), total]

    def cell(self, place: int, value: Any) -> list[Any]:
        """Return the vectors of a cell, the argument of the operation at a place."""
        is_vector = self.kinds[place] == LANES_TYPE
        return [value] if is_vector else cgutils.unpack_tuple(self.builder, value, 2)

    def total(self, place: int, value: Any) -> Any:
        """Return the argument at a place as a total."""
        is_vector = self.kinds[place] == LANES_TYPE
        return value if is_vector else self.rules.change(self.cell(place, value))

    def packed(self, cell: list[Any]) -> Any:
        if len(cell) == 1:
            return cell[0]
        return self.context.make_tuple(self.builder, _cell_type(self.kind), cell)


def _of_number(generate: Any) -> Any:
    """Return the code generator of an operation, from one that gets a ``_Number`` first."""
    return lambda context, builder, signature, arguments: generate(
        _Number(context, builder, signature, arguments[0]), *arguments[1:]
    )


def _size(axis: int) -> Any:
    def build(typingctx, number):
        return types.int64(number), _of_number(lambda own: own.sizes[axis])

    return intrinsic(build)


# (number): the numbers of rows and of columns of each chart.
rows_of, columns_of = _size(0), _size(1)


@intrinsic
def one(typingctx, number):
    """Return the empty product, as a total."""
    return LANES_TYPE(number), _of_number(lambda own: constant(own.rules.one))


@intrinsic
def read(typingctx, number, chart, i, j):
    """Return the cell [i, j] of a chart."""

    @_of_number
    def generate(own, chart, i, j):
        return own.packed(own.load(chart, i, j))

    return _cell_type(number)(number, types.int64, types.int64, types.int64), generate


def _writer(both: bool) -> Any:
    def build(typingctx, number, chart, i, j, total):
        @_of_number
        def generate(own, chart, i, j, total):
            total = own.total(4, total)
            cell = own.store(total, own.places(chart, i, j))
            if both:
                own.store(total, own.places(chart, j, i))
            return own.packed(cell)

        return _cell_type(number)(number, types.int64, types.int64, types.int64, total), generate

    return intrinsic(build)


# (number, chart, i, j, total): write the cell [i, j], with ``both`` also [j, i], and return it.
write = _writer(both=False)
write_both = _writer(both=True)


@intrinsic
def write_weighted(typingctx, number, chart, i, j, total, h, m):
    """Write ``total`` times the weight [h, m] to [i, j] and [j, i], and return the cell."""

    @_of_number
    def generate(own, chart, i, j, total, h, m):
        builder, total = own.builder, own.total(4, total)
        places, weights = own.places(chart, i, j), own.places(chart.type(WEIGHT), h, m)
        # The order of loads decides which of two products is rounded before the sum.
        known = builder.load(places[0], align=8)
        weight = [builder.load(place, align=8) for place in reversed(weights)][::-1]
        total = own.rules.times_weight(builder, total, weight, known, own.floor)
        cell = own.store(total, places)
        own.store(total, own.places(chart, j, i))
        return own.packed(cell)

    integers = [types.int64] * 3
    signature = _cell_type(number)(number, *integers, total, types.int64, types.int64)
    return signature, generate


@intrinsic
def write_gradient(typingctx, number, chart, i, j, total, source):
    """Write the gradient [i, j] of a cell of the chart ``source``, and return it as a cell.

    For tangents, the chart gets the tangent of the marginal, gradient · cell, and the returned cell
    the tangent of the gradient.
    """

    @_of_number
    def generate(own, chart, i, j, total, source):
        builder, total = own.builder, own.total(4, total)
        places, cell = own.places(chart, i, j), own.load(source, i, j)
        gradient = [*(builder.load(place, align=8) for place in places[:-1]), total]
        builder.store(own.rules.gradient(builder, gradient, cell), places[-1], align=8)
        return own.packed(gradient)

    integers = [types.int64] * 3
    return _cell_type(number)(number, *integers, total, types.int64), generate


@intrinsic
def plus(typingctx, number, total, other):
    """Return the sum of two totals or cells, as a total."""

    @_of_number
    def generate(own, total, other):
        return own.rules.plus(own.builder, own.total(1, total), own.total(2, other))

    return LANES_TYPE(number, total, other), generate


@intrinsic
def plus_floor(typingctx, number, total):
    """Return a total or cell plus the floor, if the number has one, as a total."""

    @_of_number
    def generate(own, total):
        total = own.total(1, total)
        return total if own.floor is None else own.rules.plus(own.builder, total, own.floor)

    return LANES_TYPE(number, total), generate


@intrinsic
def plus_product(typingctx, number, total, a, b):
    """Return total + a · b for cells a and b."""

    @_of_number
    def generate(own, total, a, b):
        return own.rules.plus_product(own.builder, total, own.cell(2, a), own.cell(3, b))

    return LANES_TYPE(number, LANES_TYPE, a, b), generate


@intrinsic
def times_weight(typingctx, number, cell, h, m):
    """Return a gradient times the weight [h, m], as a total."""

    @_of_number
    def generate(own, cell, h, m):
        pair = own.cell(1, cell), own.load(h.type(WEIGHT), h, m)
        return own.rules.products(own.builder, [pair])

    return LANES_TYPE(number, cell, types.int64, types.int64), generate


@intrinsic
def times_weights(typingctx, number, cell, other, h, m):
    """Return cell · weight [h, m] + other · weight [m, h] for two gradients, as a total."""

    @_of_number
    def generate(own, cell, other, h, m):
        chart = h.type(WEIGHT)
        pairs = [
            (own.cell(1, cell), own.load(chart, h, m)),
            (own.cell(2, other), own.load(chart, m, h)),
        ]
        return own.rules.products(own.builder, pairs)

    return LANES_TYPE(number, cell, other, types.int64, types.int64), generate


# ------------------------------------------------------------------------------------ rows


def dots_of_rows(
    dots: Sequence[tuple[int, int]], step: int, down: bool = False, apart: bool = False
) -> Any:
    """Return an operation (number, cells, begin, end) that computes dot products of rows.

    ``dots`` are pairs of charts (x, y). For each pair, two rows r of x and two rows c of y, the
    operation computes

        Σ_{begin ≤ k < end} x.flat[cells[2 · dot] + r · columns + k]
                          · y.flat[cells[2 · dot + 1] + step · c · columns + k]

    It returns them as a tuple of totals, in the order of dot, r and c.

    Args:
        down: whether k runs from the last to the first. The entries written last are still in the
            cache then.
        apart: whether each dot, and each term of its tangent, has its own loop.
    """

    def build(typingctx, number, cells, begin, end):
        result = types.UniTuple(LANES_TYPE, 4 * len(dots))

        @_of_number
        def generate(own, cells, begin, end):
            builder, integer = own.builder, begin.type
            places = cgutils.unpack_tuple(builder, cells, 2 * len(dots))
            nothing = -np.inf if own.kind.instance_class is Maxima else 0.0

            def starts_of(array: Any, chart: int, start: Any, steps: tuple[int, int]) -> list[Any]:
                starts = (
                    builder.add(start, builder.mul(own.sizes[1], integer(count))) for count in steps
                )
                data = own.start(array, integer(chart))
                return [vector_at(builder, data, begin_of_row) for begin_of_row in starts]

            def loop(terms: Sequence[Sequence[tuple[Any, Any]]]) -> list[list[Any]]:
                """Return the sums of products of rows, for each of ``terms``."""
                sums = [[cgutils.alloca_once(builder, VECTOR) for _ in range(4)] for _ in terms]
                for place in chain(*sums):
                    builder.store(constant(nothing), place)
                with cgutils.for_range_slice(builder, begin, end, integer(1), integer) as (k, _):
                    if down:
                        k = builder.sub(builder.add(begin, builder.sub(end, integer(1))), k)
                    # Load one side of all products, then the other.
                    values = {
                        id(row): builder.load(builder.gep(row, [k]), align=8)
                        for side in (0, 1)
                        for pair in chain(*terms)
                        for row in pair[side]
                    }
                    for four, products in zip(sums, terms):
                        for place, (r, c) in zip(four, ((0, 0), (0, 1), (1, 0), (1, 1))):
                            value = builder.load(place)
                            for x, y in products:
                                # Both factors are plain values here: the loop as a whole computes a
                                # tangent.
                                rules = _MaximumRules if nothing else _SumRules
                                left, right = [values[id(x[r])]], [values[id(y[c])]]
                                value = rules.plus_product(builder, value, left, right)
                            builder.store(value, place)
                return [[builder.load(place) for place in four] for four in sums]

            terms = []
            for dot, (x, y) in enumerate(dots):
                left, right = (
                    [starts_of(array, chart, places[2 * dot + side], steps) for array in own.arrays]
                    for side, chart, steps in ((0, x, (0, 1)), (1, y, (0, step)))
                )
                if len(own.arrays) == 1:
                    terms.append([(left[0], right[0])])
                else:
                    terms.append([(left[0], right[1]), (left[1], right[0])])
            if not apart:
                results = list(chain(*loop(terms)))
            else:
                results = []
                for products in terms:
                    first, *others = loop([[product] for product in products])
                    for other in others:
                        first = [own.rules.plus(builder, a, b) for a, b in zip(first, other)]
                    results += first
            return own.context.make_tuple(builder, result, results)

        return result(number, cells, types.int64, types.int64), generate

    return intrinsic(build)


_dots = dots_of_rows([(0, 0)], 1, apart=True)


@kernel
def dots_from_before(number, sums, row, x, y, shift, first, i, last):
    """Write the products with spans that start before i to the sums of rows i and i + 1.

    They are products of rows of the charts x, from row i + ``shift`` on, and y. The totals are
    written to rows ``row`` and ``row`` + 1 of ``sums``.
    """
    # Offsets in flattened charts.
    rows, columns = rows_of(number), columns_of(number)
    above = (x * rows + i + shift) * columns
    for k in range(i, last, 2):
        at = (y * rows + k) * columns
        a, more_a, b, more_b = _dots(number, (above, at), first, i)
        store(sums, row, k, a)
        store(sums, row, k + 1, more_a)
        store(sums, row + 1, k, b)
        store(sums, row + 1, k + 1, more_b)
