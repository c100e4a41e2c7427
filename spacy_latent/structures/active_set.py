"""Active-set method for SparseMAP, which needs nothing but a MAP oracle.

See Niculae et al. 2018a, appendix B; Nocedal and Wright, *Numerical Optimization*, section 16.5;
and Wolfe 1976 for its min-norm-point form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, is_whole, not_finite_message
from spacy_latent.kernels.autograd.arrays import read
from spacy_latent.kernels.autograd.families import check
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.sparsemap import active_set as kernel
from spacy_latent.kernels.sparsemap.support import Support, let_in, polish, row_size, scatter
from spacy_latent.structures.contract import StructureContract
from spacy_latent.structures.faces import Ask
from spacy_latent.structures.results import SparseSolution
from spacy_latent.structures.supports import Supports, asking, asking_kernel, solution_of


def solve_with_oracle(
    structure: StructureContract, scores: Tensor, lengths: Tensor, max_iter: int, tolerance: float
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
    check_options(structure.name, max_iter, tolerance)

    def solve(scores: Tensor) -> Supports:
        return _solve_by_map(structure, scores, lengths, max_iter, least_gap(tolerance))

    return solution_of(scores, solve)


def solve_with_kernel(
    structure: StructureContract,
    scores: Tensor,
    lengths: Tensor,
    max_iter: int,
    tolerance: float,
    oracle: tuple[object, ...],
    most_parts: int,
    costs: Callable[[np.ndarray], np.ndarray],
) -> SparseSolution:
    """Solve as :func:`solve_with_oracle`, with an oracle that is called in the compiled loop.

    For further arguments see :func:`find_supports`.
    """
    check_options(structure.name, max_iter, tolerance)

    def solve(scores: Tensor) -> Supports:
        options = (max_iter, tolerance, oracle, most_parts, costs)
        return find_supports(structure, scores, lengths, *options)

    return solution_of(scores, solve)


def find_supports(
    structure: StructureContract,
    scores: Tensor,
    lengths: Tensor,
    max_iter: int,
    tolerance: float,
    oracle: tuple[object, ...],
    most_parts: int,
    costs: Callable[[np.ndarray], np.ndarray],
) -> Supports:
    """Return the supports that :func:`solve_with_kernel` finds, not differentiable.

    Args:
        scores: ``(B, N, M)``.
        oracle: see kernels.sparsemap.active_set.
        most_parts: largest number of parts of one structure.
        costs: estimated nanoseconds of items, from their lengths, for sharing the batch.
    """
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
        ask=asking_kernel(sizes.copy(), oracle, array.shape[1:], most_parts, costs),
        most=max_iter,
    )
    written = {name: getattr(supports, name) for name in kernel.Solution._fields[:-1]}
    solution = kernel.Solution(**written, status=status)
    arguments = (array, sizes, oracle, max_iter, least_gap(tolerance), solution)
    spread(kernel.solve, costs(sizes) + 2000.0, arguments)
    check(structure.name, status)
    return supports


def check_options(name: str, max_iter: int, tolerance: float) -> None:
    """Raise an error for ``max_iter`` below 1, or a ``tolerance`` of 0 or less."""
    if not is_whole(max_iter, 1) or not tolerance > 0:
        raise InvalidScores(
            f"{name}.sparsemap: max_iter is {max_iter} and tolerance {tolerance}; "
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


# ------------------------------------------------------------------------------------ by map alone


class _Support:
    """Support of one item: rows of part numbers, their weights, and the inverse of G + 11ᵀ."""

    def __init__(self, scores: np.ndarray, parts: np.ndarray, gradient: np.ndarray) -> None:
        """Begin with one structure; ``gradient`` is a copy of the scores for this support alone."""
        self.scores = scores
        self.count = 0
        self.gap = np.inf
        capacity = row_size(1)
        self.atoms = np.full((capacity, max(len(parts), 1)), -1, dtype=np.int32)
        self.inverse = np.zeros((capacity, capacity))
        self.row_sums = np.zeros(capacity)
        self.weights = np.zeros(capacity)
        self.gradient = gradient
        self.indicator = np.zeros(len(scores), dtype=np.int32)
        self.add(parts, 0.0)

    def add(self, parts: np.ndarray, tolerance: float) -> bool:
        """Add an atom, unless it improves the solution by less than the tolerance."""
        self._enlarge(len(parts))
        self.atoms[self.count] = -1
        self.atoms[self.count, : len(parts)] = parts
        count, self.gap = let_in(
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
        polish(self._arrays(), self.atoms.shape[1], self.count, self.scores, workspace)

    def _arrays(self) -> Support:
        return Support(self.atoms, self.inverse, self.row_sums, self.weights, self.gradient)

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
    structure: StructureContract, scores: Tensor, lengths: Tensor, max_iter: int, gap: float
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
    ask = asking(structure, lengths.clone(), tuple(scores.shape[1:]), scores.device)
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
        scatter(support.atoms, count, support.weights, means[b])
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
