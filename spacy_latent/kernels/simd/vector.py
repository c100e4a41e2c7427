"""Short loops over rows as vector code.

numba's own loops check at each call whether rows overlap, and compute up to 31 remaining numbers
one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.core.compilation import kernel

# Numbers in a vector. Rows must be padded to whole vectors at the end of a loop.
LANES = 8
VECTOR = ir.VectorType(ir.DoubleType(), LANES)
INTEGERS = ir.VectorType(ir.IntType(64), LANES)
# Bytes of a cache line.
LINE = 64
# Number of rows in a block.
GROUP = 4
FLAGS = ("contract", "nsz")


@kernel
def aligned_empty(size):
    """Return ``size`` uninitialised float64 that start at a cache line.

    Vectors that cross two cache lines take one and a half times as long.
    """
    memory = np.empty(size + LANES)
    start = -(np.int64(memory.ctypes.data) // 8) % LANES
    return memory[start : start + size]


@kernel
def copy(source, target, rows, columns):
    """Copy a matrix; numba's own assignment takes seconds to compile."""
    for i in range(rows):
        of_row, row = source[i], target[i]
        for j in range(columns):
            row[j] = of_row[j]


@kernel
def whole_vectors(size):
    """Return the size rounded up to whole vectors."""
    return (size + LANES - 1) // LANES * LANES


Statement = tuple[str, int, Sequence[tuple[int, int]]]


def fused_loop(statements: Sequence[Statement]) -> Any:
    """Return a compiled function of (rows, scalars, begin, end): one loop over begin ≤ j < end.

    It runs in whole vectors, so up to LANES − 1 numbers past the end are also computed. It returns
    a tuple of 0.0 and the results of the "dot" statements.

    Args:
        rows: a tuple of contiguous float64 rows. A written row must not overlap another row. Rows
            that are only read may be float32.
        scalars: a tuple of float64, (0.0,) if there are none.
        statements: in order, with r, r' as indices of ``rows`` and s as an index of ``scalars``:
            ("add", r, ((s, r'), ...)): rows[r][j] += Σ scalars[s] · rows[r'][j].
            ("set", r, ((s, r'), ...)): rows[r][j] = Σ scalars[s] · rows[r'][j].
            ("max", r, ((s, r'), ...)): rows[r][j] = max(rows[r][j], each scalars[s] + rows[r'][j]).
            ("best", r, ((s, r'), (w, w'))): if scalars[s] + rows[r'][j] > rows[r][j], it replaces
                rows[r][j], and rows[w'][j] replaces rows[w][j].
            ("dot", k, ((r, r'), ...)): result[k] = Σ_j Σ rows[r][j] · rows[r'][j].
    """
    dots = sum(kind == "dot" for kind, _, _ in statements)

    def build(typingctx, rows, scalars, begin, end):
        result = types.UniTuple(types.float64, dots + 1)
        signature = result(rows, scalars, types.int64, types.int64)

        def generate(context, builder, signature, arguments):
            kinds = signature.args[0].types
            values = cgutils.unpack_tuple(builder, arguments[0], len(kinds))
            pointers = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(kinds, values)
            ]
            numbers = cgutils.unpack_tuple(builder, arguments[1], signature.args[1].count)
            begin, end = arguments[2:]
            vectors = [vector_of(kind) for kind in kinds]
            sums = loop_of(builder, statements, pointers, vectors, numbers, begin, end)
            return context.make_tuple(builder, signature.return_type, [ir.DoubleType()(0.0), *sums])

        return signature, generate

    return intrinsic(build)


