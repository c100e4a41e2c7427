"""LP-SparseMAP (Niculae and Martins 2020): structures and logic factors over the same parts.

The convex hull of what satisfies all factors at once is out of reach; in its place stands the local
polytope, the intersection of the factors' own hulls. On it argmax of μ·s − ½‖μ‖² is unique, sparse
and differentiable almost everywhere. Where the relaxation is tight it is SparseMAP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.errors import (
    InfeasibleError,
    InvalidScores,
    LatentError,
    NotTractable,
    not_finite_message,
)
from spacy_latent.structures.base import SparseSolution, Structure
from spacy_latent.structures.logic_factors import LogicFactor


@dataclass(frozen=True)
class StructureFactor:
    """A structure over some parts of a graph.

    parts: int array of the shape that the structure's parts have for an item of this length: the
        number in the graph of each part, and −1 for what is no part (the diagonal of a tree's
        arcs), or must not be chosen.
    length: the item's length, or lengths, as the structure takes them.
    """

    structure: Structure
    parts: np.ndarray
    length: int | tuple[int, ...]

    def check(self) -> None:
        """Raise LatentError unless ``parts`` names only what is a part of the structure."""
        name, given = self.structure.name, torch.zeros(1, *np.shape(self.parts))
        if given.dim() != 1 + self.structure.part_axes:
            raise LatentError(
                f"StructureFactor: parts have shape {np.shape(self.parts)}; expected "
                f"{self.structure.part_axes} axes, as the parts of {name} have."
            )
        mask = self.structure.part_mask(given, torch.tensor([self.length]))
        strangers = np.argwhere((np.asarray(self.parts) >= 0) & ~mask[0].numpy())
        if len(strangers):
            raise LatentError(
                f"StructureFactor: {tuple(strangers[0].tolist())} is no part of {name} of length "
                f"{self.length}; give it the number -1."
            )


class FactorGraph:
    """Factors over the parts of one item, which are numbered as its scores are in C order.

    shape: of the scores of the item.
    factors: structures and logic factors. Parts that no factor names do not exist: they stay 0.
        (One that is free is in a Budget of its own.)
    """

    def __init__(
        self, shape: Sequence[int], factors: Sequence[StructureFactor | LogicFactor]
    ) -> None:
        self.shape = tuple(int(size) for size in shape)
        self.structures = [f for f in factors if isinstance(f, StructureFactor)]
        logic = [f.encode() for f in factors if isinstance(f, LogicFactor)]
        if len(self.structures) + len(logic) < len(factors):
            raise LatentError(
                "FactorGraph: every factor has to be a StructureFactor or a LogicFactor; got "
                f"{sorted({type(f).__name__ for f in factors})}."
            )
        for factor in self.structures:
            factor.check()
        self.slots = [np.flatnonzero(f.parts.ravel() >= 0) for f in self.structures]
        members = [f.parts.ravel()[slots] for f, slots in zip(self.structures, self.slots)]
        self.num_structure_edges = sum(len(own) for own in members)
        members += [np.asarray(f.parts, dtype=np.int64) for f in logic]
        self.kinds = np.array([f.kind for f in logic], dtype=np.int8)
        self.limits = np.array([f.limit for f in logic], dtype=np.float64)
        self.flips = np.array([flip for f in logic for flip in f.flips], dtype=np.bool_)
        self.sizes = np.array([len(own) for own in members], dtype=np.int64)
        self.edges = np.concatenate([*members, np.empty(0, dtype=np.int64)]).astype(np.int64)
        if len(self.edges) and self.edges.max() >= np.prod(self.shape):
            raise LatentError(
                f"FactorGraph: a factor names part {self.edges.max()}, but scores of shape "
                f"{self.shape} have the parts 0 to {int(np.prod(self.shape)) - 1}."
            )
        for own in members:
            if len(np.unique(own)) < len(own):
                raise LatentError("FactorGraph: a structure's parts repeat; name each once.")
        # Disjoint factors, which together start the solver; see there.
        claimed = np.zeros(int(np.prod(self.shape)), dtype=np.bool_)
        self.owned = np.zeros(len(self.edges), dtype=np.bool_)
        start = 0
        for own in members:
            if not claimed[own].any():
                claimed[own] = True
                self.owned[start : start + len(own)] = True
            start += len(own)

    def sparsemap(
        self, scores: Tensor, max_iter: int = 1000, tolerance: float = 1e-6
    ) -> GraphSolution:
        """Of one item: ``scores`` are of the graph's shape. See :func:`solve_graphs`, whose batch
        of one this is."""
        return solve_graphs([self], scores[None], max_iter, tolerance)


@dataclass
class GraphSolution(SparseSolution):
    """The solution of LP-SparseMAP: argmax over the local polytope of μ·s − ½‖μ‖².

    It is a point, not a mixture of structures: ``weights`` is one row of ones, and ``atoms`` raises
    NotTractable.

    residual: ``(B,)``, float64: how far the factors are from agreeing, or the gradient from what
        their constraints explain, whichever is more; Euclidean.
    iterations: ``(B,)``, int64.
    gap: half the square of the residual; here not a bound on the duality gap.
    """

    residual: Tensor
    iterations: Tensor


def solve_graphs(
    graphs: Sequence[FactorGraph],
    scores: Tensor,
    max_iter: int = 1000,
    tolerance: float = 1e-6,
    name: str = "FactorGraph",
) -> GraphSolution:
    """LP-SparseMAP of a batch of graphs, one for each item; differentiable once.

    scores: ``(B, *parts)``, float, padded at the end of each axis; −inf forbids a part. What is
        beyond ±1e8 is taken for it.
    max_iter: bound on the iterations of ADMM; an item that reaches it keeps the last point, and
        ``residual`` says how good it is.
    tolerance: bound on the residual.
    name: of what is solved, for errors. They are InvalidScores for NaN and +inf, InfeasibleError
        where it is proved that no point satisfies all factors.
    """
    if max_iter < 1 or not tolerance > 0:
        raise InvalidScores(
            f"{name}.sparsemap: max_iter is {max_iter} and tolerance {tolerance}; "
            "expected max_iter >= 1 and tolerance > 0."
        )
    if not scores.is_floating_point():
        raise InvalidScores(
            f"{name}: scores have dtype {scores.dtype}; expected a floating-point tensor. "
            "Convert them with scores.float()."
        )
    room = scores.shape[1:]
    if len(graphs) != len(scores) or any(
        len(g.shape) != len(room) or any(a > b for a, b in zip(g.shape, room)) for g in graphs
    ):
        raise InvalidScores(
            f"{name}: scores have shape {tuple(scores.shape)}, which does not hold the "
            f"{len(graphs)} items of shapes {sorted({g.shape for g in graphs})[:5]}."
        )
    mean, residual, iterations = _LocalPolytope.apply(scores, graphs, max_iter, tolerance, name)
    weights = scores.new_ones((1, len(graphs)))
    return GraphSolution(mean, weights, 0.5 * residual**2, _refuse(name), residual, iterations)


def _refuse(name: str) -> Callable[[], Tensor]:
    def expand() -> Tensor:
        raise NotTractable(name, "atoms", "mean, the solution itself")

    return expand


class _LocalPolytope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        graphs: Sequence[FactorGraph],
        max_iter: int,
        tolerance: float,
        name: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from spacy_latent.structures.admm import Infeasible, Problem

        ctx.places = _places(graphs, scores)
        flat = scores.detach().to("cpu", torch.float64).reshape(-1).numpy()
        problem = Problem(graphs, flat[ctx.places])
        if problem.not_finite:
            raise InvalidScores(not_finite_message(name, problem.not_finite))
        try:
            solution = problem.solve(max_iter, tolerance)
        except Infeasible as found:
            raise InfeasibleError(name, found.items) from None
        ctx.problem = problem
        mean = np.zeros(scores.numel())
        mean[ctx.places] = solution
        results = (
            torch.from_numpy(mean).view(scores.shape).to(scores),
            torch.from_numpy(problem.residual).to(scores.device),
            torch.from_numpy(problem.iterations).to(scores.device),
        )
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mean: Tensor, *_: Any) -> tuple[Tensor, None, None, None, None]:
        upstream = of_mean.detach().to("cpu", torch.float64).reshape(-1).numpy()
        result = np.zeros(len(upstream))
        result[ctx.places] = ctx.problem.jacobian(upstream[ctx.places])
        gradient = torch.from_numpy(result).view(of_mean.shape).to(of_mean)
        return gradient, None, None, None, None


def _places(graphs: Sequence[FactorGraph], scores: Tensor) -> np.ndarray:
    """Positions in the flattened batch of the parts of one item after the other."""
    index = np.arange(scores.numel()).reshape(scores.shape)
    own = [index[b][tuple(map(slice, g.shape))].ravel() for b, g in enumerate(graphs)]
    return np.concatenate([*own, np.empty(0, dtype=np.int64)]).astype(np.int64)
