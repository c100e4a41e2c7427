"""Kernels with a block of threads for each item, for a GPU.

A body is made by a function of ``(jit, sync)``: it and what it calls are compiled by ``jit``, and
``sync()`` waits for the other threads of the block. With numba's ``njit`` and one thread it runs on
the CPU, see :func:`alone`; with ``numba.cuda`` it is the kernel, see kernels.just_in_time. Neither
allocates; and no ``min`` or ``max``, which ``numba.cuda`` of some versions cannot compile.

Bodies take ``item, thread, threads, room`` and the arguments named in :class:`Blocks`; they read no
padding. ``room`` is a row of float64 for the item. All threads of a block must come to the same
``sync()``. Charts hold logarithms, one thread a cell: no sum can under- or overflow, so one kernel
serves all scores, and cells of neighbours lie side by side in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple
from warnings import warn

import numpy as np
import torch
from numba import njit
from torch import Tensor

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.kernels.operations import BEST, HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.status import FEASIBLE, LARGE, TOO_LARGE
from spacy_latent.kernels.transfers import fetch

Body = Callable[..., Any]
# Blocks, operation, dtype and options.
Key = tuple["Blocks", int, torch.dtype, tuple[int, ...]]
Maker = Callable[[Callable[[Body], Body], Callable[[], None]], Body]

LARGEST_BLOCK = 256
# Batches of fewer items are solved on the CPU. A block takes as long for one item as for a hundred:
# for one to eight items an H200 took, on average over operations and lengths, 1.3 to 3.3 times as
# long as sixteen cores of its machine, by structure, and for 32 items 0.8 to 1.7 times
# (benchmarks/RESULTS.md, "On a GPU"). Steps that are captured in a graph of CUDA can ask no CPU:
# they need 1.
LEAST_ITEMS = 16
# What this GPU turned out not to do.
_failed: set[Blocks] = set()
# What has given, once in this process, what the CPU gives: a kernel, on a whole batch, and under a
# key with one more option what it is joined with.
_confirmed: set[Key] = set()
JOINED = -1
# Of the largest number: how far float32 and other orders of sums may bring results apart.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Blocks:
    """The kernels of a family for a GPU.

    best: makes a body (..., scores, lengths, options, best, status); best comes filled with −1,
        status with FEASIBLE.
    total: makes a body (..., scores, lengths, options, along, operation, log_partition, result,
        status), see ``Family.total``. All numbers have the dtype of the scores; log_partition and
        result come filled with 0. Where the family has a ``product``, HESSIAN_PRODUCT gets the
        marginals in place of the scores.
    room: numbers of ``room`` from the shape of the scores and the operation, which is BEST for the
        best.
    threads: how many can have work at once, from the same.
    batched: what total is, of a whole batch by torch's own operations, from (scores, lengths,
        options, operation, along); asked where scores have ``batched_from`` places or more. The
        kernel does the items that it does not answer for.
    """

    best: Maker
    total: Maker
    room: Callable[[torch.Size, int], int]
    threads: Callable[[torch.Size, int], int]
    batched: Callable[[Tensor, Tensor, Sequence[int], int, Tensor], Batched] | None = None
    batched_from: int = 0

    def block(self, shape: torch.Size, operation: int) -> int:
        """Threads of a block: whole warps."""
        return min(-(-self.threads(shape, operation) // 32) * 32, LARGEST_BLOCK)


class Batched(NamedTuple):
    """The result, which the log-partition alone has not, and the log-partition of the items that
    are ``trusted`` ``(B,)``; anything of the others."""

    result: Tensor | None
    log_partition: Tensor
    trusted: Tensor


class Found(NamedTuple):
    """result: the best structures, the marginals or the product. log_partition: ``(B,)``; None
    where there is none. status: a tensor where it is still on the GPU."""

    result: Tensor
    log_partition: Tensor | None
    status: np.ndarray | Tensor

    def agrees(self, other: Found, scores: Tensor) -> bool | None:
        """Whether it is what the CPU has found for these scores; None where nothing could be told
        apart: all is 0, as first gradients often are, or not finite. Of items whose scores may be
        larger than a block can sum, nothing is told."""
        status = read_status(self.status)
        summed = status != TOO_LARGE
        if not np.array_equal(status[summed], other.status[summed]):
            return False
        if not _may_be_too_large(scores)[~summed].all():
            return False
        solved = torch.from_numpy(summed & (other.status == FEASIBLE))
        pairs = [(self.result, other.result)]
        if self.log_partition is not None and other.log_partition is not None:
            pairs.append((self.log_partition, other.log_partition))
        told = False
        for own, reference in pairs:
            # Of the log-partition alone there is no other result.
            if own.shape != reference.shape or not reference.numel():
                continue
            own, reference = fetch(own)[solved].double(), reference[solved].double()
            largest = float(reference.abs().max()) if reference.numel() else 0.0
            if not 0.0 < largest < float("inf"):
                continue
            if not torch.allclose(own, reference, 0.0, TOLERANCE * largest):
                return False
            told = True
        return told or None


def _may_be_too_large(scores: Tensor) -> np.ndarray:
    """Of which items. What is looked at is a sum of differences of two scores, as many as an item
    has places, or a part of such a sum."""
    if not scores.numel():
        return np.zeros(len(scores), dtype=bool)
    known = torch.where(scores.isfinite(), scores.detach().double().abs(), 0.0)
    bound = LARGE / (4 * max(scores.shape[1:]))
    return fetch(known.flatten(1).amax(1) > bound).numpy()


def read_status(status: np.ndarray | Tensor) -> np.ndarray:
    """The statuses, with a wait where they are on a GPU."""
    return fetch(status).numpy() if isinstance(status, Tensor) else status


def on_device(scores: Tensor) -> bool:
    """Whether scores are where a block can read them, and of a type that it reads."""
    return scores.is_cuda and scores.dtype in (torch.float32, torch.float64) and usable()


def usable() -> bool:
    """Whether kernels can be launched: CuPy and a driver are there, and give what they should."""
    return why_unusable() is None


@cache
def why_unusable() -> str | None:
    """What is in the way of launching kernels, for people to read; None where nothing is."""
    try:
        from spacy_latent.kernels import launch

        return launch.trouble()
    except Exception as error:
        return f"a small kernel could not be run: {error!r}"


def failed() -> frozenset[Blocks]:
    """Those that turned out not to work in this process."""
    return frozenset(_failed)


def serves(blocks: Blocks | None, scores: Tensor) -> bool:
    """Whether a GPU does it, and not the CPU."""
    return (
        blocks is not None
        and blocks not in _failed
        and on_device(scores)
        and len(scores) >= LEAST_ITEMS
        and scores.numel() > 0
    )


# ------------------------------------------------------------------------------------ statuses

Check = Callable[[str, np.ndarray], None]
# Of sums whose items are looked at later: the name of the structure, their statuses, and what
# raises the error.
_pending: ContextVar[list[tuple[str, Tensor, Check]] | None] = ContextVar("pending", default=None)


def look_at(name: str, status: np.ndarray | Tensor, check: Check) -> None:
    """Raise the error of these items, with a wait for them; inside of :func:`looked_at_later`
    later."""
    pending = _pending.get()
    if pending is not None and isinstance(status, Tensor):
        pending.append((name, status, check))
    else:
        check(name, read_status(status))


@contextmanager
def looked_at_later() -> Iterator[None]:
    """Look at the items of all sums that a GPU finds inside only at the end, by one transfer: with
    no wait before, and so that what is inside can be captured in a graph. Sums over an item without
    a structure, or with scores that are no numbers, are not to be used until then."""
    pending: list[tuple[str, Tensor, Check]] = []
    before = _pending.set(pending)
    try:
        yield
    except Exception:
        # Perhaps of an item without a structure, which says more.
        _pending.reset(before)
        _look_at_all(pending)
        raise
    except BaseException:
        _pending.reset(before)
        raise
    _pending.reset(before)
    _look_at_all(pending)


def _look_at_all(pending: list[tuple[str, Tensor, Check]]) -> None:
    if not pending:
        return
    statuses = torch.cat([status for _, status, _ in pending]).cpu()
    sizes = [len(status) for _, status, _ in pending]
    for (name, _, check), status in zip(pending, statuses.split(sizes)):
        check(name, status.numpy())


@contextmanager
def looked_at_before() -> Iterator[None]:
    """Do not look at the items of sums that a GPU finds inside: others of the same scores have been
    found and looked at."""
    before = _pending.set([])
    try:
        yield
    finally:
        _pending.reset(before)


# ------------------------------------------------------------------------------------ launches


def best(
    blocks: Blocks | None,
    scores: Tensor,
    lengths: Tensor,
    options: Sequence[int],
    shape: tuple[int, ...],
    on_cpu: Callable[[], Found],
) -> Found | None:
    """The best structures, of that shape; None where the CPU must find them, as ``on_cpu`` does."""
    if blocks is None or not serves(blocks, scores):
        return None
    result = torch.full(shape, -1, dtype=torch.int32, device=scores.device)
    return _run(blocks, scores, lengths, options, -1, (result,), on_cpu)


def total(
    blocks: Blocks | None,
    scores: Tensor,
    lengths: Tensor,
    options: Sequence[int],
    operation: int,
    on_cpu: Callable[[], Found],
    along: Tensor | None = None,
) -> Found | None:
    """What ``Blocks.total`` writes; None where the CPU must, as ``on_cpu`` does."""
    if blocks is None or not serves(blocks, scores):
        return None
    result = scores.new_zeros(scores.shape if operation != LOG_PARTITION else (1,) * scores.dim())
    change = scores.detach() if along is None else along.detach().to(scores)
    outputs = (change.contiguous(), operation, scores.new_zeros(len(scores)), result)
    return _run(blocks, scores, lengths, options, operation, outputs, on_cpu)


def _run(
    blocks: Blocks,
    scores: Tensor,
    lengths: Tensor,
    options: Sequence[int],
    operation: int,
    outputs: tuple[Any, ...],
    on_cpu: Callable[[], Found],
) -> Found | None:
    from spacy_latent.kernels import launch

    status = torch.full((len(scores),), FEASIBLE, dtype=torch.int8, device=scores.device)
    sizes = lengths.to(device=scores.device, dtype=torch.int64).contiguous()
    given = scores.detach().contiguous()
    batched = None
    key = (blocks, operation, scores.dtype, tuple(options))
    try:
        if blocks.batched and operation != BEST and scores.shape[1] >= blocks.batched_from:
            batched = blocks.batched(given, sizes, options, operation, outputs[0])
            if key in _confirmed:
                # There is nothing to be done for an item without words.
                sizes = sizes.masked_fill(batched.trusted, 0)
        # Not empty: fewer versions of numba know how to pass that.
        arguments = (given, sizes, tuple(options) or (0,), *outputs, status)
        body = blocks.best if operation == BEST else blocks.total
        kernel = launch.best_kernel(body) if operation == BEST else launch.total_kernel(body)
        threads, room = blocks.block(scores.shape, operation), blocks.room(scores.shape, operation)
        launch.launch(kernel, threads, room, arguments)
        found = Found(outputs[-1], None if operation == BEST else outputs[2], status)
        if operation == HESSIAN_PRODUCT:
            # Of scores whose sums were found before, and looked at.
            found = found._replace(status=np.zeros(len(scores), dtype=np.int8))
        if key not in _confirmed:
            _confirm(key, found, on_cpu, scores)
        if batched is not None:
            found = _joined(found, batched)
            joined = (*key[:3], (*options, JOINED))
            if joined not in _confirmed:
                _confirm(joined, found, on_cpu, scores)
    except torch.cuda.OutOfMemoryError:
        return None
    except Exception as error:
        if not works_still(scores.device):
            raise LatentError(
                "A kernel for the GPU failed so that this process can no longer use the GPU: "
                f"{error!r}. Start again with NUMBA_DISABLE_CUDA=1 in the environment, so that "
                "structures are solved on the CPU; and please report this error with the structure "
                "and the lengths of the texts."
            ) from error
        _failed.add(blocks)
        message = f"Solved on the CPU from here on, since a kernel for the GPU failed: {error!r}"
        warn(message, LatentWarning, stacklevel=3)
        return None
    return found


def _confirm(key: Key, found: Found, on_cpu: Callable[[], Found], scores: Tensor) -> None:
    """Raise an error for a first result that is not the CPU's."""
    agrees = found.agrees(on_cpu(), scores)
    if agrees is False:
        raise ArithmeticError("its first result is not the CPU's")
    if agrees:
        _confirmed.add(key)


