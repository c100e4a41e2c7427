"""Dispatch of structures to GPU kernels: when they are used, their launch, and their checks.

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
from spacy_latent.kernels.core.gpu_transfers import fetch
from spacy_latent.kernels.core.operations import BEST, HESSIAN_PRODUCT, LOG_PARTITION
from spacy_latent.kernels.core.status import FEASIBLE, LARGE, TOO_LARGE

# Batches of fewer items are solved on the CPU, since a program takes as long for one item as for a
# hundred. Steps that are captured in a CUDA graph cannot use the CPU and need the value 1.
LEAST_ITEMS = 16
# Largest workspace in bytes. If a batch needs more, it is solved in parts.
LARGEST_WORKSPACE = 2**30
# If this environment variable is 0, everything is solved on the CPU.
SWITCH = "SPACY_LATENT_GPU_KERNELS"
# Allowed difference between results of GPU and CPU, relative to the largest number. They differ by
# float32 and by the order of sums.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class GpuKernels:
    """The kernels of a family for a GPU.

    Attributes:
        module: a module of this folder. Its ``plan(shape, operation)`` returns the kernel for
            scores of that shape and its launch parameters (see ``programs.Plan``). If the family
            has a ``product``, the kernel of HESSIAN_PRODUCT gets the marginals instead of the
            scores.
    """

    module: str

    def plan(self, shape: Sequence[int], operation: int) -> Any:
        """Return the ``programs.Plan`` of the module, which is imported here."""
        return import_module(f"spacy_latent.kernels.gpu.{self.module}").plan(shape, operation)


# Kernels, operation, dtype and options.
Key = tuple[GpuKernels, int, torch.dtype, tuple[int, ...]]
# Kernels that failed on this GPU.
_failed: set[GpuKernels] = set()
# Keys whose results have agreed with the CPU, on one whole batch in this process.
_confirmed: set[Key] = set()


class Call(NamedTuple):
    """Arguments of a kernel (see ``programs``): contiguous tensors on one device."""

    scores: Tensor
    lengths: Tensor
    along: Tensor
    log_partition: Tensor
    result: Tensor
    status: Tensor
    options: tuple[int, ...]


class Found(NamedTuple):
    """Results of a kernel.

    Attributes:
        result: the best structures, the marginals, or the Hessian product.
        log_partition: ``(B,)``, or None if it was not computed.
        status: ``(B,)``, a tensor if it is still on the GPU.
    """

    result: Tensor
    log_partition: Tensor | None
    status: np.ndarray | Tensor

    def agrees(self, other: Found, scores: Tensor) -> bool | None:
        """Return whether these results agree with the results of the CPU for the same scores.

        The answer is None if it cannot be decided, because all numbers are 0, as first gradients
        often are, or not finite. Items whose scores may be too large for a kernel are ignored.
        """
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
        compared = False
        for own, reference in pairs:
            # The result of LOG_PARTITION is empty.
            if own.shape != reference.shape or not reference.numel():
                continue
            own, reference = fetch(own)[solved].double(), reference[solved].double()
            largest = float(reference.abs().max()) if reference.numel() else 0.0
            if not 0.0 < largest < float("inf"):
                continue
            if not torch.allclose(own, reference, 0.0, TOLERANCE * largest):
                return False
            compared = True
        return compared or None


def _may_be_too_large(scores: Tensor) -> np.ndarray:
    """Return whether the scores of each item may be too large for a kernel.

    A kernel refuses an item if a sum of score differences, at most one for each position, is too
    large. Here the largest score alone decides, so the result may be true for other items as well.
    """
    if not scores.numel():
        return np.zeros(len(scores), dtype=bool)
    known = torch.where(scores.isfinite(), scores.detach().double().abs(), 0.0)
    bound = LARGE / (4 * max(scores.shape[1:]))
    return fetch(known.flatten(1).amax(1) > bound).numpy()


def read_status(status: np.ndarray | Tensor) -> np.ndarray:
    """Return the statuses, which waits for the GPU if they are on it."""
    return fetch(status).numpy() if isinstance(status, Tensor) else status


# ------------------------------------------------------------------------------------ use


def on_device(scores: Tensor) -> bool:
    """Return whether scores are on a GPU and of a dtype that kernels read."""
    return scores.is_cuda and scores.dtype in (torch.float32, torch.float64) and usable()


def usable() -> bool:
    """Return whether kernels can be launched and give correct results."""
    return why_unusable() is None


@cache
def why_unusable() -> str | None:
    """Return a readable reason why kernels cannot be launched, or None if they can."""
    try:
        return trouble()
    except Exception as error:
        return f"a small kernel could not be compiled and run: {error!r}"


def trouble() -> str | None:
    """Return why a small kernel gives wrong results on the GPU, or None if they are correct.

    Raises:
        Exception: the error of a compilation or launch that fails.
    """
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton, which torch for Linux with CUDA brings, cannot be imported: {error}"
    from spacy_latent.kernels.gpu import probe

    # Modes are disabled, since tensors have no values during tracing.
    with _disable_current_modes():
        return None if probe.is_right() else "a small kernel gives wrong numbers"


def failed() -> frozenset[GpuKernels]:
    """Return the kernels that failed in this process."""
    return frozenset(_failed)


def serves(kernels: GpuKernels | None, scores: Tensor) -> bool:
    """Return whether the GPU solves these scores, and not the CPU."""
    return (
        kernels is not None
        and kernels not in _failed
        and on_device(scores)
        and len(scores) >= LEAST_ITEMS
        and scores.numel() > 0
    )


# ------------------------------------------------------------------------------------ statuses

Check = Callable[[str, np.ndarray], None]
# Statuses to be checked later, with the name of the structure and the function that raises the
# error.
_pending: ContextVar[list[tuple[str, Tensor, Check]] | None] = ContextVar("pending", default=None)


def check_status(name: str, status: np.ndarray | Tensor, check: Check) -> None:
    """Check the statuses, which waits for the GPU, and raise their error.

    Inside :func:`checks_postponed` the check is postponed.
    """
    pending = _pending.get()
    if pending is not None and isinstance(status, Tensor):
        pending.append((name, status, check))
    else:
        check(name, read_status(status))


@contextmanager
def checks_postponed() -> Iterator[None]:
    """Postpone the checks of sums from a GPU to the end of this context, with one transfer for all.

    Nothing waits for the GPU before the end, so the body can be captured in a CUDA graph. Until
    then, sums over items without a structure or with non-finite scores must not be used.
    """
    pending: list[tuple[str, Tensor, Check]] = []
    before = _pending.set(pending)
    try:
        yield
    except Exception:
        # The cause may be an item without a structure. Its error is more helpful.
        _pending.reset(before)
        _check_all(pending)
        raise
    except BaseException:
        _pending.reset(before)
        raise
    _pending.reset(before)
    _check_all(pending)


def _check_all(pending: list[tuple[str, Tensor, Check]]) -> None:
    if not pending:
        return
    statuses = torch.cat([status for _, status, _ in pending]).cpu()
    sizes = [len(status) for _, status, _ in pending]
    for (name, _, check), status in zip(pending, statuses.split(sizes)):
        check(name, status.numpy())


@contextmanager
def checks_skipped() -> Iterator[None]:
    """Skip the checks of sums from a GPU in this context, over scores that were checked before."""
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
    """Return the best structures, or None if the CPU must find them by ``on_cpu``."""
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
    """Return the log-partition, marginals or Hessian product, in the dtype of the scores.

    The result is None if the CPU must compute them by ``on_cpu``.
    """
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
            # The sums over the same scores were checked in the forward pass.
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
    """Solve a batch on the current stream, without waiting for it.

    If the workspace for all items is too large, the batch is solved in parts.
    """
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
    """Raise an error if the first result of a kernel differs from the result of the CPU."""
    agrees = found.agrees(on_cpu(), scores)
    if agrees is False:
        raise ArithmeticError("its first result is not the CPU's")
    if agrees:
        _confirmed.add(key)


def works_still(device: torch.device) -> bool:
    """Return whether the device still executes commands.

    After an access out of bounds, it refuses all commands until the process ends.
    """
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True
