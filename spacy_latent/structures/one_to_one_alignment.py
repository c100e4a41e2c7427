"""One-to-one alignments of the words of two sentences: assignments, or matchings."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_flags
from spacy_latent.kernels.alignments.assignment import best_alignments
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.kernels.sparsemap.assignment_active_set import AssignmentOracle
from spacy_latent.structures.active_set import solve_with_kernel
from spacy_latent.structures.alignment import Alignment
from spacy_latent.structures.base import SparseSolution, Structure

# Measured order of the nanoseconds of an item of n rows and n columns, for sharing the batch.
COST_PER_CUBE = 60.0


def _costs(sizes: np.ndarray) -> np.ndarray:
    return COST_PER_CUBE * sizes.min(1) ** 2 * sizes.max(1)


class OneToOneAlignment(Alignment):
    """Sets of cells with at most one in each row and each column.

    For scores and lengths see :class:`Alignment`. If one sentence is empty, there is one alignment,
    the empty one.

    MAP is by shortest augmenting paths (Jonker and Volgenant 1987), O(n²m) for n ≤ m words. Sums
    over alignments are permanents, which are #P-hard to compute (Valiant 1979).

    Args:
        unaligned: any word may stay alone, at a score of 0; else every word of the shorter sentence
            is aligned.
    """

    masks_itself = True
    advice = (
        "sinkhorn, its entropic relaxation; sparsemap; or an estimator that needs only the best "
        "structure (SparseMAP, Spigot, PerturbAndMap, StraightThrough with backward='identity')"
    )

    def __init__(self, unaligned: bool = False) -> None:
        check_flags(self.name, error=InvalidScores, unaligned=unaligned)
        self.unaligned = unaligned
        self.incomparable = not unaligned

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, OneToOneAlignment):
            return super().covers(other)
        return self.unaligned or not other.unaligned

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return best_alignments(scores, lengths, self.unaligned, self.name)

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        prepared, lengths = self._read(scores, lengths)
        oracle = AssignmentOracle(self.unaligned, not self.unaligned)
        options = (max_iter, tolerance, oracle, min(prepared.shape[1:]), _costs)
        return solve_with_kernel(self, prepared, lengths, *options).cast(scores.dtype)

    @not_traced
    def sinkhorn(
        self,
        scores: Tensor,
        lengths: Tensor,
        temperature: float = 1.0,
        max_iter: int = 1000,
        tolerance: float = 1e-6,
    ) -> Tensor:
        """Return the entropic relaxation, ``(B, N, M)``; differentiable.

        It is the argmax of Σ P·s − temperature · Σ P (log P − 1) over matrices P whose rows and
        columns have the same sums as in an alignment. The sums are 1 for a word that must be
        aligned, else at most 1. The result is not E[z] under any distribution of interest. With a
        falling temperature it tends to the best alignment, ever more slowly.

        The method normalises rows and columns in turn, on logarithms (Sinkhorn 1967; Cuturi 2013;
        for sums of at most 1, Benamou et al. 2015). The gradient goes through the steps taken.

        Args:
            temperature: larger is smoother.
            max_iter: bound on the number of steps, each one of the rows and one of the columns. A
                larger scores / temperature needs more of them. If they do not suffice, sums of
                columns are right and sums of rows are not.
            tolerance: the steps of an item end when no logarithm of its sums is wrong by more.
        """
        if not temperature > 0 or max_iter < 1 or not tolerance > 0:
            raise InvalidScores(
                f"{self.name}.sinkhorn: temperature is {temperature}, max_iter {max_iter} and "
                f"tolerance {tolerance}; expected temperature > 0, max_iter >= 1, tolerance > 0."
            )
        # Raises an error that names items that are not finite or have no alignment.
        self.map(scores, lengths)
        prepared, lengths = self._read(scores, lengths)
        inside = self.part_mask(prepared, lengths) & ~prepared.isneginf()
        # Finite, so that no gradient is NaN, and so low that its exponential is zero. In float64,
        # since at a low temperature small differences of large numbers count.
        lowest = torch.finfo(torch.float64).min / 8
        logits = torch.where(inside, prepared.double() / temperature, lowest)
        rows, columns = inside.any(2), inside.any(1)
        must_rows = (lengths[:, 0] <= lengths[:, 1])[:, None] & (not self.unaligned)
        must_columns = (lengths[:, 1] <= lengths[:, 0])[:, None] & (not self.unaligned)
        row_shift = torch.zeros_like(logits[:, :, :1].sum(2))
        column_shift = torch.zeros_like(logits[:, :1].sum(1))
        # Each item ends at its own step, whatever the rest of the batch.
        live = torch.ones_like(row_shift[:, :1], dtype=torch.bool)
        if logits.numel():
            for _ in range(max_iter):
                total = (logits - column_shift[:, None]).logsumexp(2)
                total = torch.where(must_rows, total, total.clamp_min(0.0))
                total = torch.where(rows, total, 0.0)
                wrong = (total - row_shift).detach().abs().amax(1, keepdim=True)
                row_shift = torch.where(live, total, row_shift)
                total = (logits - row_shift[:, :, None]).logsumexp(1)
                total = torch.where(must_columns, total, total.clamp_min(0.0))
                column_shift = torch.where(live, torch.where(columns, total, 0.0), column_shift)
                live = live & (wrong > tolerance)
                if not bool(live.any()):
                    break
        plan = (logits - row_shift[:, :, None] - column_shift[:, None]).exp()
        return torch.where(inside, plan, 0.0).to(scores.dtype)
