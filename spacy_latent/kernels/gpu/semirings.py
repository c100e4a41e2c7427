"""Semirings of the GPU recurrences, as functions for kernels in Triton.

A recurrence is written once, with these functions. ``KIND`` selects the semiring when a kernel is
compiled:

SUM: weights e^score in float64, with (+, ×). It is fast, but the weights must be scaled so that no
sum overflows or underflows.
LOG: logarithms of weights, of any range. Each term of a sum costs an exponential.
MAX: scores, with (max, +).

If ``PAIR`` is true, each number has a second one: its tangent (SUM, LOG) or the best split (MAX).
It is stored ``offset`` numbers after the first.

−inf is replaced by EMPTY, which stays finite however often it is added. Forbidden parts thus cause
no NaN and need no branches.

Sums over the splits of a span run over tiles ``[split, span]``. Each thread adds its own splits
while other loads are in flight. The sums of the threads are reduced once, in ``finish``.
"""

import triton
import triton.language as tl

SUM, LOG, MAX = (tl.constexpr(kind) for kind in range(3))
EMPTY = tl.constexpr(-1e300)


@triton.jit
def zero(KIND: tl.constexpr):
    """Return the sum of nothing."""
    return 0.0 if KIND == SUM else EMPTY


@triton.jit
def one(KIND: tl.constexpr):
    """Return the product of nothing."""
    return 1.0 if KIND == SUM else 0.0


@triton.jit
def times(a, da, b, db, KIND: tl.constexpr):
    """Return a · b."""
    if KIND == SUM:
        return a * b, a * db + da * b
    else:
        return a + b, da + db


@triton.jit
def plus(a, da, b, db, KIND: tl.constexpr):
    """Return a + b; at a tie of maxima, a."""
    if KIND == SUM:
        return a + b, da + db
    elif KIND == MAX:
        return tl.where(a >= b, a, b), tl.where(a >= b, da, db)
    else:
        top = tl.maximum(a, b)
        first, second = tl.exp(a - top), tl.exp(b - top)
        whole = first + second
        return top + tl.log(whole), (first * da + second * db) / whole


@triton.jit
def over(a, da, b, db, KIND: tl.constexpr):
    """Return a / b."""
    if KIND == SUM:
        return a / b, (da - a / b * db) / b
    else:
        return a - b, da - db


@triton.jit
def probability(a, da, KIND: tl.constexpr):
    """Return a weight and its tangent as plain numbers."""
    if KIND == LOG:
        return tl.exp(a), tl.exp(a) * da
    else:
        return a, da


@triton.jit
def weight(score, along, keep, KIND: tl.constexpr):
    """Return the number of a part with that score, and its tangent; zero outside of ``keep``."""
    if KIND == SUM:
        value = tl.where(keep, tl.exp(score), 0.0)
        return value, value * along
    elif KIND == LOG:
        return tl.where(keep, score, EMPTY), tl.where(keep, along, 0.0)
    else:
        return tl.where(keep, score, EMPTY), tl.zeros_like(score)


@triton.jit
def get(chart, at, offset, keep, KIND: tl.constexpr, PAIR: tl.constexpr):
    """Return the number that ``put`` has written; zero outside of ``keep``."""
    value = tl.load(chart + at, keep, other=zero(KIND))
    second = tl.zeros_like(value)
    if PAIR:
        second = tl.load(chart + at + offset, keep, other=0.0)
    return value, second


@triton.jit
def put(chart, at, offset, value, second, keep, PAIR: tl.constexpr):
    """Store a number, and its second one if ``PAIR``, at entries in ``keep``."""
    tl.store(chart + at, value, keep)
    if PAIR:
        tl.store(chart + at + offset, second, keep)


@triton.jit
def begin(WAYS: tl.constexpr, SPANS: tl.constexpr):
    """Return empty running sums for ``add`` and ``finish``.

    They are the largest term, the sum, and the sum of the second numbers. SUM uses the last two,
    and MAX the first and the last.
    """
    nothing = tl.zeros((WAYS, SPANS), tl.float64)
    return nothing + EMPTY, nothing, nothing


@triton.jit
def add(top, total, extra, value, second, KIND: tl.constexpr):
    """Add a tile of numbers to running sums; MAX keeps the ``second`` of the largest number."""
    if KIND == SUM:
        return top, total + value, extra + second
    elif KIND == MAX:
        return tl.maximum(top, value), total, tl.where(value > top, second, extra)
    else:
        share = tl.exp(-tl.abs(value - top))
        old, new = tl.where(value > top, share, 1.0), tl.where(value > top, 1.0, share)
        return tl.maximum(top, value), total * old + new, extra * old + new * second


@triton.jit
def add_products(
    top, total, extra, chart, a, b, way, offset, keep, KIND: tl.constexpr, PAIR: tl.constexpr
):
    """Add the products of the numbers at ``a`` and ``b``; MAX keeps the split ``way``."""
    DERIVED: tl.constexpr = PAIR and KIND != MAX
    x, dx = get(chart, a, offset, keep, KIND, DERIVED)
    y, dy = get(chart, b, offset, keep, KIND, DERIVED)
    value, second = times(x, dx, y, dy, KIND)
    if KIND == MAX:
        second += way
    return add(top, total, extra, value, second, KIND)


