"""Kernels of structures with exact sums as torch operators.

The operators add gradients to families: log_partition → marginals → the product of its Hessian with
a vector. Tensors on a GPU are solved there if the family has GPU kernels (see kernels.gpu).
Otherwise, and for samples always, they are solved on the CPU and the result is sent back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from spacy_latent.errors import NotDifferentiable
from spacy_latent.kernels.autograd.arrays import empty, read
from spacy_latent.kernels.autograd.batches import find_best, refuse_lost_digits, sum_batch
from spacy_latent.kernels.autograd.derivatives import MARGINALS_ONCE, last_derivative, tangent_of
from spacy_latent.kernels.autograd.families import check, family_of
from spacy_latent.kernels.autograd.torch_operators import torch_operator
from spacy_latent.kernels.autograd.tracing import is_traced, source
from spacy_latent.kernels.core.gpu_transfers import fetch, send
from spacy_latent.kernels.core.operations import HESSIAN_PRODUCT, LOG_PARTITION, MARGINALS
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import UNSOLVED
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.kernels.gpu.dispatch import Found


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


@torch_operator("log_partition")
def _log_partition(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    watched: bool = False,
) -> Tensor:
    """Return the log-partition; if ``watched``, after :func:`refuse_lost_digits`."""
    given = scores, lengths, family_name, options, LOG_PARTITION, np.empty((len(scores), 0))
    total = sum_batch(*given, watched=watched)[0]
    if watched:
        refuse_lost_digits(scores, lengths, family_name, options)
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
    total, result = sum_batch(scores, lengths, family_name, options, MARGINALS, kept)
    return total if total.device == result.device else send(total, result.device), result


def _read_marginals(
    scores: Tensor,
    lengths: Tensor,
    family_name: str,
    options: Sequence[int],
    keep: bool,
    watched: bool = False,
) -> tuple[Tensor, Tensor]:
    family = family_of(family_name)
    kept = family.kept(scores) if keep else empty((len(scores), 0))
    saved = kept.numpy() if family.product is None else np.empty((len(scores), 0))
    given = scores, lengths, family_name, options, MARGINALS, saved
    result = sum_batch(*given, watched=watched)[1]
    if family.product is not None and kept.shape[1]:
        kept.copy_(fetch(result))
    if watched:
        refuse_lost_digits(scores, lengths, family_name, options, result)
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
    kernel, operation = family.product, HESSIAN_PRODUCT
    if kernel is None:
        given = scores, lengths, family_name, options, operation, kept.numpy()
        return sum_batch(*given, change)[1]

    def on_cpu() -> Found:
        array, sizes = read(kept, lengths)
        along = np.ascontiguousarray(fetch(change).numpy(), dtype=array.dtype)
        result, status = np.empty_like(array), np.zeros(len(array), dtype=np.int8)
        batch = array, sizes, tuple(options)
        spread(kernel, family.total_cost(sizes), (batch, along, result, status))
        return Found(torch.from_numpy(result), None, status)

    found = dispatch.total(family.device, kept, lengths, options, operation, on_cpu, change)
    if found is None:
        found = on_cpu()
        found = found._replace(result=send(found.result, scores.device))
    dispatch.check_status(family.name, found.status, check)
    return found.result


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
    """Return what :func:`_read_hessian_product` reads: the marginals, or the saved values."""
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
    kept = family_of(family_name).kept(scores) if keep else empty((scores.shape[0], 0))
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
        refuse_lost_digits(scores, lengths, family_name, options)
    array, sizes = read(scores, lengths)
    streams = fetch(seeds).numpy().astype(np.uint64)
    samples = np.empty((num_samples, *family.best_shape(scores.shape)), dtype=np.int32)
    status = np.zeros(len(array), dtype=np.int8)
    costs = family.total_cost(sizes) * (1 + num_samples)
    arguments = ((array, sizes, tuple(options)), streams, samples, status)
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
