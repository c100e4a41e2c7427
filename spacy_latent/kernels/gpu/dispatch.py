"""Dispatch of structures to GPU kernels: when they are used, their launch, and checks of precision.

The kernels are written in Triton, which is imported at the first launch. If it is missing or cannot
compile, structures are solved on the CPU, and :func:`why_unusable` returns the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple
from warnings import warn

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.kernels.operations import BEST, HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.status import FEASIBLE, LARGE, TOO_LARGE
from spacy_latent.kernels.transfers import fetch

# Batches of fewer items are solved on the CPU. A program takes as long for one item as for a
# hundred. Steps that are captured in a CUDA graph can ask no CPU: they need 1.
LEAST_ITEMS = 16
# Bytes of workspace at once: with more items than that serves, they are solved in parts.
LARGEST_WORKSPACE = 2**30
# With this environment variable set to 0, everything is solved on the CPU.
SWITCH = "SPACY_LATENT_GPU_KERNELS"
# Relative to the largest number: how far float32 and other orders of sums may bring results apart.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class GpuKernels:
    """The kernels of a family for a GPU.

    module: of this folder. Its ``plan(shape, operation)`` says for scores of that shape which
        kernel to launch and how, see ``programs.Plan``. Where the family has a ``product``, the
        kernel of HESSIAN_PRODUCT gets the marginals in place of the scores.
    """

    module: str

    def plan(self, shape: Sequence[int], operation: int) -> Any:
        return import_module(f"spacy_latent.kernels.gpu.{self.module}").plan(shape, operation)


# Kernels, operation, dtype and options.
Key = tuple[GpuKernels, int, torch.dtype, tuple[int, ...]]
# What this GPU turned out not to do.
_failed: set[GpuKernels] = set()
# What has given, once in this process and on a whole batch, what the CPU gives.
_confirmed: set[Key] = set()


class Call(NamedTuple):
    """What a kernel reads and writes, see ``programs``: contiguous tensors on one device."""

    scores: Tensor
    lengths: Tensor
    along: Tensor
    log_partition: Tensor
    result: Tensor
    status: Tensor
    options: tuple[int, ...]


class Found(NamedTuple):
    """result: the best structures, the marginals or the product. log_partition: ``(B,)``; None
    where there is none. status: a tensor where it is still on the GPU."""

    result: Tensor
    log_partition: Tensor | None
    status: np.ndarray | Tensor

    def agrees(self, other: Found, scores: Tensor) -> bool | None:
        """Whether it is what the CPU has found for these scores. None where that cannot be told:
        all is 0, as first gradients often are, or not finite. Items whose scores may be too large
        for a kernel to sum are left out."""
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
            # With the log-partition alone there is no other result.
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
    """Which items. What a kernel looks at is a sum of differences of two scores, as many as an item
    has places, or a part of such a sum."""
    if not scores.numel():
        return np.zeros(len(scores), dtype=bool)
    known = torch.where(scores.isfinite(), scores.detach().double().abs(), 0.0)
    bound = LARGE / (4 * max(scores.shape[1:]))
    return fetch(known.flatten(1).amax(1) > bound).numpy()


def read_status(status: np.ndarray | Tensor) -> np.ndarray:
    """The statuses, with a wait where they are on a GPU."""
    return fetch(status).numpy() if isinstance(status, Tensor) else status


# ------------------------------------------------------------------------------------ use


def on_device(scores: Tensor) -> bool:
    """Whether scores are where a kernel can read them, and of a type that it reads."""
    return scores.is_cuda and scores.dtype in (torch.float32, torch.float64) and usable()


def usable() -> bool:
    """Whether kernels can be launched, and give what they should."""
    return why_unusable() is None


@cache
def why_unusable() -> str | None:
    """What is in the way of launching kernels, for people to read; None where nothing is."""
    try:
        return trouble()
    except Exception as error:
        return f"a small kernel could not be compiled and run: {error!r}"


def trouble() -> str | None:
    """Why a small kernel does not give on a GPU what it should; None where it does. Raises the
    error of a compilation or launch that fails."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton, which torch for Linux with CUDA brings, cannot be imported: {error}"
    from spacy_latent.kernels.gpu import probe

    # Also where something traces first, with tensors that hold nothing.
    with _disable_current_modes():
        return None if probe.is_right() else "a small kernel gives wrong numbers"


def failed() -> frozenset[GpuKernels]:
    """Those that turned out not to work in this process."""
    return frozenset(_failed)


def serves(kernels: GpuKernels | None, scores: Tensor) -> bool:
    """Whether a GPU does it, and not the CPU."""
    return (
        kernels is not None
        and kernels not in _failed
        and on_device(scores)
        and len(scores) >= LEAST_ITEMS
        and scores.numel() > 0
    )


