"""Linear chains on a GPU: forward and backward sums, best sequences, and Hessian products.

Scores are ``[position, tag before, tag]``. The scores of the first position are in its row 0. Row i
of the forward chart is the sum before position i, with the initial values in row 0. Row i of the
backward chart is the sum from position i on.

Sums are logarithms, since reading the scores takes longer than computing exponentials. Each row is
computed relative to the largest entry of the row before. Sums over long texts then lose no digits.
Hessian products are computed from marginals.
"""

import triton
import triton.language as tl

from spacy_latent.kernels.core.operations import BEST
from spacy_latent.kernels.gpu.programs import (
    EMPTY_TOTAL,
    FEASIBLE,
    INFEASIBLE,
    LARGE,
    MARGINALS,
    MAXIMA,
    NOT_FINITE,
    TOO_LARGE,
    Plan,
    kernel,
    tile,
)  # fmt: skip
from spacy_latent.kernels.gpu.semirings import (
    EMPTY,
    LOG,
    MAX,
    add,
    begin,
    finish,
    put,
    times,
    weight,
)  # fmt: skip


@triton.jit
def read(scores, i, before, tag, tags):
    """Return the scores of transitions as float64, and a mask of the allowed ones."""
    # At the first position only row 0 is read.
    there = (before < tags) & (tag < tags) & (before <= i * tags)
    score = tl.load(scores + (i * tags + before) * tags + tag, there, other=0.0).to(tl.float64)
    return score, there & (score != float("-inf"))


@triton.jit
def largest(row, tags, SPANS: tl.constexpr):
    """Return the largest number of a row, or 0 if it is EMPTY."""
    top = tl.full((SPANS,), EMPTY, tl.float64)
    for start in range(0, tags, SPANS):
        t = start + tl.arange(0, SPANS)
        top = tl.maximum(top, tl.load(row + t, t < tags, other=EMPTY))
    found = tl.max(top, 0)
    return tl.where(found > EMPTY_TOTAL, found, 0.0)


@triton.jit
def joined(row, tags, KIND: tl.constexpr, WAYS: tl.constexpr, gap=0):
    """Return the sum of a row; if ``gap`` > 0, of its product with the row ``gap`` after it.

    For maxima, the first tag with the maximum is returned, too.
    """
    top, total, extra = begin(WAYS, 1)
    for start in range(0, tags, WAYS):
        t = start + tl.arange(0, WAYS)[:, None]
        value = tl.load(row + t, t < tags, other=EMPTY)
        if gap > 0:
            value += tl.load(row + gap + t, t < tags, other=EMPTY)
        top, total, extra = add(top, total, extra, value, t + 0.0 * value, KIND)
    found, tag = finish(top, total, extra, KIND)
    return tl.sum(found, 0), tl.sum(tag, 0)


@triton.jit
def forward(
    scores, chart, offset, n, tags, KIND: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr
):  # fmt: skip
    """Fill the forward chart and, ``offset`` after it, the best previous tags.

    Returns:
        The sum of the subtracted numbers, the lowest of them, and the highest score after the first
        position, which is +inf if a score is not finite.
    """
    shift, lowest = tl.zeros((1,), tl.float64), tl.zeros((1,), tl.float64)
    highest = tl.zeros((WAYS, SPANS), tl.float64)
    for start in range(0, tags, SPANS):
        t = start + tl.arange(0, SPANS)
        tl.store(chart + t, tl.where(t == 0, 0.0, EMPTY), t < tags)
    tl.debug_barrier()
    for i in range(0, n):
        center = 0.0
        if KIND == LOG:
            center = largest(chart + i * tags, tags, SPANS)
            shift += center
            lowest = tl.minimum(lowest, tl.where(i > 1, center, 0.0))
        for start in range(0, tags, SPANS):
            t = start + tl.arange(0, SPANS)
            top, total, extra = begin(WAYS, SPANS)
            for first in range(0, tags, WAYS):
                p = first + tl.arange(0, WAYS)[:, None]
                score, keep = read(scores, i, p, t[None, :], tags)
                counted = tl.where(i > 0, score, 0.0)
                finite = score < float("inf")
                highest = tl.maximum(highest, tl.where(finite, counted, float("inf")))
                value, second = weight(score, 0.0 * score, keep, KIND)
                a = tl.load(chart + i * tags + p, p < tags, other=EMPTY) - center
                value, second = times(a, 0.0 * a, value, second, KIND)
                top, total, extra = add(top, total, extra, value, p + 0.0 * value, KIND)
            value, second = finish(top, total, extra, KIND)
            put(chart, (i + 1) * tags + t, offset, value, second, t < tags, KIND == MAX)
        tl.debug_barrier()
    return tl.sum(shift, 0), tl.sum(lowest, 0), tl.max(tl.max(highest, 0), 0)


