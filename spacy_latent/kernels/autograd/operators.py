"""Kernels of structures with exact sums as torch operators.

A family of structures provides kernels that solve a range of items. The operators here add the
batch, threads, validation of inputs and results, and gradients: log_partition → marginals → the
product of its Hessian with a vector. Tensors on a GPU are solved there if the family has GPU
kernels (see kernels.gpu). Otherwise, and for samples always, they are solved on the CPU and the
result is sent back.

A family is named by the location of its :class:`Family`, "module:attribute". Its kernels are thus
compiled, or read from numba's cache, only when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from spacy_latent.errors import (
    InfeasibleError,
    InvalidScores,
    NotDifferentiable,
    lost_digits_message,
    not_finite_message,
    too_large_message,
)
from spacy_latent.kernels.autograd.derivatives import MARGINALS_ONCE, last_derivative, tangent_of
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.autograd.tracing import is_traced, source
from spacy_latent.kernels.core.gpu_transfers import fetch, send
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import (
    FEASIBLE,
    INFEASIBLE,
    LARGE,
    NOT_FINITE,
    TOO_LARGE,
    UNSOLVED,
)
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.kernels.gpu.dispatch import Found, GpuKernels
from spacy_latent.kernels.simd.lanes import COST
from spacy_latent.kernels.simd.vector import LANES


@dataclass(frozen=True)
class Family:
    """The kernels of a family of structures, and their cost.

    Each kernel solves the items start .. stop−1. It is compiled with ``nogil`` and reads no
    padding. Its arguments are scores ``(B, *parts)``, float32 or float64 and contiguous, int64
    lengths, and the family's options as integers. It sets ``status`` ``(B,)`` int8 as in
    kernels.core.status.

    Order of a sum on the CPU: ``lanes``, ``before_total``, ``total``, ``fallback``. Each solves the
    items that the one before left UNSOLVED. Samples come from ``sample``, then from
    ``sample_unsolved``. Kernels that few batches need are separate, so that they are compiled only
    when needed.

    Several kernels have an *indexed form*: an int64 array with the numbers of items comes after
    start and stop, and the kernel solves items[start:stop].

    Attributes:
        name: the name of the structure, for messages.
        best: (start, stop, scores, lengths, *options, best, status); writes the best structures.
        total: (start, stop, scores, lengths, *options, along, operation, log_partition, result,
            kept, status). LOG_PARTITION only writes log_partition ``(B,)``. MARGINALS also writes
            the marginals to result. HESSIAN_PRODUCT writes the product of the Hessian of the
            log-partition with ``along`` to result. All are float64, in the shape of the scores.
            result is uninitialised at the call, and must be 0 for padding afterwards. kept is ``(B,
            kept_size)``. If its width is not 0, MARGINALS may save values there that
            HESSIAN_PRODUCT reads. It has the indexed form if there is a ``fallback``.
        sample: (start, stop, scores, lengths, *options, seeds, samples, status); seeds ``(B,)``
            uint64, not 0; samples ``(K, *shape of best)``.
        sample_unsolved: the indexed form of sample, for the items that sample leaves UNSOLVED.
        best_shape: maps the shape of the scores to the shape of ``best`` and of one sample, int32.
        best_cost, total_cost: estimated nanoseconds of each item, from the lengths.
        kept_size: maps the shape of the scores to the numbers per item that marginals save for
            their gradient. It may only use operations that torch supports for symbolic sizes.
        product: (start, stop, marginals, lengths, *options, along, result, status). If given, it
            writes the product of the Hessian with ``along`` from the marginals alone, and total is
            never called for it.
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
            return _empty((shape[0], 0))
        if self.product is not None and scores.device.type != "cpu":
            return _empty(shape, scores.dtype)
        rows = shape[0]
        if self.lanes is not None:
            # Padded to LANES for any group size, since traced code would otherwise be specialised
            # to a range of sizes.
            rows = (rows + LANES - 1) // LANES * LANES
        return _empty((rows, self.kept_size(shape)))


