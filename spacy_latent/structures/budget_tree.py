"""Dependency trees with a budget: a largest number of modifiers for each word."""

from __future__ import annotations

import heapq
import warnings
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import (
    InfeasibleError,
    InvalidScores,
    LatentWarning,
    NotTractable,
    check_flags,
)
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.kernels.core.gpu_transfers import fetch, send
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import SparseSolution
from spacy_latent.structures.budget_prices import average_of_trees, nearest_average_of_trees
from spacy_latent.structures.dependency import DependencyTree, Direction
from spacy_latent.structures.encoded_graph import StructureFactor
from spacy_latent.structures.logic_factors import Budget
from spacy_latent.structures.lp_sparsemap import (
    ItemGraph,
    point_solution,
    solve_graphs,
    subtract_common_masks,
)
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

ADVICE = "sparsemap (the SparseMAP estimator with its defaults), or ProjectiveTree or SpanningTree"
# Bound on the numbers in a table of the dynamic program for projective trees.
MOST_NUMBERS = 10_000_000
# Bound on calls of the tree's oracle for the best tree of one item.
MOST_CALLS = 5_000
# Bound on calls in one attempt to find any tree at all.
DEPTH_FIRST_CALLS_PER_WORD = 4
# Steps of the subgradient method for the bound at one node of the search.
BOUND_STEPS = 30
# ADMM takes more and cheaper steps than an active set does. If scores are small, the projection on
# the trees needs some hundreds of them in the support.
ITERATIONS_PER_CALL = 10
# Largest gap, over the largest score, of a complete solution over all trees. The support has some
# hundred trees, whose weights are sums of as many numbers.
LARGEST_GAP = 1e-8


