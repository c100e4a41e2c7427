"""Checks of SparseMAP."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.structures.base import SparseSolution
from spacy_latent.testing.contract_scores import StructureChecks
from spacy_latent.testing.reports import gradient


class SparsemapChecks(StructureChecks):
    """Checks of SparseMAP."""

    def check_sparsemap(self) -> None:
        """Check that SparseMAP's mean is optimal, and its gradient right."""
        for given, scores in self.cases():
            if not self.average(given, scores):
                return
        if self.structure.has_map:
            for dtype in (torch.float16, torch.bfloat16):
                given, scores = f"scores in {dtype}", self.scores(0.5, offset=2000).to(dtype)
                solution = self._call("sparsemap", scores, self.lengths, 1000, 1e-9, given=given)
                self.of_the_list(given, solution)
        self.gradient_of_sparsemap()

    def average(self, given: str, scores: Tensor) -> bool:
        """Check SparseMAP; return False if the structure has none."""
        solution = self._call("sparsemap", scores, self.lengths, 1000, 1e-9, given=given)
        if solution is None:
            return False
        self.nothing_outside("sparsemap", given, solution.mean, scores)
        if self.structure.has_map:
            self.mixture(given, solution, scores)
        self.optimal(given, solution, scores)
        return True

    def mixture(self, given: str, solution: SparseSolution, scores: Tensor) -> None:
        """Check that weights are sorted and average the atoms to the mean."""
        weights, atoms = solution.weights, solution.atoms
        report, tolerance = self.report, 1e-7
        ones = torch.ones_like(weights[0])
        report.same("sparsemap", f"{given}, sums of weights", weights.sum(0), ones, 0, tolerance)
        report.holds(
            "sparsemap",
            (weights >= 0).all() and (weights[:-1] >= weights[1:]).all(),
            f"{given}: weights are negative, or not the heaviest first.",
        )
        shaped = weights.view(*weights.shape, *[1] * (atoms.dim() - 2))
        summed, what = (shaped * atoms).sum(0), f"{given}, the weighted sum of atoms"
        report.same("sparsemap", what, summed, solution.mean, 0, tolerance)
        self.of_the_list(given, solution)
        for b in range(len(self.listing)):
            there = weights[:, b] > 0
            report.holds(
                "sparsemap",
                not atoms[~there, b].any(),
                f"{given}, {self.listing.item(b)}: an atom without weight is not zero.",
            )

    def of_the_list(self, given: str, solution: SparseSolution) -> None:
        """Check that all atoms with a weight are members."""
        for b in range(len(self.listing)):
            there = solution.weights[:, b] > 0
            number = self.listing.find(b, solution.atoms[there, b])
            self.report.holds(
                "sparsemap",
                (number >= 0).all(),
                f"{given}, {self.listing.item(b)}: an atom is no structure of the list.",
            )

    def optimal(self, given: str, solution: SparseSolution, scores: Tensor) -> None:
        """Assert that no structure is better than the mean along the gradient s − μ there."""
        for b in range(len(self.listing)):
            z, _ = self.listing.feasible(scores, b)
            used = z.bool().any(0)
            mean = self.listing.own(solution.mean.detach(), b)
            slope = torch.where(used, self.listing.own(scores, b) - mean, 0.0)
            reached = (mean * slope).sum()
            best = (z * slope).flatten(1).sum(1).max()
            size = 1.0 + float(slope.abs().max()) if slope.numel() else 1.0
            where = f"{given}, {self.listing.item(b)}"
            if not self.structure.has_map:
                # A point of a larger polytope must be at least as good as every structure.
                own = torch.where(used, self.listing.own(scores, b), 0.0)
                values = (z * own).flatten(1).sum(1) - 0.5 * z.flatten(1).sum(1)
                value = (mean * own).sum() - 0.5 * mean.square().sum()
                self.report.holds(
                    "sparsemap",
                    value >= values.max() - 1e-5 * size,
                    f"{where}: the objective is {float(value)}, that of a structure "
                    f"{float(values.max())}.",
                )
                continue
            self.report.holds(
                "sparsemap",
                best - reached <= 1e-7 * size,
                f"{where}: along s - mean a structure has {float(best):.9g} and the mean "
                f"{float(reached):.9g}; expected none above the mean.",
            )
            self.report.holds(
                "sparsemap",
                solution.gap[b] >= float(best - reached) - 1e-7 * size,
                f"{where}: the gap is {float(best - reached):.3g}, and is said to be "
                f"{float(solution.gap[b]):.3g}.",
            )

    def gradient_of_sparsemap(self) -> None:
        """Check gradients with differences, and through the weights."""
        scores = self.scores(0.7, forbids=True, offset=3000, fill=0.0)
        free = self.parts() & scores.isfinite()
        leaf = scores[free].requires_grad_()

        def mean(values: Tensor) -> Tensor:
            full = scores.masked_scatter(free, values)
            return self.structure.sparsemap(full, self.lengths, 1000, 1e-11).mean

        self.report.agrees_with_differences("sparsemap", "", mean, leaf, 1e-3, 1e-4)
        if not self.structure.has_map:
            return
        whole = scores.clone().requires_grad_()
        solution = self.structure.sparsemap(whole, self.lengths, 1000, 1e-11)
        up = self.random(41, *scores.shape)
        shares = (solution.atoms * up).flatten(2).sum(2)
        self.report.same(
            "sparsemap",
            "the gradient through weights, that through the mean expected",
            gradient((solution.weights * shares).sum(), whole),
            gradient((solution.mean * up).sum(), whole),
            1e-5,
        )