def _empty(shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
    # torch aligns the memory to whole vectors.
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


@cache
def family_of(family_name: str) -> Family:
    """Return a family by its module and attribute.

    It imports, which torch cannot trace: call it inside an operator.
    """
    module, attribute = family_name.split(":")
    family = getattr(import_module(module), attribute)
    assert isinstance(family, Family)
    return family


def read(scores: Tensor, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return contiguous arrays on the CPU, copied only if needed."""
    return fetch(scores).contiguous().numpy(), fetch(lengths).contiguous().numpy()


def read_float64(values: Tensor) -> np.ndarray:
    """Return a contiguous float64 array on the CPU.

    NumPy converts it, since torch's threads would go on spinning on the core of the next kernel.
    """
    return np.ascontiguousarray(fetch(values).numpy(), dtype=np.float64)


def like(array: np.ndarray, values: Tensor) -> Tensor:
    """Return a tensor with the dtype and the device of ``values``.

    NumPy converts it, see :func:`read_float64`.
    """
    return send(in_precision_of(array, values), values.device)


def in_precision_of(array: np.ndarray, values: Tensor) -> Tensor:
    """Return a CPU tensor with the dtype of ``values`` (see :func:`like`)."""
    return torch.from_numpy(array.astype(_dtype_of_numpy(values.dtype), copy=False))


@cache
def _dtype_of_numpy(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype


def check(
    name: str, status: np.ndarray, scores: Tensor | None = None, watched: bool = False
) -> None:
    """Raise the error for the items whose status is not FEASIBLE.

    Args:
        scores: ``(B, *parts)``, if their exponentials were summed. If scores are so large that sums
            overflow, kernels cannot tell such an item from one without a structure.
        watched: whether the scores were also checked for lost digits (see
            :func:`_refuse_lost_digits`).

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


def find_best(family: Family, scores: Tensor, lengths: Tensor, options: Sequence[int]) -> Found:
    """Return the best structures in the format of ``Family.best``, on the device of the scores."""
    shape = family.best_shape(scores.shape)

    def on_cpu() -> Found:
        array, sizes = read(scores, lengths)
        result = np.empty(shape, dtype=np.int32)
        status = np.zeros(len(array), dtype=np.int8)
        spread(family.best, family.best_cost(sizes), (array, sizes, *options, result, status))
        return Found(torch.from_numpy(result), None, status)

    found = dispatch.best(family.device, scores, lengths, options, shape, on_cpu)
    if found is None:
        found = on_cpu()
        found = found._replace(result=send(found.result, scores.device))
    return found


def _read_best(scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]) -> Tensor:
    family = family_of(family_name)
    found = find_best(family, scores, lengths, options)
    check(family.name, dispatch.read_status(found.status))
    return found.result


_best = torch_operator("best")(_read_best)


def best(scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]) -> Tensor:
    """Return the best structures in the format of ``Family.best``, ``family.best_shape``, int32."""
    return (_best if is_traced(scores) else _read_best)(scores, lengths, family_name, options)


@_best.register_fake
def _(scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]) -> Tensor:
    return scores.new_empty(family_of(family_name).best_shape(scores.shape), dtype=torch.int32)


