"""Supports of SparseMAP's solutions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.autograd.arrays import in_precision_of, like, read_float64
from spacy_latent.kernels.autograd.derivatives import (
    SPARSEMAP_ONCE,
    last_derivative,
    refuse_tangents,
)
from spacy_latent.kernels.core.gpu_transfers import fetch_together, remember, send, send_together
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.sparsemap import active_set as kernel
from spacy_latent.kernels.sparsemap.faces import Items
from spacy_latent.structures.contract import StructureContract
from spacy_latent.structures.faces import Ask, Faces, padded
from spacy_latent.structures.results import SparseSolution

# Estimated share of two oracle calls among all calls that find a support.
SHARE_OF_CALLS = 0.05


@dataclass
class Supports:
    """Supports of all items, as kernels.sparsemap.active_set.solve writes them.

    Its arrays may be larger than needed.

    Attributes:
        ask, most: for structures that tie with the supports, see
            :class:`~spacy_latent.structures.faces.Faces`.
    """

    atoms: np.ndarray
    weights: np.ndarray
    inverses: np.ndarray
    offsets: np.ndarray
    means: np.ndarray
    residuals: np.ndarray
    counts: np.ndarray
    gaps: np.ndarray
    ask: Ask
    most: int

    def sort(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights, the heaviest first, and the rows of their atoms.

        This releases the arrays that are not needed any more.

        Returns:
            Weights ``(B, K)``, with K the size of the largest support, and the rows.
        """
        largest = int(self.counts.max(initial=1))
        kept = self.weights[:, :largest].copy()
        kept[np.arange(largest) >= self.counts[:, None]] = 0.0
        # A copy, since the arrays are as large as max_iter allows, and mostly unused.
        self.atoms, self.weights = self.atoms[:, :largest].copy(), kept
        order = np.argsort(-kept, axis=1, kind="stable")
        return np.take_along_axis(kept, order, 1), order

    def change_of_weights(self, item: int, change: np.ndarray) -> np.ndarray:
        """Return the derivative of an item's weights along changes of the scores of its support.

        Both are ``(K, *)``, one row for each structure of the support. This computes many changes
        at once, as kernels.sparsemap.support.gradient_of_weights computes one.
        """
        size, start = int(self.counts[item]), self.offsets[item]
        inverse = self.inverses[start : start + size * size].reshape(size, size)
        rows = inverse.sum(1)
        moved = inverse @ change
        return moved - np.multiply.outer(rows / rows.sum(), moved.sum(0))

    def pull_back(self, of_means: np.ndarray) -> np.ndarray:
        """Return the gradient of scores for a gradient of means, both like ``means``."""
        starts = np.arange(len(self.means) + 1) * self.means.shape[1]
        items = Items(starts, self.residuals.reshape(-1), self.atoms, self.counts.copy())
        faces = Faces(items, self.inverses, self.offsets, None, self.most, self.ask)
        return faces.pull_back(of_means.reshape(-1)).reshape(of_means.shape)

    def pull_back_weights(self, of_weights: np.ndarray) -> np.ndarray:
        """Return the gradient of scores, like ``means``, for a gradient of weights.

        Structures that tie with the support do not enter it.
        """
        result = np.zeros(self.means.shape)
        # Nanoseconds for the data that is read: atoms, and the inverse.
        costs = self.counts * (1.0 * self.atoms.shape[2] + self.counts)
        inputs = (self.atoms, self.counts, self.inverses, self.offsets)
        spread(kernel.pull_back_weights, costs, (*inputs, of_weights, result))
        return result


