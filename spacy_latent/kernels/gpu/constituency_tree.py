"""Binary constituency trees on a GPU: CKY, inside and outside.

Scores are ``[first word, last word]``. Charts are ``[length − 1, first word]``, filled in tiles as
in projective_tree. WEIGHT holds the weights of spans of at least two words, and SPAN the sums over
the trees of a span. OUTER holds the gradient of log Z with respect to SPAN, times the weight.
"""

import triton
import triton.language as tl

from spacy_latent.kernels.core.operations import BEST, HESSIAN_PRODUCT
from spacy_latent.kernels.gpu.programs import (
    FEASIBLE,
    INFEASIBLE,
    LOST,
    MARGINALS,
    MAXIMA,
    NOT_FINITE,
    SUMS,
    UNSOLVED,
    Plan,
    kernel,
    not_finite,
    state_of,
    tile,
)  # fmt: skip
from spacy_latent.kernels.gpu.semirings import (
    EMPTY,
    LOG,
    MAX,
    SUM,
    get,
    one,
    one_sum,
    plus,
    probability,
    put,
    times,
    weight,
)  # fmt: skip

WEIGHT, SPAN, OUTER = (tl.constexpr(chart) for chart in range(3))
CHARTS = 3
# A span of the best tree is marked with MARK times its index in the list, counted from 1. MARK
# exceeds all sums of scores.
MARK = tl.constexpr(1e301)


