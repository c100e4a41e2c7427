"""Branch and bound for the best dependency tree in which words have a budget of modifiers."""

from __future__ import annotations

import heapq

import numpy as np
import torch

from spacy_latent.errors import InfeasibleError
from spacy_latent.structures.dependency import DependencyTree

# Bound on calls of the tree's oracle for the best tree of one item.
MOST_CALLS = 5_000
# Bound on calls in one attempt to find any tree at all.
DEPTH_FIRST_CALLS_PER_WORD = 4
# Steps of the subgradient method for the bound at one node of the search.
BOUND_STEPS = 30


class BudgetSearch:
    """Search for the best tree of one item whose words have at most ``budget`` modifiers.

    The search branches on a word above its budget: one of its arcs is either in the tree or not.
    Bounds come from Lagrangian relaxation, with a price for each modifier of a word.

    Args:
        tree: set of trees without budgets.
        scores: ``(n + 1, n + 1)`` float64, −inf for arcs that are no parts.

    Attributes:
        best, best_score: heads ``(n,)`` of the best tree so far, or None, and its score.
        bound: largest score that a tree can have, if the search was given up after
            :data:`MOST_CALLS`; None otherwise.
    """

    def __init__(self, tree: DependencyTree, budget: int, scores: np.ndarray) -> None:
        self.tree, self.budget, self.scores = tree, budget, scores
        self.best: np.ndarray | None = None
        self.best_score = -np.inf
        self.bound: float | None = None
        self.calls = 0
        self.columns = np.arange(1, len(scores))

    def run(self) -> np.ndarray | None:
        """Return the heads ``(n,)`` of the best tree found, or None if there is no tree."""
        pushed = 0
        waiting = [(-np.inf, 0, self.scores, np.zeros(len(self.columns)))]
        while waiting:
            negative_bound, _, own, prices = heapq.heappop(waiting)
            if self._is_settled(-negative_bound):
                break
            bound, branch, prices = self._relax(own, prices, -negative_bound)
            if self.calls > MOST_CALLS:
                self.bound = max([bound, *(-other[0] for other in waiting[:1])])
                break
            if branch is None or self._is_settled(bound):
                continue
            if self.best is None:
                self._search_depth_first(own, prices)
            for child in self._children(own, branch):
                pushed += 1
                heapq.heappush(waiting, (-bound, pushed, child, prices))
        return self.best

    def _relax(
        self, own: np.ndarray, prices: np.ndarray, bound: float
    ) -> tuple[float, np.ndarray | None, np.ndarray]:
        """Lower the bound of a node by the subgradient method, and keep better trees on the way.

        Args:
            own: scores of the node's trees.
            bound: bound of the node's parent.

        Returns:
            The bound; the heads of a tree above the budgets to branch on, or None; the last prices.
        """
        branch = None
        for step in range(BOUND_STEPS):
            # The first step has no prices: a tree within the budgets is then the best of the node.
            paid = prices if step else np.zeros(len(prices))
            self.calls += 1
            if self.calls > MOST_CALLS:
                break
            relaxed, found = self._cheapest(own, paid)
            if found is None:
                return -np.inf, branch, prices
            slope = np.bincount(found, minlength=len(own))[1:] - self.budget
            relaxed += self.budget * paid.sum()
            bound = min(bound, relaxed)
            if (slope <= 0).all():
                reached = own[found, self.columns].sum()
                if reached > self.best_score:
                    self.best_score, self.best = reached, found.copy()
                if step == 0:
                    bound = reached
            elif branch is None:
                branch = found.copy()
            if branch is None or self._is_settled(bound) or (step and not slope.any()):
                break
            goal = self.best_score if self.best is not None else relaxed - 1.0
            length = max(relaxed - goal, 1e-3) / max(float(slope @ slope), 1.0)
            prices = np.maximum(prices + length * slope, 0.0)
        return bound, branch, prices

    def _is_settled(self, bound: float) -> bool:
        """Return whether no tree below this bound is better than the best, except by rounding."""
        best = self.best_score
        return bound <= best + (1e-10 * (1.0 + abs(best)) if np.isfinite(best) else 0.0)

    def _cheapest(self, own: np.ndarray, prices: np.ndarray) -> tuple[float, np.ndarray | None]:
        """Return the score less prices, and the heads, of the best tree without budgets."""
        charged = own.copy()
        charged[1:] -= prices[:, None]
        size = torch.tensor([len(prices)], device="cpu")
        try:
            heads = self.tree.best_heads(torch.from_numpy(charged)[None], size)
        except InfeasibleError:
            return -np.inf, None
        found = heads[0, 1:].numpy()
        return charged[found, self.columns].sum(), found

    def _search_depth_first(self, own: np.ndarray, prices: np.ndarray) -> None:
        """Keep a good tree within the budgets, if a few calls find one."""
        waiting = [own]
        for _ in range(DEPTH_FIRST_CALLS_PER_WORD * len(prices)):
            if not waiting:
                return
            scores = waiting.pop()
            _, found = self._cheapest(scores, prices)
            if found is None:
                continue
            if not excess(found, self.budget).any():
                self.best_score, self.best = own[found, self.columns].sum(), found
                return
            waiting += reversed(self._children(scores, found))

    def _children(self, scores: np.ndarray, heads: np.ndarray) -> list[np.ndarray]:
        """Return the scores of two halves of the trees.

        One half has an arc of the word with the most modifiers, the other half does not.
        """
        fullest = int(excess(heads, self.budget).argmax()) + 1
        fixed = np.isfinite(scores[:, 1:]).sum(0) == 1
        free = np.flatnonzero((heads == fullest) & ~fixed) + 1
        held = int(((heads == fullest) & fixed).sum())
        if held > self.budget or not len(free):
            return []
        without = scores.copy()
        if held == self.budget:
            without[fullest, free] = -np.inf
            return [without]
        modifier = free[scores[fullest, free].argmax()]
        without[fullest, modifier] = -np.inf
        taken = scores.copy()
        taken[:, modifier] = -np.inf
        taken[fullest, modifier] = scores[fullest, modifier]
        return [taken, without]


def excess(heads: np.ndarray, budget: int) -> np.ndarray:
    """Return the number of modifiers above the budget of each of the words ``(n,)``."""
    return np.maximum(np.bincount(heads, minlength=len(heads) + 1)[1:] - budget, 0)