def asking(
    structure: StructureContract, lengths: Tensor, shape: tuple[int, ...], device: torch.device
) -> Ask:
    """Return a function that finds the best structures of some items, see :class:`Faces`."""

    def ask(which: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        batch = len(lengths)
        given = gradients.reshape(2 * batch, *shape)
        # No copy for a batch with all its items: a copy takes as long as some oracles do.
        own = given if len(which) == batch else given[np.concatenate([which, which + batch])]
        index = torch.as_tensor(which, device=lengths.device).repeat(2)
        found = structure._best_parts(torch.from_numpy(own).to(device), lengths[index])
        return padded(found).reshape(2, len(which), -1)

    return ask


def asking_kernel(
    sizes: np.ndarray,
    oracle: tuple[object, ...],
    shape: tuple[int, ...],
    most_parts: int,
    costs: Callable[[np.ndarray], np.ndarray],
) -> Ask:
    """Return the same as :func:`asking` for an oracle that kernels call."""

    def ask(which: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        found = np.empty((2, len(which), most_parts), dtype=np.int32)
        given = (which, sizes, oracle, shape[1], gradients.reshape(2, len(sizes), -1), found)
        spread(kernel.find_both, SHARE_OF_CALLS * costs(sizes[which]), given)
        return found

    return ask


def solution_of(scores: Tensor, solve: Callable[[Tensor], Supports]) -> SparseSolution:
    """Return the solution that a solver finds, with its gradient for the scores."""
    refuse_tangents("sparsemap", scores)
    state: list[Any] = []
    mean, weights, gap = _Solution.apply(scores, solve, state)
    supports, order, known = state
    remember(weights, known)
    expand = _expander(supports, order, scores)
    number = partial(_numbers, supports, order)
    return SparseSolution(mean, weights, gap, expand, _number=number)


class _Solution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, solve: Callable[[Tensor], Supports], state: list[Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Missing gradients would be copied from a GPU as zeros.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores)
        supports = solve(scores)
        weights, order = supports.sort()
        ctx.supports, ctx.order, ctx.shape = supports, order, scores.shape
        found = [
            in_precision_of(supports.means.reshape(scores.shape), scores),
            in_precision_of(np.ascontiguousarray(weights.T), scores),
            torch.from_numpy(supports.gaps),
        ]
        state.extend((supports, order, found[1]))
        if scores.device.type != "cpu":
            # torch forbids in-place changes of several views that one function returns.
            found = [part.clone() for part in send_together(found, scores.device)]
        mean, shares, gap = found
        ctx.mark_non_differentiable(gap)
        return mean, shares, gap

    @staticmethod
    @last_derivative(SPARSEMAP_ONCE)
    def backward(ctx: Any, of_mean: Tensor | None, of_shares: Tensor | None, _: Any) -> Any:
        supports: Supports = ctx.supports
        given = [gradient for gradient in (of_mean, of_shares) if gradient is not None]
        if not given:
            return None, None, None
        fetched = fetch_together(given)
        result = np.zeros(supports.means.shape)
        if of_mean is not None:
            own = read_float64(fetched.pop(0))
            result += supports.pull_back(own.reshape(supports.means.shape))
        if of_shares is not None:
            of_weights = np.zeros(supports.weights.shape)
            np.put_along_axis(of_weights, ctx.order, read_float64(fetched.pop(0)).T, 1)
            result += supports.pull_back_weights(of_weights)
        return like(result.reshape(ctx.shape), given[0]), None, None


def _expander(supports: Supports, order: np.ndarray, scores: Tensor) -> Callable[..., Tensor]:
    shape, dtype, own = scores.shape, scores.dtype, scores.device
    largest, parts = supports.weights.shape[1], supports.means.shape[1]

    def expand(device: torch.device = own) -> Tensor:
        if device.type != "cpu":
            return _marked(supports, order, shape, device).to(dtype)
        result = np.zeros((largest, shape[0], parts), dtype=np.float32)
        for b, count in enumerate(supports.counts):
            atoms = supports.atoms[b][order[b, :count]]
            atom, slot = np.nonzero(atoms >= 0)
            result[atom, b, atoms[atom, slot]] = 1.0
        return torch.from_numpy(result).view(largest, *shape).to(dtype)

    return expand


def _numbers(supports: Supports, order: np.ndarray) -> np.ndarray:
    """Return the part numbers of all structures ``(K, B, W)`` in this order, padded with −1."""
    places = np.take_along_axis(supports.atoms, order[:, :, None], 1)
    places[order >= supports.counts[:, None]] = -1
    return places.swapaxes(0, 1)


def _marked(
    supports: Supports, order: np.ndarray, shape: torch.Size, device: torch.device
) -> Tensor:
    """Return the structures ``(K, B, *parts)``, 0/1 in single precision.

    Only the numbers of their parts are sent to a GPU, a tenth of the bytes or less.
    """
    places = _numbers(supports, order)
    count = supports.means.shape[1]
    places = np.where(places < 0, count, places).astype(np.int32)
    index = send(torch.from_numpy(np.ascontiguousarray(places)), device).long()
    marked = torch.zeros(*index.shape[:2], count + 1, device=device)
    marked.scatter_(2, index, 1.0)
    return marked[..., :count].unflatten(2, shape[1:])