@triton.jit
def backward(
    scores, chart, result, offset, n, tags, WAYS: tl.constexpr, SPANS: tl.constexpr
):  # fmt: skip
    """Fill the backward chart, ``offset`` after the forward chart, and write the marginals."""
    rows = chart + offset
    for start in range(0, tags, SPANS):
        t = start + tl.arange(0, SPANS)
        tl.store(rows + n * tags + t, tl.zeros((SPANS,), tl.float64), t < tags)
    tl.debug_barrier()
    for done in range(0, n):
        i = n - 1 - done
        after = rows + (i + 1) * tags
        norm, _tag = joined(chart + (i + 1) * tags, tags, LOG, WAYS, offset)
        norm += largest(chart + i * tags, tags, SPANS)
        center = largest(after, tags, SPANS)
        for first in range(0, tags, WAYS):
            p = first + tl.arange(0, WAYS)
            top, total, extra = begin(WAYS, SPANS)
            a = tl.load(chart + i * tags + p, p < tags, other=EMPTY)[:, None] - norm
            for start in range(0, tags, SPANS):
                t = start + tl.arange(0, SPANS)[None, :]
                score, keep = read(scores, i, p[:, None], t, tags)
                b = tl.load(after + t, t < tags, other=EMPTY)
                value = tl.where(keep, score + (b - center), EMPTY)
                top, total, extra = add(top, total, extra, value, 0.0 * value, LOG)
                share = tl.exp(tl.where(keep, a + score + b, EMPTY))
                tl.store(result + (i * tags + p[:, None]) * tags + t, share, keep)
            value, _second = finish(top, total, extra, LOG, 1)
            tl.store(rows + i * tags + p, value, p < tags)
        tl.debug_barrier()


@triton.jit
def read_shares(marginals, along, i, before, tag, tags):
    """Return marginals, and the entries of ``along`` with a marginal above 0."""
    share, keep = read(marginals, i, before, tag, tags)
    at = along + (i * tags + before) * tags + tag
    return share, tl.load(at, keep & (share > 0.0), other=0.0).to(tl.float64), keep


@triton.jit
def mean_of(value, mass):
    """Return the value divided by its mass, 0 for a mass of 0."""
    return tl.where(mass > 0.0, value / tl.where(mass > 0.0, mass, 1.0), 0.0)