class BudgetTree(DependencyTree):
    """Dependency trees in which every word has at most ``max_modifiers`` modifiers.

    Experimental: may change in any version.

    The root may have any number. For the other arguments and shapes see :class:`DependencyTree`.

    ``sparsemap`` is LP-SparseMAP (Niculae and Martins 2020) with trees and budgets as factors of
    one graph. Its mean lies in the hull of all trees, and satisfies the budgets on average. It is
    not always an average of trees that each satisfy them, so it has no atoms.

    To find the best tree with a budget is NP-hard for crossing arcs (with a budget of one, it is a
    Hamiltonian path). ``map``, meant for annotation, is then a branch and bound. It is exact unless
    it needs more than 5,000 calls of the tree's oracle. After these it returns the best tree so
    far, and warns with a bound on its distance from the best. For projective trees ``map`` is a
    dynamic program. Estimators that need ``map`` are refused. Sums are not tractable.

    Args:
        projective: arcs drawn above the sentence do not cross.
    """

    tractable: ClassVar[frozenset[str]] = frozenset()
    has_map: ClassVar[bool] = False

    def __init__(
        self,
        max_modifiers: int = 2,
        projective: bool = False,
        single_root: bool = False,
        direction: Direction = "any",
        max_arc_length: int | None = None,
    ) -> None:
        super().__init__(single_root, direction, max_arc_length)
        if max_modifiers < 0:
            raise InvalidScores(
                f"{self.name}: max_modifiers is {max_modifiers}; expected at least 0."
            )
        check_flags(self.name, error=InvalidScores, projective=projective)
        self.max_modifiers = max_modifiers
        self.projective = projective

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        return not self.projective

    @property
    def most_modifiers(self) -> float:  # type: ignore[override]
        return self.max_modifiers

    @property
    def tree(self) -> DependencyTree:
        """Set of the same trees without a budget."""
        kind = ProjectiveTree if self.projective else SpanningTree
        return kind(self.single_root, self.direction, self.max_arc_length)

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Return the solution of LP-SparseMAP.

        It is a :class:`~spacy_latent.structures.lp_sparsemap.GraphSolution`.

        If arcs may cross, prices of the constraints are searched for, see
        :func:`~spacy_latent.kernels.sparsemap.tree_prices.nearest_average`.

        For projective trees, all trees are tried first without the budgets, which takes 0
        iterations. The best point of this larger set is also the best within the budgets if it
        satisfies them. If it does not, modifiers get prices, and new trees are found under them.
        See :func:`~spacy_latent.structures.budget_prices.nearest_average_of_trees`.

        Items that neither method solves are left to ADMM with trees and budgets, which clips scores
        to ±1e8. Prices need arcs of a modifier whose scores differ by at most 1e8. If the
        solution uses an arc that is worse by more, the scores of its item are divided until no
        difference is larger.

        Args:
            max_iter: a tenth of a bound that holds for each of three numbers: iterations for
                prices, iterations of ADMM, and calls of the oracle over all trees. If ADMM reaches
                the bound, ``residual`` measures the error of the point.
            tolerance: bound on the residual.
        """
        check_options(self, max_iter, tolerance)
        own, given, known = self.at_hand(scores, lengths)
        prepared, lengths = own.masked(given, fetch(known))
        steps = max_iter * ITERATIONS_PER_CALL
        mean = prepared.masked_fill(torch.ones_like(prepared, dtype=torch.bool), 0.0)
        residual = torch.zeros(len(lengths), dtype=torch.float64, device="cpu")
        iterations = torch.zeros(len(lengths), dtype=torch.int64, device="cpu")
        left = torch.arange(len(lengths), device="cpu")
        ways = [self._by_trees, self._by_prices_of_trees, self._by_both]
        for solve in ways if self.projective else [self._by_prices, *ways]:
            if not len(left):
                break
            try:
                solved, *found = solve(prepared[left], lengths[left], steps, tolerance)
            except InfeasibleError as error:
                items = [int(left[item]) for item in error.items]
                raise InfeasibleError(self.name, items) from None
            except InvalidScores as error:
                raise InvalidScores(str(error).replace(self.tree.name, self.name)) from None
            places = left[solved]
            mean = mean.index_copy(0, places, found[0])
            residual[places], iterations[places] = found[1], found[2]
            still = torch.ones(len(left), dtype=torch.bool, device="cpu")
            still[solved] = False
            left = left[still]
        solution = point_solution(mean, residual, iterations, self.name)
        return solution.cast(scores.dtype).sent(scores.device)

    # Each of these methods returns the items that it solved, and their mean, residual and
    # iterations.

    def _by_prices(
        self, scores: Tensor, lengths: Tensor, steps: int, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from spacy_latent.kernels.sparsemap.tree_prices import nearest_average

        options = (self.max_modifiers, self.single_root, steps, tolerance)
        return self._solved(*nearest_average(scores, lengths, *options))

    def _by_prices_of_trees(
        self, scores: Tensor, lengths: Tensor, steps: int, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        options = (self.max_modifiers, steps, tolerance)
        return self._solved(*nearest_average_of_trees(self.tree, scores, lengths, *options))

    def _solved(
        self, mean: Tensor, residual: Tensor, iterations: Tensor, infeasible: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if infeasible.any():
            self.raise_infeasible(infeasible.nonzero().flatten().tolist())
        solved = residual.isfinite().nonzero().flatten()
        return solved, mean[solved], residual[solved], iterations[solved]

    def _by_trees(
        self, scores: Tensor, lengths: Tensor, steps: int, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        options = (self.max_modifiers, steps, tolerance)
        mean, gap = average_of_trees(self.tree, scores, lengths, *options)
        within = (mean.detach()[:, 1:].sum(2) <= self.max_modifiers + tolerance).all(1)
        # Items that were given up are not solved. Rounding leaves a gap for those that were solved.
        largest = scores.detach().masked_fill(scores.isinf(), 0.0).abs().amax((1, 2))
        exact = gap <= LARGEST_GAP * largest.clamp_min(1.0)
        solved = (within & exact).nonzero().flatten()
        residual = (2.0 * gap[solved]).sqrt()
        return solved, mean[solved], residual, torch.zeros_like(solved)

    def _by_both(
        self, scores: Tensor, lengths: Tensor, steps: int, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        graphs = self._graphs(lengths.tolist())
        near = subtract_common_masks(scores, self.exclusive_axes)
        found = solve_graphs(graphs, near, steps, tolerance, self.name)
        return (
            torch.arange(len(lengths), device="cpu"),
            found.mean,
            found.residual,
            found.iterations,
        )

    def _graphs(self, sizes: list[int]) -> list[ItemGraph]:
        """Return graphs of a tree and budgets, for items of these numbers of words."""
        graphs: dict[int, ItemGraph] = {}
        for n in set(sizes):
            shape = (n + 1, n + 1)
            allowed = self.part_mask(
                torch.empty(1, *shape, device="cpu"), torch.tensor([n], device="cpu")
            )[0].numpy()
            parts = np.where(allowed, np.arange((n + 1) ** 2).reshape(shape), -1)
            rows = [row[row >= 0].tolist() for row in parts[1:]]
            budgets = [Budget(r, self.max_modifiers) for r in rows if len(r) > self.max_modifiers]
            graphs[n] = ItemGraph(shape, [StructureFactor(self.tree, parts, n), *budgets])
        return [graphs[n] for n in sizes]

    @not_traced
    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        modifiers = z[:, 1:].sum(2)
        return self.tree.contains(z, lengths) & (modifiers <= self.max_modifiers).all(1)

    @not_traced
    def best_heads(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if scores.device.type != "cpu":
            own, given, sizes = self.at_hand(scores.detach(), lengths)
            return send(own.best_heads(given, sizes), scores.device)
        tree = self.tree
        try:
            heads = tree.best_heads(scores, lengths)
        except InfeasibleError as error:
            raise InfeasibleError(self.name, error.items) from None
        wrong = []
        for b, n in enumerate(lengths.tolist()):
            if self._excess(heads[b, 1 : n + 1].cpu().numpy(), n).any():
                window = scores[b, : n + 1, : n + 1].detach().to("cpu", torch.float64)
                found = self._search(tree, window, n)
                if found is None:
                    wrong.append(b)
                else:
                    heads[b, 1 : n + 1] = torch.from_numpy(found).to(heads)
        if wrong:
            self.raise_infeasible(wrong)
        return heads

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        heads = self.best_heads(scores, lengths)
        z = scores.new_zeros((heads.shape[0], *scores.shape[1:]))
        chosen = (heads >= 0).to(z.dtype)
        return z.scatter_(1, heads.clamp_min(0).long().unsqueeze(1), chosen.unsqueeze(1))

    def _excess(self, heads: np.ndarray, n: int) -> np.ndarray:
        """Return the number of modifiers above the budget of each of the words ``(n,)``."""
        return np.maximum(np.bincount(heads, minlength=n + 1)[1:] - self.max_modifiers, 0)

    def _search(self, tree: DependencyTree, scores: Tensor, n: int) -> np.ndarray | None:
        """Return the heads ``(n,)`` of the best tree, or None if there is no tree.

        Projective trees use a dynamic program, others branch and bound. The search branches on a
        word above its budget: one of its arcs is either in the tree or not. Bounds come from
        Lagrangian relaxation, with a price for each modifier of a word.
        """
        mask = self.part_mask(scores[None], torch.tensor([n], device="cpu"))[0]
        open_scores = torch.where(mask, scores, -torch.inf).numpy()
        # Each word has one head. So a common offset of all its heads has no effect, and would take
        # digits of sums that decide the best tree.
        highest = open_scores.max(0)
        highest = np.where(np.isfinite(highest), highest, 0.0)
        open_scores, level = open_scores - highest, highest.sum()
        if self.projective:
            from spacy_latent.kernels.spans.budget_eisner import best_budget_tree, table_size

            budget = min(self.max_modifiers, n)
            if table_size(n, budget) <= MOST_NUMBERS:
                own_heads = np.empty(n + 1, dtype=np.int32)
                exists = best_budget_tree(open_scores, budget, self.single_root, own_heads)
                return own_heads[1:] if exists else None
        size, columns = torch.tensor([n], device="cpu"), np.arange(1, n + 1)
        best_score, best = -np.inf, None
        calls, pushed = 0, 0
        waiting = [(-np.inf, 0, open_scores, np.zeros(n))]
        while waiting:
            negative_bound, _, own, prices = heapq.heappop(waiting)
            if -negative_bound <= best_score + _slack(best_score):
                break
            bound, branch = -negative_bound, None
            for step in range(BOUND_STEPS):
                # The first step has no prices: a tree within the budgets is then the best of the
                # node.
                paid = np.zeros(n) if step == 0 else prices
                calls += 1
                if calls > MOST_CALLS:
                    if best is None:
                        raise NotTractable(self.name, f"map of {n} tokens", ADVICE)
                    most = max([bound, *(-other[0] for other in waiting[:1])])
                    warnings.warn(
                        f"{self.name}: the search for the best tree of {n} tokens was given up "
                        f"after {MOST_CALLS} calls of the oracle. The tree found has the score "
                        f"{best_score + level:.6g}; none has more than {most + level:.6g}.",
                        LatentWarning,
                        stacklevel=2,
                    )
                    return best
                charged = own.copy()
                charged[1:] -= paid[:, None]
                try:
                    heads = tree.best_heads(torch.from_numpy(charged)[None], size)
                except InfeasibleError:
                    bound = -np.inf
                    break
                found = heads[0, 1:].numpy()
                counts = np.bincount(found, minlength=n + 1)[1:]
                relaxed = charged[found, columns].sum() + self.max_modifiers * paid.sum()
                bound = min(bound, relaxed)
                if (counts <= self.max_modifiers).all():
                    reached = own[found, columns].sum()
                    if reached > best_score:
                        best_score, best = reached, found.copy()
                    if step == 0:
                        bound = reached
                elif branch is None:
                    branch = found.copy()
                if branch is None or bound <= best_score + _slack(best_score):
                    break
                slope = counts - self.max_modifiers
                if step and not slope.any():
                    break
                goal = best_score if best is not None else relaxed - 1.0
                length = max(relaxed - goal, 1e-3) / max(float(slope @ slope), 1.0)
                prices = np.maximum(prices + length * slope, 0.0)
            if branch is None or bound <= best_score + _slack(best_score):
                continue
            if best is None:
                best = self._search_depth_first(tree, own, prices, n)
                if best is not None:
                    best_score = own[best, columns].sum()
            for child in self._children(own, branch, n):
                pushed += 1
                heapq.heappush(waiting, (-bound, pushed, child, prices))
        return best

    def _search_depth_first(
        self, tree: DependencyTree, scores: np.ndarray, prices: np.ndarray, n: int
    ) -> np.ndarray | None:
        """Return the heads of a good tree within the budgets, found depth first.

        The result is None if a few calls have found no such tree.
        """
        waiting = [scores]
        for _ in range(DEPTH_FIRST_CALLS_PER_WORD * n):
            if not waiting:
                break
            own = waiting.pop()
            charged = own.copy()
            charged[1:] -= prices[:, None]
            try:
                heads = tree.best_heads(
                    torch.from_numpy(charged)[None], torch.tensor([n], device="cpu")
                )
            except InfeasibleError:
                continue
            found = heads[0, 1:].numpy()
            if not self._excess(found, n).any():
                return found
            waiting += reversed(self._children(own, found, n))
        return None

    def _children(self, scores: np.ndarray, heads: np.ndarray, n: int) -> list[np.ndarray]:
        """Return the scores of two halves of the trees.

        One half has an arc of the word with the most modifiers, the other half does not.
        """
        fullest = int(self._excess(heads, n).argmax()) + 1
        fixed = np.isfinite(scores[:, 1:]).sum(0) == 1
        free = np.flatnonzero((heads == fullest) & ~fixed) + 1
        held = int(((heads == fullest) & fixed).sum())
        if held > self.max_modifiers or not len(free):
            return []
        without = scores.copy()
        if held == self.max_modifiers:
            without[fullest, free] = -np.inf
            return [without]
        modifier = free[scores[fullest, free].argmax()]
        without[fullest, modifier] = -np.inf
        taken = scores.copy()
        taken[:, modifier] = -np.inf
        taken[fullest, modifier] = scores[fullest, modifier]
        return [taken, without]

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        raise NotTractable(self.name, "log_partition", ADVICE)

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        raise NotTractable(self.name, "marginals", ADVICE)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        raise NotTractable(self.name, "sample", ADVICE)


def _slack(score: float) -> float:
    """Return the largest difference of a bound from a score that is only rounding."""
    return 1e-10 * (1.0 + abs(score)) if np.isfinite(score) else 0.0
