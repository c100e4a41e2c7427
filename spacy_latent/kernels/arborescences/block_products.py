"""Products and copies of blocks of contiguous float64 matrices, for escape probabilities."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spacy_latent.kernels.core.compilation import kernel
from spacy_latent.kernels.simd.vector import (
    LANES,
    VECTOR,
    broadcast,
    constant,
    over_vectors,
    read_arguments,
    times_plus,
    transposed,
    vector_from,
)

# Initial value of a tile of a product: the entries of the target, 0, or a column of the left
# factor, the one after the columns that are multiplied.
GIVEN, NOTHING, COLUMN = range(3)


def address(builder: Any, array: Any, i: Any, j: Any) -> Any:
    """Return the address of a number in a contiguous matrix."""
    width = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.add(builder.mul(i, width), j)])


def vector_in(builder: Any, array: Any, i: Any, j: Any) -> Any:
    """Return the address of the vector that starts at [i, j]."""
    return builder.bitcast(address(builder, array, i, j), VECTOR.as_pointer())


def _tile(rows: int, vectors: int, turned: bool = False) -> Any:
    """Return a compiled function of (start, a, ai, aj, b, bi, bj, c, ci, cj, n).

    It computes

        c[ci + r, cj + s] = start + Σ_{k < n} a[ai + r, aj + k] · b[bi + k, bj + s]

    for r < ``rows`` and s < ``vectors`` · LANES, or the same with the transpose of a if ``turned``.
    Matrices are contiguous float64. The tile stays in registers and is written last, so c may be b.
    """

    def build(typingctx, start, a, ai, aj, b, bi, bj, c, ci, cj, n):
        number = types.int64
        places = (number, number)
        signature = types.none(number, a, *places, b, *places, c, *places, number)

        def generate(context, builder, signature, arguments):
            start, left, ai, aj, right, bi, bj, target, ci, cj, n = read_arguments(
                context, builder, signature, arguments
            )
            number = n.type

            def factor(r: int, k: Any) -> Any:
                i, j = builder.add(ai, number(r)), builder.add(aj, k)
                place = address(builder, left, j, i) if turned else address(builder, left, i, j)
                return broadcast(builder, builder.load(place))

            def vectors_of(array: Any, i: Any, j: Any) -> list[Any]:
                begin = address(builder, array, i, j)
                return [vector_from(builder, begin, number(v * LANES)) for v in range(vectors)]

            targets = [vectors_of(target, builder.add(ci, number(r)), cj) for r in range(rows)]
            sums = [[cgutils.alloca_once(builder, VECTOR) for _ in row] for row in targets]
            for own in sums:
                for place in own:
                    builder.store(constant(0.0), place)
            with builder.if_then(builder.icmp_signed("==", start, number(GIVEN))):
                for own, row in zip(sums, targets):
                    for place, known in zip(own, row):
                        builder.store(builder.load(known, align=8), place)
            with builder.if_then(builder.icmp_signed("==", start, number(COLUMN))):
                for r, own in enumerate(sums):
                    value = factor(r, n)
                    for place in own:
                        builder.store(value, place)
            with cgutils.for_range(builder, n) as loop:
                known = [
                    builder.load(place, align=8)
                    for place in vectors_of(right, builder.add(bi, loop.index), bj)
                ]
                for r, own in enumerate(sums):
                    scalar = factor(r, loop.index)
                    for place, value in zip(own, known):
                        total = times_plus(builder, scalar, value, builder.load(place))
                        builder.store(total, place)
            for own, row in zip(sums, targets):
                for place, known in zip(own, row):
                    builder.store(builder.load(place), known, align=8)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(build)


_tile_4, _tile_3, _tile_2, _tile_1 = (_tile(4, 4), *(_tile(LANES, v) for v in (3, 2, 1)))
_turned_4, _turned_3, _turned_2, _turned_1 = (
    _tile(4, 4, True),
    *(_tile(LANES, v, True) for v in (3, 2, 1)),
)


@kernel
def product(start, a, at_a, b, at_b, c, at_c, rows, n, columns):
    """Multiply as :func:`_tile` does, for whole blocks of ``rows`` and ``columns``.

    c must not be b if there are more than 3 · LANES columns.

    Args:
        at_a, at_b, at_c: the first row and column. numba compiles again for literals in a tuple.
    """
    (ai, aj), (bi, bj), (ci, cj), j = at_a, at_b, at_c, 0
    while columns - j > 3 * LANES:
        for i in range(0, rows, 4):
            _tile_4(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        j += 4 * LANES
    rest = columns - j
    for i in range(0, rows, LANES):
        if rest == 3 * LANES:
            _tile_3(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == 2 * LANES:
            _tile_2(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == LANES:
            _tile_1(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)


@kernel
def turned_product(start, a, at_a, b, at_b, c, at_c, rows, n, columns):
    """Multiply as :func:`product` does, with the transpose of a."""
    (ai, aj), (bi, bj), (ci, cj), j = at_a, at_b, at_c, 0
    while columns - j > 3 * LANES:
        for i in range(0, rows, 4):
            _turned_4(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        j += 4 * LANES
    rest = columns - j
    for i in range(0, rows, LANES):
        if rest == 3 * LANES:
            _turned_3(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == 2 * LANES:
            _turned_2(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)
        elif rest == LANES:
            _turned_1(start, a, ai + i, aj, b, bi, bj + j, c, ci + i, cj + j, n)


@kernel
def multiply_block(inverse, x, i, j, end):
    """Write x[i:i + LANES, j:end] = inverseᵀ · x[i:i + LANES, j:end]."""
    while j < end:
        if end - j >= 3 * LANES:
            _turned_3(NOTHING, inverse, 0, 0, x, i, j, x, i, j, LANES)
            j += 3 * LANES
        elif end - j == 2 * LANES:
            _turned_2(NOTHING, inverse, 0, 0, x, i, j, x, i, j, LANES)
            j += 2 * LANES
        else:
            _turned_1(NOTHING, inverse, 0, 0, x, i, j, x, i, j, LANES)
            j += LANES


@intrinsic
def copy_block(typingctx, a, i, j, k, l, rows, columns):
    """Copy a[i:i + rows, j:j + columns] to a[k:k + rows, l:l + columns].

    Rows are whole vectors of a contiguous float64 matrix. The two blocks have no rows in common.
    """
    number = types.int64
    signature = types.none(a, number, number, number, number, number, number)

    def generate(context, builder, signature, arguments):
        array, i, j, k, l, rows, columns = read_arguments(context, builder, signature, arguments)
        number = i.type
        with cgutils.for_range(builder, rows) as loop:
            source = address(builder, array, builder.add(i, loop.index), j)
            target = address(builder, array, builder.add(k, loop.index), l)
            with over_vectors(builder, number(0), columns) as at:
                value = builder.load(vector_from(builder, source, at), align=8)
                builder.store(value, vector_from(builder, target, at), align=8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def turn_to(typingctx, matrix, begin, size, result):
    """Write the transpose of ``size`` rows from ``begin`` on, and as many columns from 0 on.

    ``size`` is a number of whole blocks of LANES. Both matrices are contiguous float64, and the
    result may have any width.
    """
    signature = types.none(matrix, types.int64, types.int64, result)

    def generate(context, builder, signature, arguments):
        source, begin, size, target = read_arguments(context, builder, signature, arguments)
        number = size.type

        def at(array: Any, i: Any, k: int, j: Any) -> Any:
            return vector_in(builder, array, builder.add(i, number(k)), j)

        with over_vectors(builder, number(0), size) as i:
            with over_vectors(builder, number(0), size) as j:
                row = builder.add(i, begin)
                block = [builder.load(at(source, row, k, j), align=8) for k in range(LANES)]
                for k, value in enumerate(transposed(builder, block)):
                    builder.store(value, at(target, j, k, i), align=8)
        return context.get_dummy_value()

    return signature, generate
