"""Dependency trees with a budget: a largest number of modifiers for each word."""

from __future__ import annotations

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
    check_whole,
)
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.kernels.core.gpu_transfers import fetch, send
from spacy_latent.kernels.sparsemap.tree_prices import nearest_average
from spacy_latent.structures import budget_search
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import SparseSolution, Structure
from spacy_latent.structures.budget_prices import average_of_trees, nearest_average_of_trees
from spacy_latent.structures.budget_search import BudgetSearch, excess
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

# Bound on the numbers in a table of the dynamic program for projective trees.
MOST_NUMBERS = 10_000_000
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
    advice = (
        "sparsemap (the SparseMAP estimator with its defaults), or ProjectiveTree or SpanningTree"
    )
    # Unlike other trees, it has no kernels for sums.
    _log_partition, _marginals = Structure._log_partition, Structure._marginals

    def __init__(
        self,
        max_modifiers: int = 2,
        projective: bool = False,
        single_root: bool = False,
        direction: Direction = "any",
        max_arc_length: int | None = None,
    ) -> None:
        super().__init__(single_root, direction, max_arc_length)
        check_whole(self.name, least=0, error=InvalidScores, max_modifiers=max_modifiers)
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

        Projective trees, and items that this leaves unsolved, are solved without the budgets first,
        which takes 0 iterations. The best point of this larger set is also the best within the
        budgets if it satisfies them. If it does not, modifiers get prices, and new trees are found
        under them. See :func:`~spacy_latent.structures.budget_prices.nearest_average_of_trees`.

        All other items are solved by ADMM with trees and budgets as factors, which clips scores
        to ±1e8. Prices need arcs of a modifier whose scores differ by at most 1e8. If the
        solution uses an arc that is worse by more, the scores of its item are divided until no
        difference is larger.

        Args:
            max_iter: a tenth of a bound that holds for each of three numbers: iterations for
                prices, iterations of ADMM, and calls of the oracle over all trees. If ADMM reaches
                the bound, ``residual`` measures the error of the point.
            tolerance: bound on the residual.
        """
        check_options(self.name, max_iter, tolerance)
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
        every = torch.arange(len(lengths), device="cpu")
        return every, found.mean, found.residual, found.iterations

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
            if excess(heads[b, 1 : n + 1].numpy(), self.max_modifiers).any():
                window = scores[b, : n + 1, : n + 1].detach().double()
                found = self._search(tree, window, n)
                if found is None:
                    wrong.append(b)
                else:
                    heads[b, 1 : n + 1] = torch.from_numpy(found).to(heads)
        if wrong:
            self.raise_infeasible(wrong)
        return heads

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return self._indicate(self.best_heads(scores, lengths), scores, lengths)

    def _search(self, tree: DependencyTree, scores: Tensor, n: int) -> np.ndarray | None:
        """Return the heads ``(n,)`` of the best tree, or None if there is no tree.

        Projective trees use a dynamic program, others branch and bound.
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
        search = BudgetSearch(tree, self.max_modifiers, open_scores)
        found = search.run()
        if search.bound is not None:
            if found is None:
                raise NotTractable(self.name, f"map of {n} tokens", self.advice)
            warnings.warn(
                f"{self.name}: the search for the best tree of {n} tokens was stopped after "
                f"{budget_search.MOST_CALLS} calls of the oracle. The score of the tree found is "
                f"{search.best_score + level:.6g}; the best is at most {search.bound + level:.6g}.",
                LatentWarning,
                stacklevel=2,
            )
        return found

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        raise NotTractable(self.name, "sample", self.advice)
