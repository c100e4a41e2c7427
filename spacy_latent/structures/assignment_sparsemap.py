"""SparseMAP of one-to-one alignments by the compiled active-set method: what the generic solver
gives, with the MAP oracle called inside the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.kernels.assignment_active_set import (
    solve_assignments,
    solve_assignments_backward,
)
from spacy_latent.kernels.operators import check, like, read, read_float64
from spacy_latent.kernels.pool import spread
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import SparseSolution, Structure

# Measured order of the nanoseconds of an item of n rows and n columns, for sharing the batch.
COST_PER_CUBE = 60.0


def solve_one_to_one(
    structure: Structure,
    scores: Tensor,
    lengths: Tensor,
    max_iter: int,
    tolerance: float,
    unaligned: bool,
) -> SparseSolution:
    """As :func:`spacy_latent.structures.active_set.solve_with_oracle`, for cells ``(B, N, M)``."""
    check_options(structure, max_iter, tolerance)
    state: dict[str, np.ndarray] = {}
    mean, weights, gap = _AssignmentActiveSet.apply(
        scores, structure, lengths, max_iter, tolerance, unaligned, state
    )
    return SparseSolution(mean, weights, gap, _expander(state, scores, weights.shape[0]))


class _AssignmentActiveSet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        structure: Structure,
        lengths: Tensor,
        max_iter: int,
        tolerance: float,
        unaligned: bool,
        state: dict[str, np.ndarray],
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, rows, columns = scores.shape
        cells, sizes = read(scores, lengths)
        # A support is affinely independent, and the polytope has at most as many dimensions.
        room = min(max_iter, rows * columns + 1) + 2
        atoms = np.empty((batch, room, min(rows, columns)), dtype=np.int32)
        all_weights = np.empty((batch, room))
        inverses = np.empty(batch * room * room)
        offsets = np.zeros(batch, dtype=np.int64)
        means = np.zeros(cells.shape)
        counts = np.zeros(batch, dtype=np.int64)
        gaps = np.zeros(batch)
        status = np.zeros(batch, dtype=np.int8)
        costs = COST_PER_CUBE * sizes.min(1) ** 2 * sizes.max(1) + 2000.0
        outputs = (atoms, all_weights, inverses, offsets, means, counts, gaps, status)
        options = (unaligned, max_iter, tolerance)
        spread(solve_assignments, costs, (cells, sizes, *options, *outputs))
        check(structure.name, status)
        largest = int(counts.max(initial=1))
        kept = all_weights[:, :largest].copy()
        kept[np.arange(largest) >= counts[:, None]] = 0.0
        order = np.argsort(-kept, axis=1, kind="stable")
        # A copy: the rooms above are as large as max_iter allows, and mostly unused.
        state.update(atoms=atoms[:, :largest].copy(), counts=counts, order=order)
        ctx.state, ctx.inverses, ctx.offsets = state, inverses, offsets
        ctx.costs = costs / 10
        ordered = np.take_along_axis(kept, order, 1).T
        results = (
            like(means, scores),
            like(ordered.copy(), scores),
            torch.from_numpy(gaps).to(scores.device),
        )
        ctx.mark_non_differentiable(results[2])
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_gradient: Tensor, weights_gradient: Tensor, _: Any) -> Any:
        state = ctx.state
        of_means = read_float64(mean_gradient).reshape(len(mean_gradient), -1)
        ordered = read_float64(weights_gradient).T
        of_weights = np.empty(ordered.shape)
        np.put_along_axis(of_weights, state["order"], ordered, 1)
        result = np.zeros(of_means.shape)
        support = (state["atoms"], state["counts"], ctx.inverses, ctx.offsets)
        spread(solve_assignments_backward, ctx.costs, (*support, of_means, of_weights, result))
        gradient = like(result.reshape(mean_gradient.shape), mean_gradient)
        return gradient, None, None, None, None, None, None


def _expander(state: dict[str, np.ndarray], scores: Tensor, largest: int) -> Callable[[], Tensor]:
    shape, dtype, device = scores.shape, scores.dtype, scores.device

    def expand() -> Tensor:
        result = np.zeros((largest, shape[0], shape[1] * shape[2]), dtype=np.float32)
        for b, count in enumerate(state["counts"]):
            atoms = state["atoms"][b][state["order"][b, :count]]
            atom, place = np.nonzero(atoms >= 0)
            result[atom, b, atoms[atom, place]] = 1.0
        return torch.from_numpy(result).view(largest, *shape).to(device, dtype)

    return expand
