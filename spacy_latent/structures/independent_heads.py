"""Independent choices of a head for each token, a baseline for trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spacy_latent.kernels.autograd.tracing import INFEASIBLE, not_traced, refuse
from spacy_latent.structures.active_set import check_options
from spacy_latent.structures.base import SparseSolution
from spacy_latent.structures.dependency import DependencyTree, Direction
from spacy_latent.structures.row_choices import RowChoices


class IndependentHeads(RowChoices, DependencyTree):
    """Graphs in which each token has one head, another token or the root.

    They may have cycles, and any number of tokens may be attached to the root, also 0. So they are
    not always trees. For the arguments and shapes see :class:`DependencyTree`.

    Sums are a softmax for each token (as in Dozat and Manning 2017), the best graph is an argmax,
    and SparseMAP a sparsemax: attention. If a latent tree is no better than this, it gains nothing
    from being a tree.
    """

    acyclic = False
    choice_axis = 0

    def __init__(self, direction: Direction = "any", max_arc_length: int | None = None) -> None:
        super().__init__(False, direction, max_arc_length)

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in super()._settings().items() if name != "single_root"}

    def best_heads(self, scores: Tensor, lengths: Tensor) -> Tensor:
        prepared, lengths = self._read(scores.detach(), lengths)
        found = self._map(prepared, lengths)
        heads = found.argmax(1)
        return torch.where(found.sum(1) > 0, heads, -1).to(torch.int32)

    @not_traced
    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Return the exact solution; the last two arguments have no effect."""
        from spacy_latent.kernels.choices.simplex import sparsemax

        check_options(self.name, max_iter, tolerance)
        prepared, lengths = self._read(scores, lengths)
        rows, sizes = self._rows(prepared, lengths)
        return self._solution(sparsemax(rows.double(), sizes, self.name), prepared, scores.dtype)

    def _rows(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the checked scores of the heads of each node, and the number of choices.

        Scores are ``(B·(N+1), N+1)``. The number is 0 for the root and padding.
        """
        sizes = lengths.to(scores.device)
        node = torch.arange(scores.shape[1], device=scores.device)[None]
        modifier = (node > 0) & (node <= sizes[:, None])
        masked = self._mask(scores, self.part_mask(scores, sizes))
        none = (masked.isneginf().all(1) & modifier).any(1)
        masked = refuse(masked, none, INFEASIBLE, self.name)
        choices = torch.where(modifier, sizes[:, None] + 1, 0)
        return masked.transpose(1, 2).flatten(0, 1), choices.flatten()

    def _parts(self, rows: Tensor, scores: Tensor) -> Tensor:
        """Reshape ``(..., B·(N+1), N+1)`` to ``(..., B, N+1, N+1)``, [head, modifier]."""
        return rows.view(*rows.shape[:-2], *scores.shape).transpose(-1, -2).contiguous()