# ------------------------------------------------------------------------------------ statuses

Check = Callable[[str, np.ndarray], None]
# Sums whose items are looked at later: the name of the structure, their statuses, and what raises
# the error.
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
    kernels: GpuKernels | None,
    scores: Tensor,
    lengths: Tensor,
    options: Sequence[int],
    shape: tuple[int, ...],
    on_cpu: Callable[[], Found],
) -> Found | None:
    """The best structures, of that shape; None where the CPU must find them, as ``on_cpu`` does."""
    if kernels is None or not serves(kernels, scores):
        return None
    result = torch.full(shape, -1, dtype=torch.int32, device=scores.device)
    return _run(kernels, scores, lengths, options, BEST, None, result, on_cpu)


def total(
    kernels: GpuKernels | None,
    scores: Tensor,
    lengths: Tensor,
    options: Sequence[int],
    operation: int,
    on_cpu: Callable[[], Found],
    along: Tensor | None = None,
) -> Found | None:
    """The log-partition, marginals or Hessian product; None where the CPU must find them, as
    ``on_cpu`` does. All have the dtype of the scores."""
    if kernels is None or not serves(kernels, scores):
        return None
    result = scores.new_zeros(scores.shape if operation != LOG_PARTITION else (1,) * scores.dim())
    return _run(kernels, scores, lengths, options, operation, along, result, on_cpu)


def _run(
    kernels: GpuKernels,
    scores: Tensor,
    lengths: Tensor,
    options: Sequence[int],
    operation: int,
    along: Tensor | None,
    result: Tensor,
    on_cpu: Callable[[], Found],
) -> Found | None:
    try:
        given = scores.detach().contiguous()
        call = Call(
            scores=given,
            lengths=lengths.to(device=scores.device, dtype=torch.int64).contiguous(),
            along=given if along is None else along.detach().to(given).contiguous(),
            log_partition=given.new_zeros(len(given)),
            result=result,
            status=torch.zeros(len(given), dtype=torch.int8, device=given.device),
            options=tuple(options),
        )
        launch(kernels, operation, call)
        found = Found(result, None if operation == BEST else call.log_partition, call.status)
        if operation == HESSIAN_PRODUCT:
            # The sums of the same scores were found before, and looked at.
            found = found._replace(status=np.zeros(len(given), dtype=np.int8))
        key = (kernels, operation, scores.dtype, call.options)
        if key not in _confirmed:
            _confirm(key, found, on_cpu, scores)
    except torch.cuda.OutOfMemoryError:
        return None
    except Exception as error:
        if not works_still(scores.device):
            raise LatentError(
                "A kernel for the GPU failed so that this process can no longer use the GPU: "
                f"{error!r}. Start again with {SWITCH}=0 in the environment, so that structures "
                "are solved on the CPU; and please report this error with the structure and the "
                "lengths of the texts."
            ) from error
        _failed.add(kernels)
        message = f"Solved on the CPU from here on, since a kernel for the GPU failed: {error!r}"
        warn(message, LatentWarning, stacklevel=3)
        return None
    return found


def launch(kernels: GpuKernels, operation: int, call: Call) -> None:
    """Solve a batch, in parts where the workspace of all its items would be too large. On the
    current stream, without a wait."""
    scores = call.scores
    plan = kernels.plan(scores.shape, operation)
    at_once = max(1, min(len(scores), LARGEST_WORKSPACE // (8 * plan.size)))
    workspace = torch.empty(at_once * plan.size, dtype=torch.float64, device=scores.device)
    direction, longest, single_root = call.options or (0, 0, 0)
    with torch.cuda.device(scores.device) if scores.is_cuda else nullcontext():
        for first in range(0, len(scores), at_once):
            programs = min(at_once, len(scores) - first)
            for kind in plan.kinds:
                plan.kernel[(programs,)](
                    *(scores, call.lengths, call.along, workspace),
                    *(call.log_partition, call.result, call.status),
                    *(first, plan.size, operation, scores.shape[1], scores.shape[-1]),
                    *(direction, longest, single_root),
                    KIND=kind,
                    DERIVED=operation == HESSIAN_PRODUCT,
                    **plan.constants,
                    **plan.threads,
                )


def _confirm(key: Key, found: Found, on_cpu: Callable[[], Found], scores: Tensor) -> None:
    """Raise an error for a first result that is not the CPU's."""
    agrees = found.agrees(on_cpu(), scores)
    if agrees is False:
        raise ArithmeticError("its first result is not the CPU's")
    if agrees:
        _confirmed.add(key)


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