@triton.jit
def weigh(
    scores, along, charts, side, n, offset,
    KIND: tl.constexpr, DERIVED: tl.constexpr, PAIR: tl.constexpr,
    WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Fill WEIGHT, and the spans of one word in SPAN.

    Weights are relative to the largest score of a span of two or more words.

    Returns:
        The sum of the numbers subtracted from the scores of a tree's spans, the sum of the words'
        scores, and 1 if a score is not finite, else 0.
    """
    largest, words = tl.full((SPANS,), EMPTY, tl.float64), tl.zeros((SPANS,), tl.float64)
    wrong = tl.zeros((SPANS,), tl.int32)
    center = 0.0
    for writing in tl.static_range(2):
        for start in range(0, n, SPANS):
            i = start + tl.arange(0, SPANS)[None, :]
            for first in range(0, n, WAYS):
                length = first + tl.arange(0, WAYS)[:, None]
                keep = i + length < n
                score = tl.load(scores + i * side + i + length, keep, other=0.0).to(tl.float64)
                wide = keep & (length > 0)
                if writing:
                    derivative = tl.zeros_like(score)
                    if DERIVED:
                        at = along + i * side + i + length
                        derivative = tl.load(at, keep, other=0.0).to(tl.float64)
                    known = wide & (score != float("-inf"))
                    value, second = weight(score - center, derivative, known, KIND)
                    cell = WEIGHT * side * side + length * side + i
                    put(charts, cell, offset, value, second, wide, PAIR)
                else:
                    wrong = tl.maximum(wrong, tl.max(not_finite(score), 0))
                    largest = tl.maximum(largest, tl.max(tl.where(wide, score, EMPTY), 0))
                    words += tl.sum(tl.where(keep & (length == 0), score, 0.0), 0)
            if writing:
                unit = tl.full((SPANS,), one(KIND), tl.float64)
                cell = SPAN * side * side + start + tl.arange(0, SPANS)
                there = start + tl.arange(0, SPANS) < n
                put(charts, cell, offset, unit, tl.zeros_like(unit), there, PAIR)
        if not writing:
            center = tl.max(largest, 0)
            # For the best tree, the scores themselves are added, so that ties are broken as on the
            # CPU.
            center = tl.where((center > EMPTY) & (KIND != MAX), center, 0.0)
    tl.debug_barrier()
    return center * (n - 1), tl.sum(words, 0), tl.max(wrong, 0)


@triton.jit
def inside(
    charts, side, n, offset,
    KIND: tl.constexpr, PAIR: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Fill the sums over the trees of each span of at least two words, the shortest first."""
    weights, spans = WEIGHT * side * side, SPAN * side * side
    for length in range(1, n):
        for start in range(0, n - length, SPANS):
            i = start + tl.arange(0, SPANS)
            live, cell = i + length < n, length * side + i
            s, ds = get(charts, weights + cell, offset, live, KIND, PAIR and KIND != MAX)
            value, d = one_sum(
                *(charts, spans + i, spans + (length - 1) * side + i + 1, side, 1 - side),
                *(length + 0 * i, length, offset, live, KIND, PAIR, WAYS, SPANS),
            )
            value, d = times(value, d, s, ds, KIND)
            put(charts, spans + cell, offset, value, d, live, PAIR)
        tl.debug_barrier()


@triton.jit
def outside(
    charts, result, side, n, offset, inverse, d_inverse,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Fill OUTER, and write marginals, or their tangents if DERIVED.

    Args:
        inverse, d_inverse: 1/Z and its tangent.

    Returns:
        The sum of the marginals of spans of two or more words.
    """
    weights, spans, outer = WEIGHT * side * side, SPAN * side * side, OUTER * side * side
    mass = tl.zeros((SPANS,), tl.float64)
    for shorter in range(1, n):
        length = n - shorter
        for start in range(0, n - length, SPANS):
            i = start + tl.arange(0, SPANS)
            j, live, cell = i + length, i + length < n, length * side + i
            # Longer spans with the same first word, then with the same last word.
            longer, before = outer + cell + side, i - 1
            a, da = one_sum(
                *(charts, longer, spans + j + 1, side, side, n - 1 - j, n - 1 - length - start),
                *(offset, live, KIND, DERIVED, WAYS, SPANS),
            )
            most = tl.minimum(start + SPANS - 1, n - 1 - length)
            b, db = one_sum(
                *(charts, longer - 1, spans + before, side - 1, side - 1, i, most),
                *(offset, live, KIND, DERIVED, WAYS, SPANS),
            )
            a, da = plus(a, da, b, db, KIND)
            whole = length == n - 1
            a, da = tl.where(whole, inverse, a), tl.where(whole, d_inverse, da)
            s, ds = get(charts, weights + cell, offset, live, KIND, DERIVED)
            x, dx = get(charts, spans + cell, offset, live, KIND, DERIVED)
            x, dx = times(x, dx, a, da, KIND)
            a, da = times(a, da, s, ds, KIND)
            put(charts, outer + cell, offset, a, da, live, DERIVED)
            x, dx = probability(x, dx, KIND)
            mass += tl.where(live, x, 0.0)
            tl.store(result + i * side + j, dx if DERIVED else x, live)
        tl.debug_barrier()
    if not DERIVED:
        for start in range(0, n, SPANS):
            i = start + tl.arange(0, SPANS)
            tl.store(result + i * side + i, 1.0 + 0.0 * i, i < n)
    return tl.sum(mass, 0)


@triton.jit
def backtrack(charts, best, side, n, offset, SPANS: tl.constexpr):
    """Write the spans of the best tree, by marking them from the longest down.

    The order is the same as on the CPU: a span, then all spans in its right part, then all in its
    left part.
    """
    spans = SPAN * side * side
    # Other threads may still be reading the sum over the whole sentence.
    tl.debug_barrier()
    tl.store(charts + spans + (n - 1) * side, MARK)
    tl.debug_barrier()
    for shorter in range(1, n):
        length = n - shorter
        for start in range(0, n - length, SPANS):
            i = start + tl.arange(0, SPANS)
            live = i + length < n
            value, split = get(charts, spans + length * side + i, offset, live, MAX, True)
            here = live & (value >= MARK)
            place, k = (value / MARK + 0.5).to(tl.int32), split.to(tl.int32)
            tl.store(best + 2 * place - 2, i, here)
            tl.store(best + 2 * place - 1, i + length, here)
            # The left part has k + 1 words. The right part has length − k words, one more than
            # spans.
            right = length - 1 - k
            left_place = place + 1 + right
            tl.store(charts + spans + right * side + i + k + 1, (place + 1) * MARK, here)
            tl.store(charts + spans + k * side + i, left_place * MARK, here)
        tl.debug_barrier()


@kernel
def constituency_trees(
    scores, lengths, along, workspace, log_partition, result, status,
    first, size, operation, side, tags, direction, longest, single_root,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Write sums with their marginals or Hessian products, or best trees."""
    PAIR: tl.constexpr = DERIVED or KIND == MAX
    program = tl.program_id(0).to(tl.int64)
    item = first + program
    n, area = tl.load(lengths + item).to(tl.int32), side * side
    if KIND == LOG:
        if tl.load(status + item) != UNSOLVED:
            n = n * 0
    if n > 0:
        charts, offset = workspace + program * size, size // 2
        taken, words, wrong = weigh(
            *(scores + item * area, along + item * area, charts, side, n, offset),
            *(KIND, DERIVED, PAIR, WAYS, SPANS),
        )
        inside(charts, side, n, offset, KIND, PAIR, WAYS, SPANS)
        top = SPAN * area + (n - 1) * side
        total = tl.load(charts + top)
        failure: tl.constexpr = UNSOLVED if KIND == SUM else INFEASIBLE
        found = tl.where(words > float("-inf"), state_of(total, n, KIND), failure)
        found = tl.where(wrong > 0, NOT_FINITE, found)
        if KIND == MAX:
            if (found == FEASIBLE) & (n > 1):
                backtrack(charts, result + item * side * 2, side, n, offset, SPANS)
        else:
            log_total = tl.log(total) if KIND == SUM else total
            tl.store(log_partition + item, log_total + taken + words)
            if (operation >= MARGINALS) & (found == FEASIBLE):
                inverse = 1.0 / total if KIND == SUM else -total
                d_inverse = 0.0 * inverse
                if DERIVED:
                    d_total = tl.load(charts + top + offset)
                    d_inverse = -d_total * inverse * inverse if KIND == SUM else -d_total
                mass = outside(
                    *(charts, result + item * area, side, n, offset, inverse, d_inverse),
                    *(KIND, DERIVED, WAYS, SPANS),
                )
                # A tree has n − 1 such spans. A different sum shows that the outside pass lost
                # precision.
                if KIND == SUM:
                    kept = tl.abs(mass - (n - 1)) <= n * LOST
                    found = tl.where(kept, FEASIBLE, UNSOLVED)
        tl.store(status + item, found)


def plan(shape: tuple[int, ...], operation: int) -> Plan:
    """Return the launch parameters for scores of this shape."""
    side, pair = shape[1], operation in (BEST, HESSIAN_PRODUCT)
    size = CHARTS * (2 if pair else 1) * side * side
    constants, warps = (tile(16, 32), 4) if side <= 64 else (tile(32, 32), 8)
    kinds = MAXIMA if operation == BEST else SUMS
    return Plan(constituency_trees, size, kinds, constants, {"num_warps": warps})