def _joined(found: Found, batched: Batched) -> Found:
    """What a kernel has found, but for the items that were not left to it."""
    assert found.log_partition is not None
    log_partition = torch.where(batched.trusted, batched.log_partition, found.log_partition)
    result = found.result
    if batched.result is not None:
        trusted = batched.trusted.view(-1, *[1] * (result.dim() - 1))
        result = torch.where(trusted, batched.result, result)
    return found._replace(result=result, log_partition=log_partition)


def works_still(device: torch.device) -> bool:
    """Whether a device does what it is told. After an access out of bounds it refuses everything
    until the process ends."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True


@cache
def alone(maker: Maker) -> Body:
    """The body for the CPU, and one thread. Without ``@kernel``: what a body closes over is in no
    file, so its machine code cannot be kept. Only tests run it."""
    return maker(njit(nogil=True, fastmath=False), njit(nogil=True, fastmath=False)(_nothing))


def _nothing() -> None:
    pass


# ------------------------------------------------------------------------------------ parts


def make_put(jit: Callable[[Body], Body]) -> Body:
    @jit
    def put(room, change, cell, value, derivative):
        """Write a number, and its derivative ``change`` further on, where that is not 0."""
        room[cell] = value
        if change > 0:
            room[cell + change] = derivative

    return put


def make_get(jit: Callable[[Body], Body]) -> Body:
    @jit
    def get(room, change, cell):
        """What ``put`` has written."""
        return room[cell], room[cell + change] if change > 0 else 0.0

    return get


def make_log_add(jit: Callable[[Body], Body]) -> Body:
    @jit
    def log_add(a, da, b, db):
        """log(e^a + e^b) and its derivative, where a and b have derivatives da and db."""
        top = a if a > b else b
        if top == -np.inf:
            return -np.inf, 0.0
        first, second = math.exp(a - top), math.exp(b - top)
        whole = first + second
        return top + math.log(whole), (first * da + second * db) / whole

    return log_add


def make_log_sum(jit: Callable[[Body], Body]) -> Body:
    @jit
    def log_sum(room, change, a, a_step, b, b_step, count):
        """log Σ_k exp(x_k + y_k) over k < count, where x_k = room[a + k·a_step], and y_k the same
        of b; and its derivative, from those that lie ``change`` further on, as in ``put``."""
        top = -np.inf
        for k in range(count):
            value = room[a + k * a_step] + room[b + k * b_step]
            top = value if value > top else top
        if top == -np.inf:
            return -np.inf, 0.0
        whole, mean = 0.0, 0.0
        for k in range(count):
            first, second = a + k * a_step, b + k * b_step
            share = math.exp(room[first] + room[second] - top)
            whole += share
            if change > 0 and share > 0.0:
                mean += share * (room[first + change] + room[second + change])
        return top + math.log(whole), mean / whole

    return log_sum


def make_largest_sum(jit: Callable[[Body], Body]) -> Body:
    @jit
    def largest_sum(room, a, a_step, b, b_step, count):
        """The largest x_k + y_k, see :func:`make_log_sum`, and the first k that has it."""
        top, chosen = -np.inf, 0
        for k in range(count):
            value = room[a + k * a_step] + room[b + k * b_step]
            if value > top:
                top, chosen = value, k
        return top, chosen

    return largest_sum
