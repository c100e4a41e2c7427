"""Alignments of each word of one sentence with one word of another: attention, word by word."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_flags
from spacy_latent.kernels.autograd.tracing import INFEASIBLE, not_traced, refuse
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.alignment import Alignment
from spacy_latent.structures.base import Reparameterized, SparseSolution, Structure
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.row_choices import RowChoices


class ManyToOneAlignment(RowChoices, Alignment):
    """Sets of cells with exactly one in each row, and any number in each column.

    Each word of the first sentence is aligned with one word of the second (the alignments of Brown
    et al. 1993, models 1 and 2). For scores and lengths see :class:`Alignment`. If one sentence is
    empty, there is one alignment, the empty one.

    Rows are independent. Marginals are the softmax of each, decomposable attention (Parikh et al.
    2016, equation 2). SparseMAP is sparsemax of each (Martins and Astudillo 2016), with
    ``unaligned`` the projection on {p ≥ 0, Σp ≤ 1}.

    Args:
        unaligned: a word may stay alone, at a score of 0: at most one cell in each row.
    """

    choice_axis = 1

    def __init__(self, unaligned: bool = False) -> None:
        check_flags(self.name, error=InvalidScores, unaligned=unaligned)
        self.unaligned = unaligned
        if not unaligned:
            self.exclusive_axes = (1,)  # type: ignore[misc]

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, ManyToOneAlignment):
            return super().covers(other)
        return self.unaligned or not other.unaligned

    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        rows, sizes = self._rows(scores, lengths)
        found = OneOfN().reparameterize(rows, sizes)
        parts = (found.z, *(self._anchored(one, sizes) for one in (found.noisy, found.redrawn)))
        return Reparameterized(*(self._parts(part, scores) for part in parts))

    def redraw(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        prepared, lengths = self._read(scores, lengths)
        rows, sizes = self._rows(prepared, lengths)
        chosen = (self._rows(z.detach(), lengths)[0] == 1).to(rows)
        if self.unaligned:
            chosen[:, 0] = torch.where(sizes > 0, 1 - chosen[:, 1:].sum(1), 0.0)
        redrawn = OneOfN().redraw(chosen, rows, sizes)
        return self._parts(self._anchored(redrawn, sizes), prepared)

    def _anchored(self, noisy: Tensor, sizes: Tensor) -> Tensor:
        """Shift noisy scores of rows so that an unaligned word scores 0.

        That is its score without noise.
        """
        if not self.unaligned:
            return noisy
        return torch.where((sizes > 0)[:, None], noisy - noisy[:, :1], noisy)

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Return the exact solution; the last two arguments have no effect."""
        from spacy_latent.kernels.choices.simplex import capped_simplex, sparsemax

        check_options(self.name, max_iter, tolerance)
        prepared, lengths = self._read(scores, lengths)
        rows, sizes = self._rows(prepared.double(), lengths)
        if self.unaligned:
            # An unaligned word has no part, so its share is not in the squared norm.
            sizes = sizes - (sizes > 0).to(sizes)
            dense = capped_simplex(rows[:, 1:], sizes, 1, False, self.name)
            alone = torch.where(sizes > 0, 1 - dense.sum(1), 0.0).clamp_min(0.0)
            dense = torch.cat([alone[:, None], dense], 1)
        else:
            dense = sparsemax(rows, sizes, self.name)
        return self._solution(dense, prepared, scores.dtype)

    def _rows(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the checked scores of the choices of each word, and the number of choices.

        Scores are ``(B·N, M)``, or ``(B·N, 1 + M)`` with a leading 0 for an unaligned word.
        """
        sizes = lengths.to(scores.device)
        inside = self.part_mask(scores, sizes)
        masked = self._mask(scores, inside)
        if not self.unaligned:
            none = (masked.isneginf().all(2) & inside.any(2)).any(1)
            masked = refuse(masked, none, INFEASIBLE, self.name)
        else:
            masked = torch.cat([masked.new_zeros(*masked.shape[:2], 1), masked], 2)
        # The number of choices is the number of columns with words.
        row = torch.arange(scores.shape[1], device=scores.device)[None]
        columns = sizes[:, 1:] + self.unaligned * (sizes[:, 1:] > 0)
        choices = torch.where(row < sizes[:, :1], columns, 0)
        return masked.flatten(0, 1), choices.flatten()

    def _parts(self, rows: Tensor, scores: Tensor) -> Tensor:
        """Reshape ``(..., B·N, choices)`` to ``(..., B, N, M)``."""
        cells = rows.view(*rows.shape[:-2], *scores.shape[:2], rows.shape[-1])
        return cells[..., 1:] if self.unaligned else cells
