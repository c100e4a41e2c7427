"""Shared helpers of the GPU kernels: compilation, launch, and reading of arcs.

A kernel has one program for each item of a batch.

Args:
    scores, lengths: ``(B, side, ..., tags)`` float32 or float64, and ``(B,)``. Padding is not read.
    along: the vector of a Hessian product, in the shape of the scores.
    workspace: ``size`` float64 numbers for each program, uninitialised.
    log_partition, result, status: written. At the call they are filled with 0, with 0 (−1 for best
        structures), and with FEASIBLE. A kernel of LOG only solves items that SUM left UNSOLVED.
    first: the item of the first program.
    operation: a code from kernels.core.operations.
    direction, longest, single_root: options of dependency trees; 0 for other structures.
    KIND, DERIVED: the semiring (see semirings), and whether numbers have tangents.

A program only synchronises its own threads, at ``tl.debug_barrier()``. A value that one thread has
written may be read by another only after the next barrier.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

from spacy_latent.kernels.core import operations
from spacy_latent.kernels.core import status as statuses
from spacy_latent.kernels.gpu.semirings import LOG, MAX, SUM

FEASIBLE, INFEASIBLE = tl.constexpr(statuses.FEASIBLE), tl.constexpr(statuses.INFEASIBLE)
NOT_FINITE, UNSOLVED = tl.constexpr(statuses.NOT_FINITE), tl.constexpr(statuses.UNSOLVED)
TOO_LARGE, LARGE = tl.constexpr(statuses.TOO_LARGE), tl.constexpr(statuses.LARGE)
MARGINALS = tl.constexpr(operations.MARGINALS)
# No weight is above 1, so every part of a structure weighs at least as much as the structure. If
# the sum over structures is above e^LEAST_LOG, no relevant part underflows in float64.
LEAST_LOG = tl.constexpr(-600.0)
# A sum of logarithms below this includes an EMPTY term.
EMPTY_TOTAL = tl.constexpr(-5e299)
# Largest relative error of a sum of marginals. If it is exceeded, the item is UNSOLVED.
LOST = tl.constexpr(1e-10)


class Plan(NamedTuple):
    """The launch parameters of a batch.

    Attributes:
        kernel: launched once for each of ``kinds``, in order.
        size: the size of the workspace of a program, in float64 numbers.
        constants: further constants of the kernel, by name.
        threads: Triton's options for the threads of a program, such as ``num_warps``.
    """

    kernel: Any
    size: int
    kinds: tuple[int, ...]
    constants: dict[str, int]
    threads: dict[str, int]


SUMS, MAXIMA = (SUM.value, LOG.value), (MAX.value,)


def kernel(function: Callable[..., None]) -> Any:
    """Compile a function once for each combination of argument types and constants.

    Constants have names in capitals. By default Triton would also specialise the function for
    integers divisible by 16.
    """
    names = [name for name in inspect.signature(function).parameters if not name.isupper()]
    return triton.jit(function, do_not_specialize=names)


def tile(ways: int, spans: int) -> dict[str, int]:
    """Return the constants of a kernel with tiles ``[ways, spans]``."""
    return {"WAYS": ways, "SPANS": spans}


@triton.jit
def read_arcs(scores, head, modifier, side, n, direction, longest):
    """Return the scores of arcs, and a mask of the arcs that arc_scores.is_arc allows."""
    keep = (head != modifier) & (modifier > 0) & (head <= n) & (modifier <= n)
    longest = tl.where(longest < 0, n, longest)
    keep &= (head == 0) | (direction * (modifier - head) <= 0)
    keep &= (head == 0) | (tl.abs(head - modifier) <= longest)
    score = tl.load(scores + head * side + modifier, keep, other=0.0).to(tl.float64)
    return score, keep & (score != float("-inf"))


@triton.jit
def not_finite(score):
    """Return 1 if a score is NaN or +inf, else 0."""
    return tl.where(score < float("inf"), 0, 1)


@triton.jit
def state_of(total, count, KIND: tl.constexpr):
    """Return the status of an item, from the sum over its structures of ``count`` parts.

    SUM never reports INFEASIBLE, since its weights may underflow; LOG decides.
    """
    if KIND == SUM:
        known = (total < float("inf")) & (tl.log(total) > LEAST_LOG)
        return tl.where(known, FEASIBLE, UNSOLVED)
    else:
        found = tl.where(total > EMPTY_TOTAL, FEASIBLE, INFEASIBLE)
        if KIND == LOG:
            # No score is above 0, so a very low sum has very low scores. Rounding then hides the
            # differences between likely structures.
            found = tl.where((found == FEASIBLE) & (total < count * -LARGE), TOO_LARGE, found)
        return found