@triton.jit
def _sum3(a1, a2, a3, b1, b2, b3):
    return a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _max3(a1, a2, a3, b1, b2, b3):
    return tl.maximum(a1, b1), tl.maximum(a2, b2), tl.maximum(a3, b3)


@triton.jit
def relative(top, total, extra, largest, KIND: tl.constexpr):
    """Return running sums relative to a larger term, so that they can be added."""
    if KIND == LOG:
        share = tl.exp(top - largest)
        return total * share, extra * share
    else:
        return total, extra


@triton.jit
def absolute(largest, total, extra, KIND: tl.constexpr):
    """Return the number from running sums relative to ``largest``."""
    if KIND == LOG:
        known = total > 0.0
        value = tl.where(known, largest + tl.log(total), EMPTY)
        return value, tl.where(known, extra / total, 0.0)
    else:
        return total, extra


@triton.jit
def finish(top, total, extra, KIND: tl.constexpr, axis: tl.constexpr = 0):
    """Return the sum of running sums over an axis; at a tie of maxima, with the first split."""
    largest = tl.max(top, axis, keep_dims=True)
    if KIND == MAX:
        way = tl.min(tl.where(top == largest, extra, 1e9), axis)
        return tl.max(top, axis), way
    else:
        total, extra = relative(top, total, extra, largest, KIND)
        total, extra = tl.sum(total, axis), tl.sum(extra, axis)
        return absolute(tl.max(top, axis), total, extra, KIND)


@triton.jit
def finish_three(
    top1, total1, extra1, top2, total2, extra2, top3, total3, extra3,
    KIND: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Run ``finish`` on three sums over axis 0, with a third of the barriers."""
    large1, large2, large3 = top1, top2, top3
    if KIND != SUM:
        large1, large2, large3 = tl.reduce((top1, top2, top3), 0, _max3)
    if KIND == MAX:
        extra1 = tl.where(top1 == large1[None, :], -extra1, -1e9)
        extra2 = tl.where(top2 == large2[None, :], -extra2, -1e9)
        extra3 = tl.where(top3 == large3[None, :], -extra3, -1e9)
        way1, way2, way3 = tl.reduce((extra1, extra2, extra3), 0, _max3)
        return large1, -way1, large2, -way2, large3, -way3
    else:
        if KIND == LOG:
            total1, extra1 = relative(top1, total1, extra1, large1[None, :], KIND)
            total2, extra2 = relative(top2, total2, extra2, large2[None, :], KIND)
            total3, extra3 = relative(top3, total3, extra3, large3[None, :], KIND)
        total1, total2, total3 = tl.reduce((total1, total2, total3), 0, _sum3)
        d1, d2, d3 = 0.0 * total1, 0.0 * total2, 0.0 * total3
        if PAIR:
            d1, d2, d3 = tl.reduce((extra1, extra2, extra3), 0, _sum3)
        total1, d1 = absolute(large1, total1, d1, KIND)
        total2, d2 = absolute(large2, total2, d2, KIND)
        total3, d3 = absolute(large3, total3, d3, KIND)
        return total1, d1, total2, d2, total3, d3


@triton.jit
def one_sum(
    chart, a0, b0, a_step, b_step, count, most, offset, live,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Return Σ_{k < count} x_k·y_k for each of SPANS.

    x_k is at a0 + k·a_step, and y_k at b0 + k·b_step. ``most`` is the largest count.
    """
    top, total, extra = begin(WAYS, SPANS)
    for first in range(0, most, WAYS):
        k = (first + tl.arange(0, WAYS))[:, None]
        keep = live[None, :] & (k < count[None, :])
        a, b = a0 + k * a_step, b0 + k * b_step
        products = add_products(top, total, extra, chart, a, b, k, offset, keep, KIND, PAIR)
        top, total, extra = products
    return finish(top, total, extra, KIND)


@triton.jit
def three_sums(
    chart, a1, b1, a2, b2, a3, b3, a_step, b_step, count, most, less, offset, live,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Run ``one_sum`` three times with the same steps, with six loads in flight at once.

    The last two sums run over k < count − less.
    """
    top1, total1, extra1 = begin(WAYS, SPANS)
    top2, total2, extra2 = begin(WAYS, SPANS)
    top3, total3, extra3 = begin(WAYS, SPANS)
    for first in range(0, most, WAYS):
        k = (first + tl.arange(0, WAYS))[:, None]
        a, b = k * a_step, k * b_step
        keep = live[None, :] & (k < count[None, :])
        fewer = live[None, :] & (k < count[None, :] - less)
        top1, total1, extra1 = add_products(
            top1, total1, extra1, chart, a + a1, b + b1, k, offset, keep, KIND, PAIR
        )
        top2, total2, extra2 = add_products(
            top2, total2, extra2, chart, a + a2, b + b2, k, offset, fewer, KIND, PAIR
        )
        top3, total3, extra3 = add_products(
            top3, total3, extra3, chart, a + a3, b + b3, k, offset, fewer, KIND, PAIR
        )
    return finish_three(
        top1, total1, extra1, top2, total2, extra2, top3, total3, extra3, KIND, PAIR
    )
