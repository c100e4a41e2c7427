"""Batches of items that a family solves, on threads of the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, lost_digits_message
from spacy_latent.kernels.autograd.arrays import in_precision_of, read
from spacy_latent.kernels.autograd.families import Family, check, family_of
from spacy_latent.kernels.core.gpu_transfers import fetch, send
from spacy_latent.kernels.core.operations import LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import FEASIBLE, LARGE, UNSOLVED
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.kernels.gpu.dispatch import Found
from spacy_latent.kernels.simd.lanes import COST


def find_best(family: Family, scores: Tensor, lengths: Tensor, options: Sequence[int]) -> Found:
    """Return the best structures in the format of ``Family.best``, on the device of the scores."""
    shape = family.best_shape(scores.shape)

    def on_cpu() -> Found:
        array, sizes = read(scores, lengths)
        result = np.empty(shape, dtype=np.int32)
        status = np.zeros(len(array), dtype=np.int8)
        batch = array, sizes, tuple(options)
        spread(family.best, family.best_cost(sizes), (batch, result, status))
        return Found(torch.from_numpy(result), None, status)

    found = dispatch.best(family.device, scores, lengths, options, shape, on_cpu)
    if found is None:
        found = on_cpu()
        found = found._replace(result=send(found.result, scores.device))
    return found


def _groups(sizes: np.ndarray, size: int) -> np.ndarray:
    """Return groups of items of similar length, the longest first, padded with −1."""
    groups = np.full(-(-len(sizes) // size) * size, -1)
    groups[: len(sizes)] = np.argsort(-sizes, kind="stable")
    return groups.reshape(-1, size)


def sum_batch(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    operation: int,
    kept: np.ndarray,
    change: Tensor | None = None,
    watched: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-partitions ``(B,)`` of a batch, and the result of an operation.

    Args:
        operation: a code from kernels.core.operations, except BEST.
        kept: ``(B, width)``, values that MARGINALS writes and HESSIAN_PRODUCT reads; width 0 for no
            values.
        change: the vector of a Hessian product, in the shape of the scores.
        watched: see :func:`~spacy_latent.kernels.autograd.families.check`.

    Returns:
        The result has the shape of the scores; for LOG_PARTITION it is empty.
    """
    family = family_of(family_name)
    check_of_scores = partial(check, scores=scores, watched=watched)

    def on_cpu() -> Found:
        return _total_on_cpu(family, scores, lengths, options, operation, kept, change)

    on_gpu = dispatch.total(family.device, scores, lengths, options, operation, on_cpu, change)
    found = on_cpu() if on_gpu is None else on_gpu
    dispatch.check_status(family.name, found.status, check_of_scores)
    log_partition, result = found.log_partition, found.result
    assert log_partition is not None
    if on_gpu is not None:
        return log_partition, result
    # The result of LOG_PARTITION is empty and stays on the CPU.
    if operation == LOG_PARTITION:
        return send(log_partition, scores.device), result
    return log_partition, send(result, scores.device)


def _total_on_cpu(
    family: Family,
    scores: Tensor,
    lengths: Tensor,
    options: Sequence[int],
    operation: int,
    kept: np.ndarray,
    change: Tensor | None,
) -> Found:
    array, sizes = read(scores, lengths)
    precision = array.dtype if family.same_dtype else np.dtype(np.float64)
    along = np.empty((0,) * array.ndim, dtype=precision)
    if change is not None:
        along = np.ascontiguousarray(fetch(change).numpy(), dtype=precision)
    log_partition = np.zeros(len(array))
    shape = array.shape if operation != LOG_PARTITION else (0,) * array.ndim
    result = np.empty(shape, dtype=precision)
    status = np.full(len(array), UNSOLVED if family.fallback else FEASIBLE, dtype=np.int8)
    costs = family.total_cost(sizes) * (1 + operation)
    given = (array, sizes, tuple(options)), along, operation
    results = log_partition, result, kept, status
    size = family.group(scores.shape)
    if family.lanes is not None and size > 1:
        groups = _groups(sizes, size)
        # The cost of a group's longest item, since shorter items in the group take as long.
        spread(family.lanes, costs[groups[:, 0]] * COST, (groups, *given, results))
        results = log_partition, result, np.empty((0, 0)), status
    if family.fallback is None:
        spread(family.total, costs, (*given, results))
    else:
        stages = [family.total, family.fallback]
        if family.before_total is not None and family.before_total_for(operation, options):
            stages.insert(0, family.before_total)
        for kernel in stages:
            if not status.any():
                break
            items = np.flatnonzero(status == UNSOLVED)
            if len(items):
                spread(kernel, costs[items], (items, *given, results))
    own = in_precision_of(result, scores), in_precision_of(log_partition, scores)
    return Found(*own, status)


def refuse_lost_digits(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    mean: Tensor | None = None,
) -> None:
    """Raise InvalidScores for items whose sums have lost all digits.

    All structures of such an item have scores of too large magnitude. Structures check for such
    scores beforehand (see structures.extreme_scores), except during tracing. Scores on a GPU are
    not checked, since the check would wait for the GPU. ``mean`` are the marginals, if they are
    known.
    """
    if scores.is_cuda or not scores.numel():
        return
    from spacy_latent.kernels.simd.extreme_scores import holds_beyond

    values = fetch(scores).contiguous().numpy().reshape(-1)
    if not holds_beyond(values, values.dtype.type(LARGE)):
        return
    if mean is None:
        given = scores, lengths, family_name, options, MARGINALS, np.empty((len(scores), 0))
        mean = sum_batch(*given, watched=True)[1]
    sizes = torch.where(scores.isfinite() & (mean > 0.0), scores.detach().double().abs(), 0.0)
    used = (mean * sizes).flatten(1).sum(1)
    lost = used > LARGE * 2 * sum(scores.shape[1:])
    if bool(lost.any()):
        items = lost.nonzero().flatten().tolist()
        raise InvalidScores(lost_digits_message(family_of(family_name).name, items))