def loop_of(
    builder: Any,
    statements: Sequence[Statement],
    pointers: Sequence[Any],
    vectors: Sequence[Any],
    numbers: Sequence[Any],
    begin: Any,
    end: Any,
) -> list[Any]:
    """Generate the loop of :func:`fused_loop`, and return the dots.

    Args:
        pointers, vectors: the start of each row, and the type of its vectors.
        numbers: the scalars.
    """
    spread = [broadcast(builder, number) for number in numbers]
    dots = sum(kind == "dot" for kind, _, _ in statements)
    totals = [cgutils.alloca_once(builder, VECTOR) for _ in range(dots)]
    for total in totals:
        builder.store(constant(0.0), total)
    with over_vectors(builder, begin, end) as index:
        places = [
            vector_from(builder, pointer, index, vector)
            for pointer, vector in zip(pointers, vectors)
        ]
        known: dict[int, Any] = {}

        def load(row: int) -> Any:
            if row not in known:
                value = builder.load(places[row], align=4)
                known[row] = builder.fpext(value, VECTOR)
            return known[row]

        for kind, target, terms in statements:
            if kind == "best":
                (shift, source), (labels, others) = terms
                other = builder.fadd(spread[shift], load(source))
                better = builder.fcmp_ordered(">", other, load(target))
                for row, new in ((target, other), (labels, load(others))):
                    known[row] = builder.select(better, new, load(row))
                    builder.store(known[row], places[row], align=8)
                continue
            if kind == "set":
                value = constant(0.0)
            else:
                value = builder.load(totals[target]) if kind == "dot" else load(target)
            for first, second in terms:
                if kind == "max":
                    other = builder.fadd(spread[first], load(second))
                    value = larger(builder, other, value)
                    continue
                left = load(first) if kind == "dot" else spread[first]
                value = times_plus(builder, left, load(second), value)
            if kind == "dot":
                builder.store(value, totals[target])
            else:
                known[target] = value
                builder.store(value, places[target], align=8)
    return [_reduce(builder, builder.load(total), plus) for total in totals]


# Four rows at a time, and one: rows times scalars added to row 0, and products with the last row.
add_four = fused_loop([("add", 0, ((0, 1), (1, 2), (2, 3), (3, 4)))])
add_one = fused_loop([("add", 0, ((0, 1),))])
dot_four = fused_loop([("dot", r, ((r, 4),)) for r in range(4)])
dot_one = fused_loop([("dot", 0, ((0, 1),))])


@kernel
def sum_rows(factors, matrix, count, result):
    """Write result[j] = Σ_i factors[i] · matrix[i, j], for i and j below ``count``."""
    for j in range(count):
        result[j] = 0.0
    whole = count // 4 * 4
    for i in range(0, whole, 4):
        add_four(
            (result, matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]),
            (factors[i], factors[i + 1], factors[i + 2], factors[i + 3]),
            0,
            count,
        )
    for i in range(whole, count):
        add_one((result, matrix[i]), (factors[i],), 0, count)


