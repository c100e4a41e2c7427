"""Families of kernels, and the errors for items that they cannot solve.

A family is named by its location, "module:attribute", so kernels are compiled only when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import (
    InfeasibleError,
    InvalidScores,
    lost_digits_message,
    not_finite_message,
    too_large_message,
)
from spacy_latent.kernels.autograd.arrays import empty
from spacy_latent.kernels.core.gpu_transfers import fetch
from spacy_latent.kernels.core.status import INFEASIBLE, NOT_FINITE, TOO_LARGE
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.kernels.gpu.dispatch import GpuKernels
from spacy_latent.kernels.simd.vector import LANES


@dataclass(frozen=True)
class Family:
    """The kernels of a family of structures, and their cost.

    Each kernel solves the items start .. stop−1. It is compiled with ``nogil`` and reads no
    padding. Its argument ``batch`` is the tuple (scores, lengths, options): scores ``(B, *parts)``,
    float32 or float64 and contiguous, int64 lengths, and a tuple of the structure's settings as
    integers. ``results`` is (log_partition, result, kept, status). The kernel sets ``status``
    ``(B,)`` int8 as in kernels.core.status.

    Both are plain tuples. With a NamedTuple, numba would take a microsecond longer to find the
    types of a call's arguments.

    Order of a sum on the CPU: ``lanes``, ``before_total``, ``total``, ``fallback``. Each solves the
    items that the one before left UNSOLVED. Samples come from ``sample``, then from
    ``sample_unsolved``. Kernels that few batches need are separate, so that they are compiled only
    when needed.

    Several kernels have an *indexed form*: an int64 array with the numbers of items comes after
    start and stop, and the kernel solves items[start:stop].

    Attributes:
        name: the name of the structure, for messages.
        best: (start, stop, batch, best, status); writes the best structures.
        total: (start, stop, batch, along, operation, results). LOG_PARTITION only writes
            log_partition ``(B,)``. MARGINALS also writes the marginals to result. HESSIAN_PRODUCT
            writes the product of the Hessian of the log-partition with ``along`` to result. All are
            float64, in the shape of the scores. result is uninitialised at the call, and must be 0
            for padding afterwards. kept is ``(B, kept_size)``. If its width is not 0, MARGINALS may
            save values there that HESSIAN_PRODUCT reads. The kernel has the indexed form if there
            is a ``fallback``.
        sample: (start, stop, batch, seeds, samples, status); seeds ``(B,)`` uint64, not 0; samples
            ``(K, *shape of best)``.
        sample_unsolved: the indexed form of sample, for the items that sample leaves UNSOLVED.
        best_shape: maps the shape of the scores to the shape of ``best`` and of one sample, int32.
        best_cost, total_cost: estimated nanoseconds of each item, from the lengths.
        kept_size: maps the shape of the scores to the numbers per item that marginals save for
            their gradient. It may only use operations that torch supports for symbolic sizes.
        product: (start, stop, batch, along, result, status), with marginals in place of the scores
            of the batch. If given, it writes the product of the Hessian with ``along`` from the
            marginals alone, and total is never called for it.
        same_dtype: whether along and result, also in product, have the dtype of the scores.
        fallback: like total, for the items that total leaves UNSOLVED. If given, both have the
            indexed form.
        before_total, before_total_for: a kernel like total that runs before it if
            ``before_total_for`` returns true for the operation and the options. Only for families
            with ``fallback``.
        lanes: like total, for items in SIMD lanes. It gets ``(G, size)`` int64 after start and
            stop, which index these groups of items of similar length. The last group is padded with
            −1. The items that it leaves UNSOLVED go to total, which then saves nothing.
        group: maps the shape of the scores to the size of a group: LANES, or 1 to use total alone.
            kept has a row for each place in groups of LANES.
        device: the kernels of the family for a GPU.
    """

    name: str
    best: Callable[..., None]
    total: Callable[..., None]
    sample: Callable[..., None]
    best_shape: Callable[[torch.Size], tuple[int, ...]]
    best_cost: Callable[[np.ndarray], np.ndarray]
    total_cost: Callable[[np.ndarray], np.ndarray]
    kept_size: Callable[[torch.Size], int] = lambda shape: 0
    product: Callable[..., None] | None = None
    same_dtype: bool = False
    fallback: Callable[..., None] | None = None
    sample_unsolved: Callable[..., None] | None = None
    before_total: Callable[..., None] | None = None
    before_total_for: Callable[[int, Sequence[int]], bool] = lambda operation, options: True
    lanes: Callable[..., None] | None = None
    group: Callable[[torch.Size], int] = lambda shape: 1
    device: GpuKernels | None = None

    def kept(self, scores: Tensor) -> Tensor:
        """Return an uninitialised CPU workspace for the values that marginals save.

        It has the shape of the marginals if the gradient only needs the marginals and these go to a
        GPU.
        """
        shape = scores.shape
        if dispatch.serves(self.device, scores):
            return empty((shape[0], 0))
        if self.product is not None and scores.device.type != "cpu":
            return empty(shape, scores.dtype)
        rows = shape[0]
        if self.lanes is not None:
            # Padded to LANES for any group size, since traced code would otherwise be specialised
            # to a range of sizes.
            rows = (rows + LANES - 1) // LANES * LANES
        return empty((rows, self.kept_size(shape)))


@cache
def family_of(family_name: str) -> Family:
    """Return a family by its module and attribute.

    It imports, which torch cannot trace: call it inside an operator.
    """
    module, attribute = family_name.split(":")
    family = getattr(import_module(module), attribute)
    assert isinstance(family, Family)
    return family


def check(
    name: str, status: np.ndarray, scores: Tensor | None = None, watched: bool = False
) -> None:
    """Raise the error for the items whose status is not FEASIBLE.

    Args:
        scores: ``(B, *parts)``, if their exponentials were summed. If scores are so large that sums
            overflow, kernels cannot tell such an item from one without a structure.
        watched: whether the scores were also checked for lost digits (see
            batches.refuse_lost_digits).

    Raises:
        InvalidScores: scores are not finite or too large.
        InfeasibleError: items have no structure.
    """
    if not status.any():
        return
    not_finite = np.flatnonzero(status == NOT_FINITE).tolist()
    if not_finite:
        raise InvalidScores(not_finite_message(name, not_finite))
    infeasible = np.flatnonzero(status == INFEASIBLE).tolist()
    too_large = np.flatnonzero(status == TOO_LARGE).tolist()
    if scores is not None:
        too_large = too_large or [item for item in infeasible if _overflows(scores[item])]
    if too_large:
        message = lost_digits_message if watched else too_large_message
        raise InvalidScores(message(name, too_large))
    raise InfeasibleError(name, infeasible)


def _overflows(scores: Tensor) -> bool:
    """Return whether a sum of some of the scores may overflow."""
    known = fetch(scores).double()
    largest = torch.where(known.isfinite(), known.abs(), 0.0).amax() if known.numel() else 0.0
    return bool(largest * known.numel() > np.finfo(np.float64).max)
