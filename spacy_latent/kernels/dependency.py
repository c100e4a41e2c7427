"""Kernels of dependency structures as torch operators.

Each family of trees gives the same three kernels over one range of items; the operators here add
the batch, the threads, the checks of what was read, and the gradients:
log_partition → marginals → the product of its Hessian with a vector. Tensors on a GPU are solved on
the CPU and sent back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, not_finite_message
from spacy_latent.kernels.pool import spread
from spacy_latent.kernels.status import INFEASIBLE, NOT_FINITE

LOG_PARTITION, MARGINALS, HESSIAN_PRODUCT = 0, 1, 2


@dataclass(frozen=True)
class Family:
    """The kernels of a family of trees, and what they cost.

    best, total, sample: as in kernels.arborescence and kernels.matrix_tree.
    best_cost, total_cost: estimated nanoseconds from the number of tokens.
    """

    best: Callable[..., None]
    total: Callable[..., None]
    sample: Callable[..., None]
    best_cost: Callable[[np.ndarray], np.ndarray]
    total_cost: Callable[[np.ndarray], np.ndarray]


@cache
def family_of(name: str) -> Family:
    """Kernels are compiled and read from numba's cache only once they are needed."""
    if name == "SpanningTree":
        from spacy_latent.kernels.arborescence import best_arborescences
        from spacy_latent.kernels.matrix_tree import sample_trees, sum_over_trees

        return Family(
            best_arborescences,
            sum_over_trees,
            sample_trees,
            lambda n: 500 + 4.5 * n**2,
            lambda n: 1_000 + 10 * n**2 + 0.25 * n**3,
        )
    if name == "ProjectiveTree":
        from spacy_latent.kernels.inside_outside import (
            best_projective_trees,
            sample_projective_trees,
            sum_over_projective_trees,
        )

        return Family(
            best_projective_trees,
            sum_over_projective_trees,
            sample_projective_trees,
            lambda n: 500 + 10 * n**2 + 0.4 * n**3,
            lambda n: 1_000 + 20 * n**2 + 0.4 * n**3,
        )
    raise KeyError(name)


def _read(scores: Tensor, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return scores.detach().cpu().contiguous().numpy(), lengths.cpu().contiguous().numpy()


def _check(name: str, status: np.ndarray) -> None:
    if not status.any():
        return
    not_finite = np.flatnonzero(status == NOT_FINITE).tolist()
    if not_finite:
        raise InvalidScores(not_finite_message(name, not_finite))
    raise InfeasibleError(name, np.flatnonzero(status == INFEASIBLE).tolist())


@torch.library.custom_op("spacy_latent::best_trees", mutates_args=())
def best_trees(
    scores: Tensor, lengths: Tensor, name: str, direction: int, max_arc_length: int, one_root: bool
) -> Tensor:
    """Heads of the best trees, ``(B, N+1)`` int32, −1 for node 0 and padding."""
    family = family_of(name)
    matrix, sizes = _read(scores, lengths)
    heads = np.empty(matrix.shape[:2], dtype=np.int32)
    status = np.zeros(len(matrix), dtype=np.int8)
    arguments = (matrix, sizes, direction, max_arc_length, one_root, heads, status)
    spread(family.best, family.best_cost(sizes), arguments)
    _check(name, status)
    return torch.from_numpy(heads).to(scores.device)


@best_trees.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape[:2], dtype=torch.int32)


def _total(
    scores: Tensor,
    lengths: Tensor,
    name: str,
    direction: int,
    max_arc_length: int,
    one_root: bool,
    what: int,
    change: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    family = family_of(name)
    matrix, sizes = _read(scores, lengths)
    along = matrix[:0].astype(np.float64)
    if change is not None:
        along = np.ascontiguousarray(change.detach().cpu().numpy(), dtype=np.float64)
    log_partition = np.empty(len(matrix))
    result = np.empty(matrix.shape if what else (0, 0, 0))
    status = np.zeros(len(matrix), dtype=np.int8)
    constraints = (direction, max_arc_length, one_root)
    outputs = (log_partition, result, status)
    costs = family.total_cost(sizes) * (1 + 2 * what)
    spread(family.total, costs, (matrix, sizes, *constraints, along, what, *outputs))
    _check(name, status)
    # NumPy converts: torch's threads would spin on, on the core that the next call needs.
    arrays = (array.astype(matrix.dtype, copy=False) for array in (log_partition, result))
    first, second = (torch.from_numpy(array).to(scores.device) for array in arrays)
    return first, second


@torch.library.custom_op("spacy_latent::tree_log_partition", mutates_args=())
def tree_log_partition(
    scores: Tensor, lengths: Tensor, name: str, direction: int, max_arc_length: int, one_root: bool
) -> Tensor:
    """log Σ exp(score) over trees, ``(B,)``."""
    arguments = (scores, lengths, name, direction, max_arc_length, one_root)
    return _total(*arguments, LOG_PARTITION)[0]


@torch.library.custom_op("spacy_latent::tree_marginals", mutates_args=())
def tree_marginals(
    scores: Tensor, lengths: Tensor, name: str, direction: int, max_arc_length: int, one_root: bool
) -> Tensor:
    """Probabilities of arcs, like ``scores``; zero at what is no arc."""
    arguments = (scores, lengths, name, direction, max_arc_length, one_root)
    return _total(*arguments, MARGINALS)[1]


@torch.library.custom_op("spacy_latent::tree_hessian_product", mutates_args=())
def tree_hessian_product(
    scores: Tensor,
    change: Tensor,
    lengths: Tensor,
    name: str,
    direction: int,
    max_arc_length: int,
    one_root: bool,
) -> Tensor:
    """The Hessian of the log-partition times ``change``, like ``scores``."""
    arguments = (scores, lengths, name, direction, max_arc_length, one_root)
    return _total(*arguments, HESSIAN_PRODUCT, change)[1]


@tree_log_partition.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape[:1])


@tree_marginals.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@tree_hessian_product.register_fake
def _(scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.constraints = inputs[2:]


def _log_partition_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    scores, lengths = ctx.saved_tensors
    marginals = tree_marginals(scores, lengths, *ctx.constraints)
    return gradient[:, None, None] * marginals, None, None, None, None, None


def _marginals_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    scores, lengths = ctx.saved_tensors
    product = tree_hessian_product(scores, gradient, lengths, *ctx.constraints)
    return product, None, None, None, None, None


tree_log_partition.register_autograd(_log_partition_backward, setup_context=_keep)
tree_marginals.register_autograd(_marginals_backward, setup_context=_keep)


def sample_trees(
    scores: Tensor,
    lengths: Tensor,
    name: str,
    direction: int,
    max_arc_length: int,
    one_root: bool,
    num_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Heads of exact samples, ``(num_samples, B, N+1)`` int32, −1 for node 0 and padding."""
    family = family_of(name)
    matrix, sizes = _read(scores, lengths)
    # One stream for each item: a draw does not depend on the threads or on the other items' luck.
    seeds = torch.randint(1, 2**62, (len(matrix),), generator=generator).numpy().astype(np.uint64)
    samples = np.empty((num_samples, *matrix.shape[:2]), dtype=np.int32)
    status = np.zeros(len(matrix), dtype=np.int8)
    costs = family.total_cost(sizes) * (1 + num_samples)
    constraints = (direction, max_arc_length, one_root)
    spread(family.sample, costs, (matrix, sizes, *constraints, seeds, samples, status))
    _check(name, status)
    return torch.from_numpy(samples).to(scores.device)