@triton.jit
def product(
    marginals, along, chart, result, offset, n, tags, WAYS: tl.constexpr, SPANS: tl.constexpr
):  # fmt: skip
    """Write the product of the Hessian with ``along``.

    Its entry for a transition is the marginal times the expected sum of ``along`` given the
    transition, less the expected sum. The forward chart holds the expected sums up to each tag. The
    backward chart holds the expected sums after each tag, less the expected sum of the whole chain.
    """
    all_value, all_mass = tl.zeros((SPANS,), tl.float64), tl.zeros((SPANS,), tl.float64)
    for start in range(0, tags, SPANS):
        t = start + tl.arange(0, SPANS)
        tl.store(chart + t, tl.zeros((SPANS,), tl.float64), t < tags)
    tl.debug_barrier()
    for i in range(0, n):
        for start in range(0, tags, SPANS):
            t = start + tl.arange(0, SPANS)
            value = tl.zeros((WAYS, SPANS), tl.float64)
            mass = tl.zeros((WAYS, SPANS), tl.float64)
            for first in range(0, tags, WAYS):
                p = first + tl.arange(0, WAYS)[:, None]
                share, change, _ = read_shares(marginals, along, i, p, t[None, :], tags)
                value += share * (tl.load(chart + i * tags + p, p < tags, other=0.0) + change)
                mass += share
            values, masses = tl.sum(value, 0), tl.sum(mass, 0)
            all_value += tl.where(i == n - 1, values, 0.0)
            all_mass += tl.where(i == n - 1, masses, 0.0)
            tl.store(chart + (i + 1) * tags + t, mean_of(values, masses), t < tags)
        tl.debug_barrier()
    rows, mean = chart + offset, mean_of(tl.sum(all_value, 0), tl.sum(all_mass, 0))
    for start in range(0, tags, SPANS):
        t = start + tl.arange(0, SPANS)
        tl.store(rows + n * tags + t, tl.zeros((SPANS,), tl.float64) - mean, t < tags)
    tl.debug_barrier()
    for done in range(0, n):
        i = n - 1 - done
        for first in range(0, tags, WAYS):
            p = first + tl.arange(0, WAYS)
            value = tl.zeros((WAYS, SPANS), tl.float64)
            mass = tl.zeros((WAYS, SPANS), tl.float64)
            before = tl.load(chart + i * tags + p, p < tags, other=0.0)[:, None]
            for start in range(0, tags, SPANS):
                t = start + tl.arange(0, SPANS)[None, :]
                share, change, keep = read_shares(marginals, along, i, p[:, None], t, tags)
                rest = tl.load(rows + (i + 1) * tags + t, t < tags, other=0.0)
                inner = share * (change + rest)
                value += inner
                mass += share
                at = result + (i * tags + p[:, None]) * tags + t
                tl.store(at, inner + share * before, keep)
            found = mean_of(tl.sum(value, 1), tl.sum(mass, 1))
            tl.store(rows + i * tags + p, found, p < tags)
        tl.debug_barrier()


@triton.jit
def backtrack(chart, best, tag, offset, n, tags):
    """Write the tags of the best sequence from its last tag."""
    for done in range(0, n):
        i = n - 1 - done
        tl.store(best + i, tag)
        tag = tl.load(chart + offset + (i + 1) * tags + tag).to(tl.int32)


@kernel
def chains(
    scores, lengths, along, workspace, log_partition, result, status,
    first, size, operation, side, tags, direction, longest, single_root,
    KIND: tl.constexpr, DERIVED: tl.constexpr, WAYS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Solve one item; if DERIVED, ``scores`` are the marginals."""
    program = tl.program_id(0).to(tl.int64)
    item = first + program
    n = tl.load(lengths + item).to(tl.int32)
    if n > 0:
        place, chart, offset = item * side * tags * tags, workspace + program * size, size // 2
        scores += place
        if DERIVED:
            product(scores, along + place, chart, result + place, offset, n, tags, WAYS, SPANS)
        else:
            shift, lowest, highest = forward(scores, chart, offset, n, tags, KIND, WAYS, SPANS)
            # If a centred sum is too low, rounding hides the differences between likely sequences.
            total, tag = joined(chart + n * tags, tags, KIND, WAYS)
            lowest = tl.minimum(lowest, tl.where(n > 1, total, 0.0))
            found = tl.where(total > EMPTY_TOTAL, FEASIBLE, INFEASIBLE)
            if KIND == LOG:
                lost = (lowest < -LARGE) | (highest > LARGE)
                found = tl.where((found == FEASIBLE) & lost, TOO_LARGE, found)
            found = tl.where(highest < float("inf"), found, NOT_FINITE)
            tl.store(status + item, found)
            if KIND == MAX:
                if found == FEASIBLE:
                    backtrack(chart, result + item * side, tag.to(tl.int32), offset, n, tags)
            else:
                tl.store(log_partition + item, total + shift)
                if (operation >= MARGINALS) & (found != NOT_FINITE) & (found != INFEASIBLE):
                    backward(scores, chart, result + place, offset, n, tags, WAYS, SPANS)


def plan(shape: tuple[int, ...], operation: int) -> Plan:
    """Return the launch parameters for scores of this shape."""
    side, tags = shape[1], shape[3]
    ways = min(32, max(2, triton.next_power_of_2(tags)))
    kinds = MAXIMA if operation == BEST else (LOG.value,)
    size = 2 * (side + 1) * tags
    warps = {"num_warps": 4 if ways > 8 else 1}
    return Plan(chains, size, kinds, tile(ways, ways), warps)
