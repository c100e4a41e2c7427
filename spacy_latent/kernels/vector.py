"""Short loops over rows as vector code: numba's own check the rows for overlap each time, and leave
rests of up to 31 numbers to scalar code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Numbers worked on together: rows must have as many as whole vectors up to the loop's end take.
LANES = 8
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_FLAGS = ("contract", "nsz")

Statement = tuple[str, int, Sequence[tuple[int, int]]]


def fused_loop(statements: Sequence[Statement]) -> Any:
    """A compiled function of (rows, scalars, begin, end): one loop over begin ≤ j < end, in whole
    vectors, so that up to LANES − 1 numbers past the end are worked on as well.

    rows: a tuple of contiguous float64 rows, of which those written overlap with no other.
    scalars: a tuple of float64, (0.0,) if there are none.
    statements, in their order, where r, r' are places in ``rows`` and s in ``scalars``:
        ("add", r, ((s, r'), ...)): rows[r][j] += Σ scalars[s] · rows[r'][j].
        ("max", r, ((s, r'),)): rows[r][j] = max(rows[r][j], scalars[s] + rows[r'][j]).
        ("dot", k, ((r, r'), ...)): result[k] = Σ_j Σ rows[r][j] · rows[r'][j].

    The function returns the tuple of results, which starts with 0.0 and ends with the dots.
    """
    dots = sum(kind == "dot" for kind, _, _ in statements)

    def build(typingctx: Any, rows: Any, scalars: Any, begin: Any, end: Any) -> Any:
        result = types.UniTuple(types.float64, dots + 1)
        signature = result(rows, scalars, types.int64, types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args[0].types
            values = cgutils.unpack_tuple(builder, arguments[0], len(kinds))
            pointers = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(kinds, values)
            ]
            numbers = cgutils.unpack_tuple(builder, arguments[1], signature.args[1].count)
            spread = [_broadcast(builder, number) for number in numbers]
            totals = [cgutils.alloca_once(builder, _VECTOR) for _ in range(dots)]
            for total in totals:
                builder.store(ir.Constant(_VECTOR, [0.0] * LANES), total)
            begin, end = arguments[2:]
            step = begin.type(LANES)
            with cgutils.for_range_slice(builder, begin, end, step, begin.type) as (index, _):
                places = [
                    builder.bitcast(builder.gep(pointer, [index]), _VECTOR.as_pointer())
                    for pointer in pointers
                ]
                known: dict[int, Any] = {}

                def load(row: int) -> Any:
                    if row not in known:
                        known[row] = builder.load(places[row], align=8)
                    return known[row]

                for kind, target, terms in statements:
                    value = builder.load(totals[target]) if kind == "dot" else load(target)
                    for first, second in terms:
                        if kind == "max":
                            other = builder.fadd(spread[first], load(second))
                            larger = builder.fcmp_ordered(">", other, value)
                            value = builder.select(larger, other, value)
                            continue
                        left = load(first) if kind == "dot" else spread[first]
                        product = builder.fmul(left, load(second), flags=_FLAGS)
                        value = builder.fadd(value, product, flags=_FLAGS)
                    if kind == "dot":
                        builder.store(value, totals[target])
                    else:
                        known[target] = value
                        builder.store(value, places[target], align=8)
            sums = [_sum(builder, builder.load(total)) for total in totals]
            return context.make_tuple(builder, signature.return_type, [ir.DoubleType()(0.0), *sums])

        return signature, generate

    return intrinsic(build)


def _broadcast(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    lane = builder.insert_element(nothing, value, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(lane, nothing, mask)


def _sum(builder: Any, vector: Any) -> Any:
    width = LANES
    while width > 1:
        width //= 2
        mask = [i + width if i < width else i for i in range(LANES)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), mask)
        other = builder.shuffle_vector(vector, vector, mask)
        vector = builder.fadd(vector, other, flags=_FLAGS)
    return builder.extract_element(vector, ir.IntType(32)(0))