@intrinsic
def best_outside(typingctx, row, owners, owner, begin, end):
    """Set row[j] to −inf if owners[j] is ``owner``, and return the first j with the largest row[j].

    If the row is −inf everywhere, the result is ``begin``. The range is begin ≤ j < end, in whole
    vectors.

    Args:
        row: contiguous float64 without NaN.
        owners: contiguous int64, as long as the row.
    """
    signature = types.int64(row, owners, types.int64, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        row, owners, owner, begin, end = read_arguments(context, builder, signature, arguments)
        owner, low = broadcast(builder, owner), constant(-np.inf)
        largest = cgutils.alloca_once_value(builder, low)
        where = cgutils.alloca_once_value(builder, constant(0, INTEGERS))
        with over_vectors(builder, begin, end) as index:
            place = vector_from(builder, row.data, index)
            owned = vector_from(builder, owners.data, index, INTEGERS)
            inside = builder.icmp_signed("==", builder.load(owned, align=8), owner)
            values = builder.select(inside, low, builder.load(place, align=8))
            builder.store(values, place, align=8)
            known = builder.load(largest)
            better = builder.fcmp_ordered(">", values, known)
            builder.store(builder.select(better, values, known), largest)
            here = broadcast(builder, index)
            builder.store(builder.select(better, here, builder.load(where)), where)
        # Several lanes may hold the largest value: take the first index.
        values = builder.load(largest)
        top = broadcast(builder, _reduce(builder, values, larger))
        indices = builder.add(builder.load(where), ir.Constant(INTEGERS, list(range(LANES))))
        far = constant(1 << 62, INTEGERS)
        indices = builder.select(builder.fcmp_ordered("==", values, top), indices, far)
        found = _reduce(builder, indices, _smaller)
        # If all numbers are −inf, no lane holds an index.
        first = builder.extract_element(top, ir.IntType(32)(0))
        empty = builder.fcmp_ordered("==", first, ir.DoubleType()(-np.inf))
        return builder.select(empty, begin, found)

    return signature, generate


@intrinsic
def _maxima_in_vectors(typingctx, matrix, begin, size, largest, where):
    """Compute :func:`column_maxima` for sizes of at least LANES.

    The last columns may be computed twice.
    """
    signature = types.boolean(matrix, types.int64, types.int64, largest, where)

    def generate(context, builder, signature, arguments):
        array, begin, size, largest, where = read_arguments(context, builder, signature, arguments)
        vector, number, low = vector_of(signature.args[0]), begin.type, constant(-np.inf)
        width = builder.extract_value(array.shape, 1)
        wrong = _Wrong(builder)
        top, row = cgutils.alloca_once(builder, VECTOR), cgutils.alloca_once(builder, INTEGERS)
        with in_blocks(builder, number(0), size) as j:
            lanes = ir.Constant(INTEGERS, list(range(LANES)))
            columns = builder.add(broadcast(builder, j), lanes)
            builder.store(low, top)
            builder.store(broadcast(builder, begin), row)
            with cgutils.for_range_slice(builder, begin, size, number(1), number) as (i, _):
                place = builder.add(builder.mul(i, width), j)
                place = vector_from(builder, array.data, place, vector)
                values = builder.fpext(builder.load(place, align=4), VECTOR)
                here = broadcast(builder, i)
                values = builder.select(builder.icmp_signed("==", here, columns), low, values)
                wrong.add(values)
                known = builder.load(top)
                better = builder.fcmp_ordered(">", values, known)
                builder.store(builder.select(better, values, known), top)
                builder.store(builder.select(better, here, builder.load(row)), row)
            for result, found in ((largest, top), (where, row)):
                value = builder.load(found)
                place = vector_from(builder, result.data, j, value.type)
                builder.store(value, place, align=8)
        return wrong.anywhere()

    return signature, generate


@kernel
def column_maxima(matrix, begin, size, largest, where):
    """Write the maximum of each column j < size over rows begin ≤ i < size, except the diagonal.

    The first row with the maximum is written to ``where``. If all numbers are −inf, the maximum is
    −inf and the row ``begin``.

    Args:
        matrix: float32 or float64, contiguous, with rows of at least ``size`` numbers.
        largest, where: float64 and int64, of at least ``size`` numbers; written.

    Returns:
        Whether any of the compared numbers is NaN or +inf. The written results are then invalid.
    """
    if size >= LANES:
        return _maxima_in_vectors(matrix, begin, size, largest, where)
    wrong = False
    for j in range(size):
        largest[j], where[j] = -np.inf, begin
        for i in range(begin, size):
            if i != j:
                wrong |= not matrix[i, j] < np.inf
                if matrix[i, j] > largest[j]:
                    largest[j], where[j] = matrix[i, j], i
    return wrong


@intrinsic
def merge_column(typingctx, matrix, column, cost, shift, label, size, row, labels):
    """Set row[i] to max(row[i] + cost, matrix[i, column] + shift) for i < size.

    If the second number is larger, ``label`` replaces labels[i]. Whole vectors of ``row`` and
    ``labels`` are computed; past ``size`` only the cost is added.

    Args:
        matrix: float32 or float64, contiguous.
        row, labels: float64, contiguous.
    """
    number, real = types.int64, types.float64
    signature = types.none(matrix, number, real, real, real, number, row, labels)

    def generate(context, builder, signature, arguments):
        source, column, cost, shift, label, size, target, places = read_arguments(
            context, builder, signature, arguments
        )
        number, vector = size.type, vector_of(signature.args[0])
        stride = builder.extract_value(source.shape, 1)
        first = builder.gep(source.data, [column])
        low = ir.Constant(vector.element, -np.inf)
        cost, shift, label = (broadcast(builder, value) for value in (cost, shift, label))

        def merge(i: Any, within: bool) -> None:
            # Assembled in a register, since reading a vector soon after its numbers were written
            # one by one is slow.
            values = ir.Constant(vector, ir.Undefined)
            for lane in range(LANES):
                at = builder.add(i, number(lane))
                inside = builder.icmp_signed("<", at, size)
                if not within:
                    at = builder.select(inside, at, number(0))
                value = builder.load(builder.gep(first, [builder.mul(at, stride)]))
                if not within:
                    value = builder.select(inside, value, low)
                values = builder.insert_element(values, value, ir.IntType(32)(lane))
            values = builder.fadd(builder.fpext(values, VECTOR), shift)
            rows = [vector_from(builder, array.data, i) for array in (target, places)]
            known = [builder.load(place, align=8) for place in rows]
            known[0] = builder.fadd(known[0], cost)
            better = builder.fcmp_ordered(">", values, known[0])
            for place, new, old in zip(rows, (values, label), known):
                builder.store(builder.select(better, new, old), place, align=8)

        whole = builder.sub(size, builder.srem(size, number(LANES)))
        with over_vectors(builder, number(0), whole) as i:
            merge(i, True)
        with builder.if_then(builder.icmp_signed("<", whole, size)):
            merge(whole, False)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def best_of_rows(typingctx, previous, block, result):
    """Write result[j] = max over i of previous[i] + block[i, j], and return a sum as a check.

    The returned sum is over all numbers read. It is NaN or +inf if any of them is.

    Args:
        block: square, float32 or float64, contiguous, without NaN. LANES − 1 numbers after it are
            also read, since whole vectors are computed.
        result: float64. LANES − 1 numbers of padding are also written.
    """
    signature = types.float64(previous, block, result)

    def generate(context, builder, signature, arguments):
        shifts, rows, target = read_arguments(context, builder, signature, arguments)
        vector, size = vector_of(signature.args[1]), builder.extract_value(rows.shape, 0)
        number, zero = size.type, size.type(0)
        total = cgutils.alloca_once_value(builder, constant(0.0))
        best = cgutils.alloca_once(builder, VECTOR)
        whole = builder.sub(size, builder.srem(size, number(GROUP)))
        with over_vectors(builder, zero, size) as j:
            builder.store(constant(-np.inf), best)
            for begin, end, step in ((zero, whole, GROUP), (whole, size, 1)):
                with cgutils.for_range_slice(builder, begin, end, number(step), number) as (i, _):
                    found, sums = [], []
                    for r in range(step):
                        row = builder.add(i, number(r))
                        place = builder.add(builder.mul(row, size), j)
                        place = vector_from(builder, rows.data, place, vector)
                        values = builder.fpext(builder.load(place, align=4), VECTOR)
                        shift = builder.load(builder.gep(shifts.data, [row]))
                        found.append(builder.fadd(broadcast(builder, shift), values))
                        sums.append(values)
                    while len(found) > 1:
                        found = [
                            larger(builder, *found[k : k + 2]) for k in (0, 2)[: len(found) // 2]
                        ]
                        sums = [builder.fadd(*sums[k : k + 2]) for k in (0, 2)[: len(sums) // 2]]
                    builder.store(larger(builder, found[0], builder.load(best)), best)
                    builder.store(builder.fadd(sums[0], builder.load(total)), total)
            builder.store(builder.load(best), vector_from(builder, target.data, j), align=8)
        return _reduce(builder, builder.load(total), plus)

    return signature, generate


@intrinsic
def _widen_vectors(typingctx, row, result, size):
    """Compute :func:`widen` for sizes of at least LANES.

    The last vector may overlap the one before.
    """
    signature = types.boolean(row, result, types.int64)

    def generate(context, builder, signature, arguments):
        source, target, size = read_arguments(context, builder, signature, arguments)
        vector, wrong = vector_of(signature.args[0]), _Wrong(builder)
        with in_blocks(builder, size.type(0), size) as index:
            place = vector_from(builder, source.data, index, vector)
            values = builder.fpext(builder.load(place, align=4), VECTOR)
            builder.store(values, vector_from(builder, target.data, index), align=8)
            wrong.add(values)
        return wrong.anywhere()

    return signature, generate


@kernel
def widen(row, result, size):
    """Copy numbers of a contiguous row of float32 or float64 to a row of float64.

    The function returns whether any of the ``size`` numbers is NaN or +inf.
    """
    if size >= LANES:
        return _widen_vectors(row, result, size)
    wrong = False
    for j in range(size):
        result[j] = row[j]
        wrong |= not row[j] < np.inf
    return wrong


@intrinsic
def add_product(typingctx, result, i, factors, begin, across, along, rows, k, size):
    """Add Σ_s factors.flat[begin + r · across + s · along] · rows[k + s, j] to result[i + r, j].

    r and s are below GROUP, and j < size, in whole vectors. Matrices are contiguous float64. The
    read rows and the written rows must not overlap.
    """
    number = types.int64
    signature = types.none(result, number, factors, number, number, number, rows, number, number)

    def generate(context, builder, signature, arguments):
        target, i, given, begin, across, along, source, k, size = read_arguments(
            context, builder, signature, arguments
        )

        def starts(array: Any, first: Any) -> list[Any]:
            width = builder.extract_value(array.shape, 1)
            places = (builder.add(first, first.type(r)) for r in range(GROUP))
            return [builder.gep(array.data, [builder.mul(place, width)]) for place in places]

        scalars = []
        for r in range(GROUP):
            for s in range(GROUP):
                steps = builder.add(
                    builder.mul(across, across.type(r)), builder.mul(along, along.type(s))
                )
                place = builder.gep(given.data, [builder.add(begin, steps)])
                scalars.append(broadcast(builder, builder.load(place)))
        targets, sources = starts(target, i), starts(source, k)
        with over_vectors(builder, size.type(0), size) as index:
            known = [builder.load(vector_from(builder, start, index), align=8) for start in sources]
            for r in range(GROUP):
                place = vector_from(builder, targets[r], index)
                value = builder.load(place, align=8)
                for s in range(GROUP):
                    value = times_plus(builder, scalars[GROUP * r + s], known[s], value)
                builder.store(value, place, align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _equal_in_vectors(typingctx, first, second, size):
    """Compute :func:`count_equal` for sizes of at least LANES.

    The last vector may overlap the one before.
    """
    signature = types.int64(first, second, types.int64)

    def generate(context, builder, signature, arguments):
        first, second, size = read_arguments(context, builder, signature, arguments)
        wide = ir.VectorType(ir.IntType(32), LANES)
        lanes = ir.Constant(wide, list(range(LANES)))
        total = cgutils.alloca_once_value(builder, constant(0, wide))
        last = builder.sub(size, size.type(LANES))
        with over_vectors(builder, size.type(0), size) as start:
            index = builder.select(builder.icmp_signed("<", start, last), start, last)
            met = broadcast(builder, builder.trunc(builder.sub(start, index), ir.IntType(32)))
            left, right = (
                builder.load(vector_from(builder, row.data, index, wide), align=4)
                for row in (first, second)
            )
            same = builder.and_(
                builder.icmp_signed("==", left, right), builder.icmp_signed(">=", lanes, met)
            )
            builder.store(builder.add(builder.load(total), builder.zext(same, wide)), total)
        found = _reduce(builder, builder.load(total), lambda builder, a, b: builder.add(a, b))
        return builder.sext(found, ir.IntType(64))

    return signature, generate


@kernel
def count_equal(first, second, size):
    """Return how many of the first ``size`` entries of two contiguous int32 rows are equal."""
    if size >= LANES:
        return _equal_in_vectors(first, second, size)
    total = 0
    for j in range(size):
        total += first[j] == second[j]
    return total


@intrinsic
def _scan_vectors(typingctx, row):
    """Compute :func:`scan` for the whole vectors at the start of the row."""
    signature = types.Tuple((row.dtype, types.boolean))(row)

    def generate(context, builder, signature, arguments):
        (array,) = read_arguments(context, builder, signature, arguments)
        vector, size = vector_of(signature.args[0]), builder.extract_value(array.shape, 0)
        largest = cgutils.alloca_once_value(builder, constant(-np.inf, vector))
        wrong = _Wrong(builder, vector)
        end = builder.sub(size, builder.srem(size, size.type(LANES)))
        with over_vectors(builder, size.type(0), end) as index:
            values = builder.load(vector_from(builder, array.data, index, vector), align=4)
            builder.store(larger(builder, values, builder.load(largest)), largest)
            wrong.add(values)
        results = [_reduce(builder, builder.load(largest), larger), wrong.anywhere()]
        return context.make_tuple(builder, signature.return_type, results)

    return signature, generate


@kernel
def scan(row):
    """Return the largest number of a contiguous row, and whether any number is NaN or +inf.

    The row is float32 or float64. If any number is, the first result is invalid.
    """
    largest, wrong = _scan_vectors(row)
    for j in range(len(row) // LANES * LANES, len(row)):
        largest = row[j] if row[j] > largest else largest
        wrong |= not row[j] < np.inf
    return np.float64(largest), wrong


class _Wrong:
    """Flags of lanes that have met NaN or +inf, while code is generated."""

    def __init__(self, builder: Any, vector: ir.VectorType = VECTOR) -> None:
        self.builder, self.high = builder, constant(np.inf, vector)
        self.flags = ir.VectorType(ir.IntType(32), LANES)
        self.found = cgutils.alloca_once_value(builder, constant(0, self.flags))

    def add(self, values: Any) -> None:
        builder = self.builder
        # Unordered: also true for NaN.
        above = builder.sext(builder.fcmp_unordered(">=", values, self.high), self.flags)
        builder.store(builder.or_(builder.load(self.found), above), self.found)

    def anywhere(self) -> Any:
        builder = self.builder
        found = _reduce(builder, builder.load(self.found), lambda builder, a, b: builder.or_(a, b))
        return builder.icmp_signed("!=", found, found.type(0))


def read_arguments(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Return the arguments of an intrinsic, with accessible arrays."""
    return [
        context.make_array(kind)(context, builder, value)
        if isinstance(kind, types.Array)
        else value
        for kind, value in zip(signature.args, arguments)
    ]


def vector_from(builder: Any, data: Any, index: Any, vector: ir.VectorType = VECTOR) -> Any:
    """Return the address of the vector that starts at an index."""
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def constant(value: float, vector: ir.VectorType = VECTOR) -> Any:
    """Return a constant vector of equal numbers."""
    return ir.Constant(vector, [value] * vector.count)


def vector_of(kind: Any) -> ir.VectorType:
    """Return the vector type of LANES numbers of a row."""
    return VECTOR if kind.dtype == types.float64 else ir.VectorType(ir.FloatType(), LANES)


def line_of(kind: Any) -> ir.VectorType:
    """Return the vector type of a cache line: 16 numbers of float32, or LANES of float64."""
    if kind.dtype == types.float64:
        return VECTOR
    return ir.VectorType(ir.FloatType(), LINE // 4)


def larger(builder: Any, a: Any, b: Any) -> Any:
    """Return the larger number of each lane, for numbers that are not NaN."""
    # With these flags the maximum is one instruction. Otherwise a masked store delays the next
    # load.
    flags = ("nnan", "nsz")
    return builder.select(builder.fcmp_ordered(">", a, b, flags=flags), a, b, flags=flags)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def broadcast(builder: Any, value: Any) -> Any:
    """Return a vector of LANES numbers that all have this value."""
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    lane = builder.insert_element(nothing, value, ir.IntType(32)(0))
    return builder.shuffle_vector(lane, nothing, constant(0, ir.VectorType(ir.IntType(32), LANES)))


@contextmanager
def over_vectors(builder: Any, begin: Any, end: Any) -> Iterator[Any]:
    """Loop over the starts of vectors; the last may pass the end."""
    number = end.type
    with cgutils.for_range_slice(builder, begin, end, number(LANES), number) as (start, _):
        yield start


@contextmanager
def in_blocks(builder: Any, begin: Any, end: Any) -> Iterator[Any]:
    """Loop over the starts of blocks of LANES; the last may overlap the one before."""
    last = builder.sub(end, end.type(LANES))
    with over_vectors(builder, begin, end) as start:
        yield builder.select(builder.icmp_signed("<", start, last), start, last)


def transposed(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """Return the transpose of LANES vectors: vector i has the i-th number of each."""
    rows, half = list(rows), LANES // 2
    while half:
        # Swap the off-diagonal blocks, of half the size each time.
        for i in range(LANES):
            if i & half:
                continue
            pair = rows[i], rows[i | half]
            for place, other in ((i, 0), (i | half, half)):
                mask = [(k & ~half | other) + (LANES if k & half else 0) for k in range(LANES)]
                mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), mask)
                rows[place] = builder.shuffle_vector(*pair, mask)
        half //= 2
    return rows


def _reduce(builder: Any, vector: Any, combine: Any) -> Any:
    width = LANES
    while width > 1:
        width //= 2
        mask = [i + width if i < width else i for i in range(LANES)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), mask)
        vector = combine(builder, vector, builder.shuffle_vector(vector, vector, mask))
    return builder.extract_element(vector, ir.IntType(32)(0))


def plus(builder: Any, a: Any, b: Any) -> Any:
    """Return a + b. The compiler may fuse it with a product."""
    return builder.fadd(a, b, flags=FLAGS)


def times_plus(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c."""
    return plus(builder, c, builder.fmul(a, b, flags=FLAGS))
