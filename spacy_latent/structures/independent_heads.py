"""A head for each token, chosen without regard to the others: what trees are compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, not_finite_message
from spacy_latent.structures.base import Reparameterized, SparseSolution
from spacy_latent.structures.dependency import DependencyTree, Direction
from spacy_latent.structures.items import decompose
from spacy_latent.structures.one_of_n import OneOfN


class IndependentHeads(DependencyTree):
    """Graphs in which each token has one head, another token or the root. They may have cycles, and
    any number of tokens may hang on the root, also none; so they are not always trees. For the
    arguments and shapes see :class:`DependencyTree`.

    Sums are a softmax for each token (as in Dozat and Manning 2017), the best graph an argmax,
    SparseMAP a sparsemax: attention. A latent tree that is no better than this owes nothing to
    being a tree.
    """

    acyclic = False
    tractable = DependencyTree.tractable | {"reparameterize"}

    def __init__(self, direction: Direction = "any", max_arc_length: int | None = None) -> None:
        super().__init__(False, direction, max_arc_length)

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in super()._settings().items() if name != "single_root"}

    def best_heads(self, scores: Tensor, lengths: Tensor) -> Tensor:
        prepared, lengths = self.prepare(scores.detach(), lengths)
        found = self._map(prepared, lengths)
        heads = found.argmax(1)
        return torch.where(found.sum(1) > 0, heads, -1).to(torch.int32)

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        rows, sizes = self._rows(scores, lengths)
        return self._arcs(OneOfN().map(rows, sizes), scores)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        rows, sizes = self._rows(scores, lengths)
        return OneOfN().log_partition(rows, sizes).view(scores.shape[:2]).sum(1)

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        rows, sizes = self._rows(scores, lengths)
        return self._arcs(OneOfN().marginals(rows, sizes), scores)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        rows, sizes = self._rows(scores, lengths)
        return self._arcs(OneOfN().sample(rows, sizes, num_samples, generator), scores)

    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        found = OneOfN().reparameterize(*self._rows(scores, lengths))
        parts = (found.z, found.noisy, found.redrawn)
        return Reparameterized(*(self._arcs(part, scores) for part in parts))

    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        """Exact; the last two arguments have no effect. The graphs are those that the columns of
        the mean give to a common uniform number (systematic sampling, Madow 1949)."""
        from spacy_latent.kernels.simplex import sparsemax

        prepared, lengths = self.prepare(scores, lengths)
        rows, sizes = self._rows(prepared, lengths)
        dense = sparsemax(rows, sizes, self.name)
        mean = self._arcs(dense, prepared)
        # Only what has a share, in the order of the modifiers.
        flat = dense.view(len(prepared), -1)
        size = max(int((flat > 0).sum(1).max()), 1) if flat.numel() else 0
        place = (flat.detach() > 0).int().argsort(dim=1, descending=True, stable=True)[:, :size]
        solution = decompose(flat.gather(1, place))

        def expand() -> Tensor:
            chosen = solution.atoms
            whole = chosen.new_zeros(len(chosen), *flat.shape)
            whole.scatter_(2, place[None].expand_as(chosen), chosen)
            return self._arcs(whole.view(-1, *dense.shape), prepared).to(scores.dtype)

        weights = solution.weights.to(scores.dtype)
        return SparseSolution(mean.to(scores.dtype), weights, solution.gap, expand)

    def _rows(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the heads of each node ``(B·(N+1), N+1)``, and how many there are to choose
        from, 0 for the root and padding; checked."""
        sizes = lengths.to(scores.device)
        mask = self.part_mask(scores, sizes)
        masked = torch.where(mask, scores, -torch.inf)
        bad = (torch.isnan(masked) | torch.isposinf(masked)).flatten(1).any(1)
        if bool(bad.any()):
            raise InvalidScores(not_finite_message(self.name, bad.nonzero().flatten().tolist()))
        node = torch.arange(scores.shape[1], device=scores.device)[None]
        modifier = (node > 0) & (node <= sizes[:, None])
        none = (masked.isneginf().all(1) & modifier).any(1)
        if bool(none.any()):
            self.raise_infeasible(none.nonzero().flatten().tolist())
        choices = torch.where(modifier, sizes[:, None] + 1, 0)
        return masked.transpose(1, 2).flatten(0, 1), choices.flatten()

    def _arcs(self, rows: Tensor, scores: Tensor) -> Tensor:
        """``(..., B·(N+1), N+1)`` as ``(..., B, N+1, N+1)``, [head, modifier]."""
        return rows.view(*rows.shape[:-2], *scores.shape).transpose(-1, -2).contiguous()
