"""LP-SparseMAP (Niculae and Martins 2020): structures and logic factors over the same parts.

The convex hull of the members that satisfy all factors at once is intractable. The local polytope
replaces it: the intersection of the factors' own hulls. On it, the argmax of μ·s − ½‖μ‖² is unique,
sparse and differentiable almost everywhere. If the relaxation is tight, it is SparseMAP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import (
    InfeasibleError,
    InvalidScores,
    NotTractable,
    not_finite_message,
)
from spacy_latent.kernels.autograd.derivatives import SPARSEMAP_ONCE, last_derivative
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.admm import LARGEST_SCORE, Problem
from spacy_latent.structures.base import SparseSolution
from spacy_latent.structures.encoded_graph import EncodedGraph
from spacy_latent.structures.factor_projections import Infeasible

# Iterations with scores of 0 that suffice to detect infeasible factors.
FEASIBILITY_ITERATIONS = 200
OR_LOOSEN = (
    "Or loosen a constraint: its structures and factors may contradict each other for this item."
)


class ItemGraph(EncodedGraph):
    """Factors over the parts of one item.

    For its arguments see :class:`~spacy_latent.structures.encoded_graph.EncodedGraph`.
    """

    def sparsemap(
        self, scores: Tensor, max_iter: int = 1000, tolerance: float = 1e-6
    ) -> GraphSolution:
        """Solve one item, with ``scores`` of the graph's shape.

        This is :func:`solve_graphs` for a batch of one.
        """
        whole = scores[None] if isinstance(scores, Tensor) else scores
        return solve_graphs([self], whole, max_iter, tolerance)

    def map(self, scores: Tensor) -> Tensor:
        """Return the best 0/1 values of the parts, of the shape and dtype of ``scores``.

        No part may be in two factors. The values are then the best ones of each factor alone.

        Raises:
            NotTractable: a part is in two factors. To find the best values is then NP-hard in
                general.
            InfeasibleError: a factor has no member.
        """
        name = "ItemGraph"
        if not isinstance(scores, Tensor) or tuple(scores.shape) != self.shape:
            shape = f" of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else ""
            raise InvalidScores(
                f"{name}.map: scores are {type(scores).__name__}{shape}; expected a tensor of the "
                f"graph's shape, {self.shape}."
            )
        if not self.owned.all():
            raise NotTractable(
                f"{name} whose factors share parts",
                "map",
                "sparsemap of the scores times a large number, which approaches the best point of "
                "the local polytope; or FactorGraph, which searches the best members of one of its "
                "structures",
            )
        flat = scores.detach().to("cpu", torch.float64).flatten()
        if bool((flat.isnan() | flat.isposinf()).any()):
            raise InvalidScores(not_finite_message(name, [0]))
        best = torch.zeros_like(flat)
        for factor in self.structures:
            parts = torch.from_numpy(factor.parts)
            own = torch.where(parts >= 0, flat[parts.clamp_min(0)], -torch.inf)
            z = factor.structure.map(own[None], torch.tensor([factor.length]))[0]
            best[parts[z > 0]] = 1.0
        for logic in self.logic:
            values = logic.best(flat.numpy())
            if values is None:
                raise InfeasibleError(name, [0], OR_LOOSEN)
            best[logic.parts] = torch.from_numpy(values).to(best)
        return best.view(self.shape).to(scores)


@dataclass
class GraphSolution(SparseSolution):
    """Solution of LP-SparseMAP: argmax over the local polytope of μ·s − ½‖μ‖².

    It is a point, not a mixture of structures: ``weights`` is one row of ones, and ``atoms`` raises
    NotTractable.

    Attributes:
        residual: ``(B,)``, float64. It is the larger of two Euclidean norms: the disagreement of
            the factors, and the part of the gradient that their constraints do not explain. Scores
            are clipped to ±1e8. If a part with a clipped score is not 0 although its score is low,
            or not 1 although it is high, the residual is at least a bound on the effect of
            clipping. This bound may be much too large.
        iterations: ``(B,)``, int64.
        gap: half the square of the residual; here not a bound on the duality gap.
    """

    residual: Tensor
    iterations: Tensor


def solve_graphs(
    graphs: Sequence[EncodedGraph],
    scores: Tensor,
    max_iter: int = 1000,
    tolerance: float = 1e-6,
    name: str = "ItemGraph",
) -> GraphSolution:
    """Solve LP-SparseMAP for a batch of graphs, one for each item; differentiable once.

    Args:
        scores: ``(B, *parts)``, float, padded at the end of each axis; −inf forbids a part. Scores
            are clipped to ±1e8.
        max_iter: bound on the iterations of ADMM. From 200 on it also bounds the calls of a
            structure's oracle before the first iteration. An item that reaches it keeps the last
            point, and ``residual`` measures its error.
        tolerance: bound on the residual.

    Raises:
        InvalidScores: scores have NaN or +inf, or a wrong type or shape; or an option is invalid.
        InfeasibleError: it is proved that no point satisfies all factors.
    """
    check_options(name, max_iter, tolerance)
    if not isinstance(scores, Tensor):
        raise InvalidScores(
            f"{name}: scores are {type(scores).__name__}; expected a tensor. Convert them with "
            "torch.as_tensor()."
        )
    if not scores.is_floating_point():
        raise InvalidScores(
            f"{name}: scores have dtype {scores.dtype}; expected a floating-point tensor. "
            "Convert them with scores.float()."
        )
    sizes = scores.shape[1:]
    if len(graphs) != len(scores) or any(
        len(g.shape) != len(sizes) or any(a > b for a, b in zip(g.shape, sizes)) for g in graphs
    ):
        raise InvalidScores(
            f"{name}: scores have shape {tuple(scores.shape)}, which does not hold the "
            f"{len(graphs)} items of shapes {sorted({g.shape for g in graphs})[:5]}."
        )
    mean, residual, iterations = _LocalPolytope.apply(scores, graphs, max_iter, tolerance, name)
    return point_solution(mean, residual, iterations, name)


def subtract_common_masks(scores: Tensor, axes: Sequence[int]) -> Tensor:
    """Return scores ``(B, *parts)`` with the same solution, of which fewer are clipped.

    A structure has just one part of each group along ``axes`` (0 the first of the parts). So an
    offset that all parts of a group have in common changes nothing. If the second highest score
    would be clipped, it becomes 0. The highest alone may be much larger. −inf stays, and so does
    the gradient.
    """
    if not axes or not scores.numel():
        return scores
    own = sorted(1 + axis for axis in axes)
    rest = [axis for axis in range(scores.dim()) if axis not in own]
    groups = scores.detach().permute(rest + own).flatten(len(rest))
    best = groups.topk(min(2, groups.shape[-1]), -1).values
    second = torch.where(best[..., -1].isfinite(), best[..., -1], best[..., 0])
    far = second.isfinite() & (second.abs() > LARGEST_SCORE)
    common = torch.where(far, second, 0.0)
    for axis in own:
        common = common.unsqueeze(axis)
    return scores - common


def point_solution(mean: Tensor, residual: Tensor, iterations: Tensor, name: str) -> GraphSolution:
    """Return a solution from its point, residual and iterations; ``name`` is for errors."""
    weights = mean.new_ones((1, len(mean)))

    def expand(*_: torch.device) -> Tensor:
        raise NotTractable(name, "atoms", "mean, the solution itself")

    return GraphSolution(mean, weights, 0.5 * residual**2, expand, residual, iterations)


class _LocalPolytope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        graphs: Sequence[EncodedGraph],
        max_iter: int,
        tolerance: float,
        name: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(scores)
        # Positions in the flattened batch of the parts of one item after the other.
        index = np.arange(scores.numel()).reshape(scores.shape)
        own = [index[b][tuple(map(slice, g.shape))].ravel() for b, g in enumerate(graphs)]
        ctx.places = np.concatenate([*own, np.empty(0, dtype=np.int64)]).astype(np.int64)
        flat = scores.detach().to("cpu", torch.float64).reshape(-1).numpy()
        problem = Problem(graphs, flat[ctx.places])
        if problem.not_finite:
            raise InvalidScores(not_finite_message(name, problem.not_finite))
        try:
            solution = problem.solve(max_iter, tolerance)
            _prove_feasible(graphs, problem, tolerance)
        except Infeasible as found:
            raise InfeasibleError(name, found.items, OR_LOOSEN) from None
        ctx.problem = problem
        mean = np.zeros(scores.numel())
        mean[ctx.places] = solution
        results = (
            torch.from_numpy(mean.reshape(scores.shape)).to(scores),
            torch.from_numpy(problem.residual).to(scores.device),
            torch.from_numpy(problem.iterations).to(scores.device),
        )
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    @last_derivative(SPARSEMAP_ONCE)
    def backward(ctx: Any, of_mean: Tensor, *_: Any) -> tuple[Tensor, None, None, None, None]:
        upstream = of_mean.detach().to("cpu", torch.float64).reshape(-1).numpy()
        result = np.zeros(len(upstream))
        result[ctx.places] = ctx.problem.jacobian(upstream[ctx.places])
        gradient = torch.from_numpy(result).view(of_mean.shape).to(of_mean)
        return gradient, None, None, None, None


def _prove_feasible(graphs: Sequence[EncodedGraph], problem: Problem, tolerance: float) -> None:
    """Check that unsolved items have any point that satisfies all factors.

    This does not depend on the scores. With scores of 0 it needs few iterations; large scores hide
    it.
    """
    items = np.flatnonzero(problem.residual > tolerance)
    if not len(items):
        return
    allowed = problem.allowed[np.isin(problem.graphs.item, items)]
    try:
        Problem([graphs[int(b)] for b in items], np.where(allowed, 0.0, -np.inf)).solve(
            FEASIBILITY_ITERATIONS, tolerance
        )
    except Infeasible as found:
        raise Infeasible(items[found.items].tolist()) from None