def _groups(sizes: np.ndarray, size: int) -> np.ndarray:
    """Return groups of items of similar length, the longest first, padded with −1."""
    groups = np.full(-(-len(sizes) // size) * size, -1)
    groups[: len(sizes)] = np.argsort(-sizes, kind="stable")
    return groups.reshape(-1, size)


def _total(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    operation: int,
    kept: np.ndarray,
    change: Tensor | None = None,
    watched: bool = False,
) -> tuple[Tensor, Tensor]:
    family = family_of(family_name)
    check_of_scores = partial(check, scores=scores, watched=watched)

    def on_cpu() -> Found:
        return _total_on_cpu(family, scores, lengths, options, operation, kept, change)

    found = dispatch.total(family.device, scores, lengths, options, operation, on_cpu, change)
    if found is None:
        found = on_cpu()
        dispatch.check_status(family.name, found.status, check_of_scores)
        return _sent(found, scores.device, operation)
    dispatch.check_status(family.name, found.status, check_of_scores)
    assert found.log_partition is not None
    return found.log_partition, found.result


def _sent(found: Found, device: torch.device, operation: int) -> tuple[Tensor, Tensor]:
    """Return the log-partition and the result on the device of the scores.

    The result of LOG_PARTITION is empty and stays on the CPU.
    """
    log_partition, result = found.log_partition, found.result
    assert log_partition is not None
    if operation == LOG_PARTITION:
        return send(log_partition, device), result
    return log_partition, send(result, device)


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
    result = np.empty(
        array.shape if operation != LOG_PARTITION else (0,) * array.ndim, dtype=precision
    )
    status = np.full(len(array), UNSOLVED if family.fallback else FEASIBLE, dtype=np.int8)
    costs = family.total_cost(sizes) * (1 + operation)
    arguments = (array, sizes, *options, along, operation, log_partition, result, kept, status)
    size = family.group(scores.shape)
    if family.lanes is not None and size > 1:
        groups = _groups(sizes, size)
        # The cost of a group's longest item, since shorter items in the group take as long.
        spread(family.lanes, costs[groups[:, 0]] * COST, (groups, *arguments))
        arguments = (*arguments[:-2], np.empty((0, 0)), status)
    if family.fallback is None:
        spread(family.total, costs, arguments)
    else:
        stages = [family.total, family.fallback]
        if family.before_total is not None and family.before_total_for(operation, options):
            stages.insert(0, family.before_total)
        for kernel in stages:
            if not status.any():
                break
            items = np.flatnonzero(status == UNSOLVED)
            if len(items):
                spread(kernel, costs[items], (items, *arguments))
    own = in_precision_of(result, scores), in_precision_of(log_partition, scores)
    return Found(*own, status)


def _refuse_lost_digits(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    mean: Tensor | None = None,
) -> None:
    """Raise InvalidScores for items whose sums have lost all digits.

    All structures of such an item have scores of too large magnitude. Structures check for such
    scores beforehand (see structures.extreme_scores), except during tracing. Scores on a GPU are
    not checked, since the check would wait for the GPU.

    Args:
        mean: the marginals, if they are known.

    Raises:
        InvalidScores: there are such items.
    """
    if scores.is_cuda or not scores.numel():
        return
    from spacy_latent.kernels.simd.extreme_scores import holds_beyond

    values = fetch(scores).contiguous().numpy().reshape(-1)
    if not holds_beyond(values, values.dtype.type(LARGE)):
        return
    if mean is None:
        given = scores, lengths, family_name, options, MARGINALS, np.empty((len(scores), 0))
        mean = _total(*given, watched=True)[1]
    sizes = torch.where(scores.isfinite() & (mean > 0.0), scores.detach().double().abs(), 0.0)
    used = (mean * sizes).flatten(1).sum(1)
    lost = used > LARGE * 2 * sum(scores.shape[1:])
    if bool(lost.any()):
        items = lost.nonzero().flatten().tolist()
        raise InvalidScores(lost_digits_message(family_of(family_name).name, items))


@torch_operator("log_partition")
def _log_partition(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    watched: bool = False,
) -> Tensor:
    """Return the log-partition; if ``watched``, after :func:`_refuse_lost_digits`."""
    kept = np.empty((len(scores), 0))
    given = scores, lengths, family_name, options, LOG_PARTITION, kept
    total = _total(*given, watched=watched)[0]
    if watched:
        _refuse_lost_digits(scores, lengths, family_name, options)
    return total


def log_partition(
    scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]
) -> Tensor:
    """Return log Σ exp(score) over structures, ``(B,)``."""
    if tangent_of(scores) is not None:
        return _along_tangent(scores, lengths, family_name, options)[0]
    return _log_partition(scores, lengths, family_name, options, is_traced(scores))


def log_partition_and_marginals(
    scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the log-partition and the marginals from one pass, without gradients.

    The two operators would take one pass each.
    """
    kept = np.empty((len(scores), 0))
    total, result = _total(scores, lengths, family_name, options, MARGINALS, kept)
    return (total if total.device == result.device else send(total, result.device)), result


def _read_marginals(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    keep: bool,
    watched: bool = False,
) -> tuple[Tensor, Tensor]:
    family = family_of(family_name)
    kept = family.kept(scores) if keep else _empty((len(scores), 0))
    saved = kept.numpy() if family.product is None else np.empty((len(scores), 0))
    given = scores, lengths, family_name, options, MARGINALS, saved
    result = _total(*given, watched=watched)[1]
    if family.product is not None and kept.shape[1]:
        kept.copy_(fetch(result))
    if watched:
        _refuse_lost_digits(scores, lengths, family_name, options, result)
    return result, kept


def _read_hessian_product(
    scores: Tensor,
    change: Tensor,
    kept: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
) -> Tensor:
    """Return the Hessian of the log-partition times ``change``, in the shape of ``scores``.

    Args:
        kept: the values that the marginals saved at the same scores, or an array of width 0. If the
            family has a ``product`` kernel, it is the marginals themselves, on the CPU or on the
            device of the scores.
    """
    family = family_of(family_name)
    if family.product is not None:
        kernel = family.product

        def on_cpu() -> Found:
            array, sizes = read(kept, lengths)
            along = np.ascontiguousarray(fetch(change).numpy(), dtype=array.dtype)
            result = np.empty_like(array)
            status = np.zeros(len(array), dtype=np.int8)
            costs = family.total_cost(sizes)
            spread(kernel, costs, (array, sizes, *options, along, result, status))
            return Found(torch.from_numpy(result), None, status)

        operation = HESSIAN_PRODUCT
        found = dispatch.total(family.device, kept, lengths, options, operation, on_cpu, change)
        if found is None:
            found = on_cpu()
            found = found._replace(result=send(found.result, scores.device))
        dispatch.check_status(family.name, found.status, check)
        return found.result
    return _total(scores, lengths, family_name, options, HESSIAN_PRODUCT, kept.numpy(), change)[1]


_marginals = torch_operator("marginals")(_read_marginals)
hessian_product = torch_operator("hessian_product")(_read_hessian_product)


def marginals(scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]) -> Tensor:
    """Return the probabilities of the parts, in the shape of ``scores``, 0 for padding."""
    keep = scores.requires_grad and torch.is_grad_enabled()
    if tangent_of(scores) is not None:
        return _along_tangent(scores, lengths, family_name, options)[1]
    if is_traced(scores):
        return _marginals(scores, lengths, family_name, options, keep, True)[0]
    if not keep:
        return _read_marginals(scores, lengths, family_name, options, False)[0]
    result = _Marginals.apply(scores, lengths, family_name, options)
    assert isinstance(result, Tensor)
    return result


def _read_by_product(family_name: str, result: Tensor, kept: Tensor) -> Tensor:
    """Return the result of :func:`_read_marginals` that :func:`_read_hessian_product` reads."""
    from_marginals = family_of(family_name).product is not None and not kept.shape[1]
    return result if from_marginals else kept


def _along_tangent(
    scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the log-partition and the marginals of scores with a tangent, with their own tangents.

    They come from operators, which also take the tensors of torch.func.
    """
    given, along = forward_ad.unpack_dual(scores)
    if given.requires_grad and torch.is_grad_enabled():
        raise NotDifferentiable(
            f"{family_of(family_name).name}: the scores have a tangent and require a gradient, "
            "which would have none. For products with the Hessian of log_partition differentiate "
            "it twice by torch.autograd.grad."
        )
    total = _log_partition(given, lengths, family_name, options)
    mean, kept = _marginals(given, lengths, family_name, options, True, is_traced(given))
    kept = _read_by_product(family_name, mean, kept)
    product = hessian_product(given, along, kept, lengths, family_name, options)
    slope = (mean * along).flatten(1).sum(1)
    return forward_ad.make_dual(total, slope), forward_ad.make_dual(mean, product)


class _Marginals(torch.autograd.Function):
    """The marginals operator and its gradient, for tensors that are not traced.

    It has no separate ``setup_context``, with which torch inspects the signature of ``forward`` at
    each call.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, lengths: Tensor, family_name: str, options: Sequence[int]
    ) -> Tensor:
        result, kept = _read_marginals(scores, lengths, family_name, options, True)
        ctx.family = family_name, options
        ctx.save_for_backward(scores, lengths, _read_by_product(family_name, result, kept))
        # Otherwise a missing gradient would be passed as a tensor of zeros.
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    @last_derivative(MARGINALS_ONCE)
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None, None, None
        scores, lengths, kept = ctx.saved_tensors
        product = _read_hessian_product(scores, gradient, kept, lengths, *ctx.family)
        return product, None, None, None


@_log_partition.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape[:1])


@_marginals.register_fake
def _(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    keep: bool,
    watched: bool = False,
) -> tuple[Tensor, Tensor]:
    kept = family_of(family_name).kept(scores) if keep else _empty((scores.shape[0], 0))
    return torch.empty_like(scores, memory_format=torch.contiguous_format), kept


@hessian_product.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _keep_log_partition(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.family = inputs[2:4]


def _log_partition_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    scores, lengths = ctx.saved_tensors
    with dispatch.checks_skipped():
        result = marginals(scores, lengths, *ctx.family)
    return gradient.view(-1, *[1] * (scores.dim() - 1)) * result, None, None, None, None


def _keep_marginals(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.family = inputs[2:4]
    ctx.save_for_backward(*inputs[:2], _read_by_product(ctx.family[0], *output))
    ctx.mark_non_differentiable(output[1])
    # Otherwise a missing gradient would be allocated as zeros as large as the saved values.
    ctx.set_materialize_grads(False)


@last_derivative(MARGINALS_ONCE)
def _marginals_backward(ctx: Any, gradient: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return None, None, None, None, None, None
    scores, lengths, kept = ctx.saved_tensors
    product = hessian_product(scores, gradient, kept, lengths, *ctx.family)
    return product, None, None, None, None, None


_log_partition.register_autograd(_log_partition_backward, setup_context=_keep_log_partition)
_marginals.register_autograd(_marginals_backward, setup_context=_keep_marginals)


def draw_seeds(count: int, generator: torch.Generator | None) -> Tensor:
    """Return ``(count,)`` int64 above 0 on the CPU, by default from torch's CPU generator."""
    return torch.randint(1, 2**62, (count,), device="cpu", **source(generator))


def _read_samples(
    scores: Tensor,
    lengths: Tensor,
    seeds: Tensor,
    family_name: str,
    options: Sequence[int],
    num_samples: int,
    watched: bool = False,
) -> Tensor:
    """Return samples of the structures.

    Args:
        seeds: ``(B,)``, one stream for each item. The draws of an item do not depend on threads or
            on other items.
    """
    family = family_of(family_name)
    if watched:
        _refuse_lost_digits(scores, lengths, family_name, options)
    array, sizes = read(scores, lengths)
    streams = fetch(seeds).numpy().astype(np.uint64)
    samples = np.empty((num_samples, *family.best_shape(scores.shape)), dtype=np.int32)
    status = np.zeros(len(array), dtype=np.int8)
    costs = family.total_cost(sizes) * (1 + num_samples)
    arguments = (array, sizes, *options, streams, samples, status)
    spread(family.sample, costs, arguments)
    items = np.flatnonzero(status == UNSOLVED)
    if family.sample_unsolved is not None and len(items):
        spread(family.sample_unsolved, costs[items], (items, *arguments))
    check(family.name, status)
    return send(torch.from_numpy(samples), scores.device)


_sample = torch_operator("sample")(_read_samples)


@_sample.register_fake
def _(
    scores: Tensor,
    lengths: Tensor,
    seeds: Tensor,
    family_name: str,
    options: Sequence[int],
    num_samples: int,
    watched: bool = False,
) -> Tensor:
    shape = (num_samples, *family_of(family_name).best_shape(scores.shape))
    return scores.new_empty(shape, dtype=torch.int32)


def sample(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    num_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Return exact samples, ``(num_samples, *family.best_shape)`` int32."""
    seeds = draw_seeds(scores.shape[0], generator)
    given = scores, lengths, seeds, family_name, options, num_samples
    return _sample(*given, True) if is_traced(scores) else _read_samples(*given)
