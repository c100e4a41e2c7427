"""Active-set method for SparseMAP, which needs nothing but a MAP oracle.

See Niculae et al. 2018a, appendix B; Nocedal and Wright, *Numerical Optimization*, section 16.5;
and Wolfe 1976 for its min-norm-point form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, is_whole, not_finite_message
from spacy_latent.kernels.autograd.derivatives import (
    SPARSEMAP_ONCE,
    last_derivative,
    refuse_tangents,
)
from spacy_latent.kernels.autograd.operators import check, in_precision_of, like, read, read_float64
from spacy_latent.kernels.core.gpu_transfers import fetch_together, remember, send, send_together
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.sparsemap import active_set as kernel
from spacy_latent.kernels.sparsemap.faces import Items
from spacy_latent.structures.faces import Ask, Faces, padded
from spacy_latent.structures.oracle import Oracle
from spacy_latent.structures.results import SparseSolution


def solve_with_oracle(
    structure: Oracle, scores: Tensor, lengths: Tensor, max_iter: int, tolerance: float
) -> SparseSolution:
    """Return the argmax of μ·s − ½‖μ‖² over the convex hull of the structures.

    The solution holds the mean μ and its sparse weights.

    Each iteration finds the best structure under the gradient s − μ, with one call for all
    unfinished items. It then moves to the optimum over the structures found so far, and drops those
    whose weight falls to zero. The objective strictly increases, so the search ends with the exact
    solution. An item that has used up its ``max_iter`` calls keeps the optimum over its support,
    and ``gap`` bounds its error.

    The backward is exact wherever the solution has a derivative. It cannot be differentiated again.
    The gradient of the mean uses all structures that tie with the support, see
    :class:`~spacy_latent.structures.faces.Faces`. The gradient of the weights uses the support
    alone.

    Args:
        tolerance: see :func:`least_gap`.
    """
    check_options(structure, max_iter, tolerance)

    def solve(scores: Tensor) -> Supports:
        return _solve_by_map(structure, scores, lengths, max_iter, least_gap(tolerance))

    return _solution(scores, solve)


def solve_with_kernel(
    structure: Oracle,
    scores: Tensor,
    lengths: Tensor,
    max_iter: int,
    tolerance: float,
    oracle: tuple[object, ...],
    most_parts: int,
    costs: Callable[[np.ndarray], np.ndarray],
) -> SparseSolution:
    """Solve as :func:`solve_with_oracle`, with an oracle that is called in the compiled loop.

    Args:
        scores: ``(B, N, M)``.
        oracle: see kernels.sparsemap.active_set.
        most_parts: largest number of parts of one structure.
        costs: estimated nanoseconds of items, from their lengths, for sharing the batch.
    """
    check_options(structure, max_iter, tolerance)

    def solve(scores: Tensor) -> Supports:
        options = (max_iter, tolerance, oracle, most_parts, costs)
        return find_supports(structure, scores, lengths, *options)

    return _solution(scores, solve)


def find_supports(
    structure: Oracle,
    scores: Tensor,
    lengths: Tensor,
    max_iter: int,
    tolerance: float,
    oracle: tuple[object, ...],
    most_parts: int,
    costs: Callable[[np.ndarray], np.ndarray],
) -> Supports:
    """Return the supports that :func:`solve_with_kernel` finds, not differentiable."""
    array, sizes = read(scores, lengths)
    batch, parts = len(array), array[0].size if len(array) else 0
    # A support is affinely independent, and the polytope has at most as many dimensions.
    capacity = min(max_iter, parts + 1) + 2
    status = np.zeros(batch, dtype=np.int8)
    supports = Supports(
        atoms=np.empty((batch, capacity, most_parts), dtype=np.int32),
        weights=np.empty((batch, capacity)),
        inverses=np.empty(batch * capacity * capacity),
        offsets=np.zeros(batch, dtype=np.int64),
        means=np.zeros((batch, parts)),
        residuals=np.full((batch, parts), -np.inf),
        counts=np.zeros(batch, dtype=np.int64),
        gaps=np.zeros(batch),
        ask=_asking_kernel(sizes.copy(), oracle, array.shape[1:], most_parts, costs),
        most=max_iter,
    )
    written = {name: getattr(supports, name) for name in kernel.Solution._fields[:-1]}
    solution = kernel.Solution(**written, status=status)
    arguments = (array, sizes, oracle, max_iter, least_gap(tolerance), solution)
    spread(kernel.solve, costs(sizes) + 2000.0, arguments)
    check(structure.name, status)
    return supports


def check_options(structure: Oracle, max_iter: int, tolerance: float) -> None:
    if not is_whole(max_iter, 1) or not tolerance > 0:
        raise InvalidScores(
            f"{structure.name}.sparsemap: max_iter is {max_iter} and tolerance {tolerance}; "
            "expected a whole number max_iter >= 1 and tolerance > 0."
        )


# Share of the tolerance at which the search ends. A structure of the support that is still missing
# has a small weight. It changes the mean little, but the gradient as much as any other.
SHARE_OF_TOLERANCE = 0.1


def least_gap(tolerance: float) -> float:
    """Return the duality gap at which the search for better structures ends.

    The mean is at most √(2·gap) from the optimum, which is well within the tolerance.
    """
    return 0.5 * (SHARE_OF_TOLERANCE * tolerance) ** 2


# ------------------------------------------------------------------------------------ gradients

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
        at once, as kernels.sparsemap.active_set.gradient_of_weights computes one.
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


def _asking(
    structure: Oracle, lengths: Tensor, shape: tuple[int, ...], device: torch.device
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


def _asking_kernel(
    sizes: np.ndarray,
    oracle: tuple[object, ...],
    shape: tuple[int, ...],
    most_parts: int,
    costs: Callable[[np.ndarray], np.ndarray],
) -> Ask:
    """Return the same as :func:`_asking` for an oracle that kernels call."""

    def ask(which: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        found = np.empty((2, len(which), most_parts), dtype=np.int32)
        given = (which, sizes, oracle, shape[1], gradients.reshape(2, len(sizes), -1), found)
        spread(kernel.find_both, SHARE_OF_CALLS * costs(sizes[which]), given)
        return found

    return ask


def _solution(scores: Tensor, solve: Callable[[Tensor], Supports]) -> SparseSolution:
    refuse_tangents("sparsemap", scores)
    state: list[Any] = []
    mean, weights, gap = _ActiveSet.apply(scores, solve, state)
    supports, order, known = state
    remember(weights, known)
    expand = _expander(supports, order, scores)
    number = partial(_numbers, supports, order)
    return SparseSolution(mean, weights, gap, expand, _number=number)


class _ActiveSet(torch.autograd.Function):
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


# ------------------------------------------------------------------------------------ by map alone


class _Support:
    """Support of one item: rows of part numbers, their weights, and the inverse of G + 11ᵀ."""

    def __init__(self, scores: np.ndarray, parts: np.ndarray, gradient: np.ndarray) -> None:
        """Begin with one structure.

        Args:
            gradient: a row that belongs to this support alone and holds the scores.
        """
        self.scores = scores
        self.count = 0
        self.gap = np.inf
        capacity = kernel.row_size(1)
        self.atoms = np.full((capacity, max(len(parts), 1)), -1, dtype=np.int32)
        self.inverse = np.zeros((capacity, capacity))
        self.row_sums = np.zeros(capacity)
        self.weights = np.zeros(capacity)
        self.gradient = gradient
        self.indicator = np.zeros(len(scores), dtype=np.int32)
        self.add(parts, 0.0)

    def add(self, parts: np.ndarray, tolerance: float) -> bool:
        """Add an atom; return False if it cannot improve the solution enough.

        Args:
            parts: parts of the atom.
            tolerance: smallest improvement that counts.
        """
        self._enlarge(len(parts))
        self.atoms[self.count] = -1
        self.atoms[self.count, : len(parts)] = parts
        count, self.gap = kernel.let_in(
            self._arrays(),
            self.atoms.shape[1],
            self.count,
            False,
            tolerance,
            False,
            self.indicator,
            np.empty((3, len(self.weights))),
        )
        # An atom that depends on the support has no gap beyond rounding.
        self.count = count or self.count
        return count > 0

    def finish(self) -> None:
        workspace = np.empty((3, len(self.weights)))
        kernel.polish(self._arrays(), self.atoms.shape[1], self.count, self.scores, workspace)

    def _arrays(self) -> kernel.Support:
        return kernel.Support(self.atoms, self.inverse, self.row_sums, self.weights, self.gradient)

    def _enlarge(self, parts: int) -> None:
        rows, width = self.atoms.shape
        if parts > width:
            self.atoms = np.pad(self.atoms, ((0, 0), (0, parts - width)), constant_values=-1)
        if self.count == rows:
            self.atoms = np.pad(self.atoms, ((0, rows), (0, 0)), constant_values=-1)
            self.inverse = np.pad(self.inverse, (0, rows))
            self.row_sums = np.pad(self.row_sums, (0, rows))
            self.weights = np.pad(self.weights, (0, rows))


def _solve_by_map(
    structure: Oracle, scores: Tensor, lengths: Tensor, max_iter: int, gap: float
) -> Supports:
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
        # Each structure has one part of these. A common offset would cost digits.
        top = masked.amax([1 + axis for axis in structure.exclusive_axes], keepdim=True)
        masked = masked - top.masked_fill(top.isneginf(), 0.0)
        flat = masked.flatten(1).cpu().numpy()
    atoms = structure._best_parts(masked, lengths)
    wrong = [b for b in range(batch) if np.isneginf(flat[b][atoms[b]]).any()]
    if wrong:
        structure.raise_infeasible(wrong)
    gradients = flat.copy()
    state = [_Support(flat[b], atoms[b], gradients[b]) for b in range(batch)]
    active = list(range(batch))
    for _ in range(max_iter):
        if not active:
            break
        # Neighbours need no copy, which takes as long as some oracles do.
        together = active[-1] - active[0] == len(active) - 1
        own = gradients[active[0] : active[-1] + 1] if together else gradients[active]
        given = torch.from_numpy(own).view(len(active), *scores.shape[1:]).to(scores.device)
        index = torch.as_tensor(active, device=lengths.device)
        atoms = structure._best_parts(given, lengths[index])
        active = [b for b, parts in zip(active, atoms) if state[b].add(parts, gap)]
    for support in state:
        support.finish()
    ask = _asking(structure, lengths.clone(), tuple(scores.shape[1:]), scores.device)
    return _pack(state, gradients, ask, max_iter)


def _pack(state: list[_Support], residuals: np.ndarray, ask: Ask, most: int) -> Supports:
    counts = np.array([support.count for support in state], dtype=np.int64)
    largest = int(counts.max(initial=1))
    width = max((support.atoms.shape[1] for support in state), default=1)
    atoms = np.full((len(state), largest, width), -1, dtype=np.int32)
    weights, means = np.zeros((len(state), largest)), np.zeros(residuals.shape)
    for b, (support, count) in enumerate(zip(state, counts)):
        atoms[b, :count, : support.atoms.shape[1]] = support.atoms[:count]
        weights[b, :count] = support.weights[:count]
        kernel.scatter(support.atoms, count, support.weights, means[b])
    inverses = [support.inverse[:count, :count].ravel() for support, count in zip(state, counts)]
    return Supports(
        atoms=atoms,
        weights=weights,
        inverses=np.concatenate([np.empty(0), *inverses]),
        offsets=np.cumsum(counts**2) - counts**2,
        means=means,
        residuals=residuals,
        counts=counts,
        gaps=np.array([support.gap for support in state], dtype=np.float64),
        ask=ask,
        most=most,
    )
