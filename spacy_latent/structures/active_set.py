"""SparseMAP from a MAP oracle alone: the active-set method (Niculae et al. 2018a, appendix B;
Nocedal and Wright, *Numerical Optimization*, section 16.5; Wolfe 1976 in its min-norm-point form).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.errors import InvalidScores, not_finite_message
from spacy_latent.kernels import active_set as kernel
from spacy_latent.structures.oracle import Oracle
from spacy_latent.structures.results import SparseSolution


def solve_with_oracle(
    structure: Oracle, scores: Tensor, lengths: Tensor, max_iter: int, tolerance: float
) -> SparseSolution:
    """argmax over the convex hull of the structures of μ·s − ½‖μ‖², with its sparse weights.

    Each iteration asks for the best structure under the gradient s − μ, once for all unfinished
    items, and moves to the optimum over the structures found so far, dropping those whose weight
    falls to zero. It strictly descends, so it ends, with the exact solution; an item that has used
    up its ``max_iter`` calls keeps the optimum over its support, and ``gap`` says how far it is.

    The backward is exact where no weight of the support is zero; it cannot be differentiated again.
    """
    check_options(structure, max_iter, tolerance)
    state: list[_Support] = []
    mean, weights, gap = _ActiveSet.apply(scores, structure, lengths, max_iter, tolerance, state)
    return SparseSolution(mean, weights, gap, _expander(state, weights.shape[0], scores))


def check_options(structure: Oracle, max_iter: int, tolerance: float) -> None:
    if max_iter < 1 or not tolerance > 0:
        raise InvalidScores(
            f"{structure.name}.sparsemap: max_iter is {max_iter} and tolerance {tolerance}; "
            "expected max_iter >= 1 and tolerance > 0."
        )


class _Support:
    """The support of one item: rows of part numbers, their weights, the inverse of G + 11ᵀ."""

    def __init__(self, scores: np.ndarray, parts: np.ndarray) -> None:
        room = kernel.row_room(1)
        self.scores = scores
        self.count = 1
        self.gap = np.inf
        self.atoms = np.full((room, max(len(parts), 1)), -1, dtype=np.int32)
        self.atoms[0, : len(parts)] = parts
        self.inverse = np.zeros((room, room))
        self.row_sums = np.zeros(room)
        self.inverse[0, 0] = self.row_sums[0] = 1.0 / (len(parts) + 1.0)
        self.weights = np.zeros(room)
        self.weights[0] = 1.0
        self.gradient = scores.copy()
        self.gradient[parts] -= 1.0
        self.indicator = np.zeros(len(scores), dtype=np.int32)

    def add(self, parts: np.ndarray, tolerance: float) -> bool:
        """Let an atom in; False where it cannot improve the solution by more than ``tolerance``."""
        reached = self.weights[: self.count] @ self.along_atoms(self.gradient)
        self.gap = float(self.gradient[parts].sum() - reached)
        if self.gap <= tolerance:
            return False
        self._make_room(len(parts))
        self.indicator[parts] = 1
        room = len(self.weights)
        column = np.empty(room)
        kernel.shared_parts(self.atoms, self.count, self.indicator, column)
        self.indicator[parts] = 0
        self.atoms[self.count] = -1
        self.atoms[self.count, : len(parts)] = parts
        count = kernel.enter(
            self.atoms,
            self.atoms.shape[1],
            self.count,
            len(parts),
            self.gap,
            column,
            self.inverse,
            self.row_sums,
            self.weights,
            self.gradient,
            np.empty(room),
            np.empty(room),
        )
        # An atom that depends on the support has no gap beyond rounding.
        self.count = count or self.count
        return count > 0

    def along_atoms(self, values: np.ndarray) -> np.ndarray:
        """The sum of ``values`` over the parts of each atom."""
        atoms = self.atoms[: self.count]
        if not len(values):
            return np.zeros(self.count)
        return np.where(atoms >= 0, values[atoms], 0.0).sum(1)

    def mean(self) -> np.ndarray:
        result = np.zeros(len(self.scores))
        kernel.scatter(self.atoms, self.count, self.weights, result)
        return result

    def finish(self) -> None:
        kernel.polish(
            self.atoms,
            self.atoms.shape[1],
            self.count,
            self.scores,
            self.gradient,
            self.inverse,
            self.row_sums,
            self.weights,
            np.empty(len(self.weights)),
            np.empty(len(self.weights)),
        )
        order = np.argsort(-self.weights[: self.count], kind="stable")
        self.atoms = self.atoms[order]
        self.weights = self.weights[order]
        self.inverse = np.ascontiguousarray(self.inverse[np.ix_(order, order)])

    def _make_room(self, parts: int) -> None:
        rows, width = self.atoms.shape
        if parts > width:
            self.atoms = np.pad(self.atoms, ((0, 0), (0, parts - width)), constant_values=-1)
        if self.count == rows:
            self.atoms = np.pad(self.atoms, ((0, rows), (0, 0)), constant_values=-1)
            self.inverse = np.pad(self.inverse, (0, rows))
            self.row_sums = np.pad(self.row_sums, (0, rows))
            self.weights = np.pad(self.weights, (0, rows))


class _ActiveSet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        structure: Oracle,
        lengths: Tensor,
        max_iter: int,
        tolerance: float,
        state: list[_Support],
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch = scores.shape[0]
        # float64: the gap is the difference of sums of parts that may be as large as the scores.
        masked = scores.detach().double()
        masked = masked.masked_fill(~structure.part_mask(scores, lengths), -torch.inf)
        flat = masked.flatten(1).cpu().numpy()
        finite = (flat < np.inf).all(1)
        if not finite.all():
            items = np.flatnonzero(~finite).tolist()
            raise InvalidScores(not_finite_message(structure.name, items))
        if structure.exclusive_axes and masked.numel():
            # Each structure has one part of these. What they have in common would cost digits.
            top = masked.amax([1 + axis for axis in structure.exclusive_axes], keepdim=True)
            masked = masked - top.masked_fill(top.isneginf(), 0.0)
            flat = masked.flatten(1).cpu().numpy()
        atoms = _ask(structure, masked, lengths)
        wrong = [b for b in range(batch) if np.isneginf(flat[b][atoms[b]]).any()]
        if wrong:
            structure.raise_infeasible(wrong)
        state.extend(_Support(flat[b], atoms[b]) for b in range(batch))
        active = list(range(batch))
        for _ in range(max_iter):
            if not active:
                break
            gradients = torch.from_numpy(np.stack([state[b].gradient for b in active]))
            gradients = gradients.view(len(active), *scores.shape[1:]).to(scores.device)
            index = torch.as_tensor(active, device=lengths.device)
            atoms = _ask(structure, gradients, lengths[index])
            active = [b for b, parts in zip(active, atoms) if state[b].add(parts, tolerance)]
        for support in state:
            support.finish()
        largest = max((support.count for support in state), default=1)
        mean = np.zeros(flat.shape)
        weights = np.zeros((largest, batch))
        for b, support in enumerate(state):
            mean[b] = support.mean()
            weights[: support.count, b] = support.weights[: support.count]
        gap = torch.tensor([max(support.gap, 0.0) for support in state], dtype=torch.float64)
        ctx.state, ctx.shape = state, scores.shape
        results = (
            torch.from_numpy(mean).view(scores.shape).to(scores),
            torch.from_numpy(weights).to(scores),
            gap.to(scores.device),
        )
        ctx.mark_non_differentiable(results[2])
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_gradient: Tensor, weights_gradient: Tensor, _: Any) -> Any:
        upstream = mean_gradient.detach().double().flatten(1).cpu().numpy()
        of_weights = weights_gradient.detach().double().cpu().numpy()
        result = np.zeros_like(upstream)
        for b, support in enumerate(ctx.state):
            total = of_weights[: support.count, b] + support.along_atoms(upstream[b])
            change, row_sums = np.empty((2, support.count))
            kernel.gradient_of_weights(support.count, support.inverse, total, change, row_sums)
            kernel.scatter(support.atoms, support.count, change, result[b])
        gradient = torch.from_numpy(result).view(ctx.shape).to(mean_gradient)
        return gradient, None, None, None, None, None


def _ask(structure: Oracle, scores: Tensor, lengths: Tensor) -> list[np.ndarray]:
    """Part numbers of the best structure of each item."""
    best = structure._map(scores, lengths).flatten(1).cpu().numpy()
    return [np.flatnonzero(row).astype(np.int32) for row in best]


def _expander(state: list[_Support], largest: int, scores: Tensor) -> Callable[[], Tensor]:
    shape, dtype, device = scores.shape, scores.dtype, scores.device

    def expand() -> Tensor:
        atoms = np.zeros((largest, len(state), int(np.prod(shape[1:]))), dtype=np.float32)
        for b, support in enumerate(state):
            for k in range(support.count):
                row = support.atoms[k]
                atoms[k, b, row[row >= 0]] = 1.0
        return torch.from_numpy(atoms).view(largest, *shape).to(device, dtype)

    return expand
