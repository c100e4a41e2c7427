"""Structures of independent choices: one item of each row, whatever the other rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.structures.base import Reparameterized, SparseSolution, Structure
from spacy_latent.structures.items import decompose
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.results import LateMixture


class RowChoices(Structure):
    """Sums, samples and best structures by :class:`OneOfN` for each row.

    A subclass defines the rows, and how parts are made of them.

    Attributes:
        choice_axis: the axis of the parts (0 the first) along which the parts of one row lie.
    """

    masks_itself = True
    keeps_digits = True
    tractable = frozenset(
        {"log_partition", "marginals", "sample", "entropy", "log_prob", "reparameterize"}
    )
    choice_axis: ClassVar[int]

    @abstractmethod
    def _rows(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the checked scores of the rows' choices, and the number of choices in each.

        R is the second axis of the scores.

        Returns:
            Scores ``(B·R, C)`` of the R rows of each item, and numbers, 0 for a row that does not
            exist.
        """

    @abstractmethod
    def _parts(self, rows: Tensor, scores: Tensor) -> Tensor:
        """Reshape ``(..., B·R, C)`` to parts ``(..., *scores.shape)``."""

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return self._parts(OneOfN().map(*self._rows(scores, lengths)), scores)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        of_rows = OneOfN().log_partition(*self._rows(scores, lengths))
        return of_rows.view(scores.shape[:2]).sum(1)

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return self._parts(OneOfN().marginals(*self._rows(scores, lengths)), scores)

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        rows, sizes = self._rows(scores, lengths)
        return self._parts(OneOfN().sample(rows, sizes, num_samples, generator), scores)

    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        found = OneOfN().reparameterize(*self._rows(scores, lengths))
        parts = (found.z, found.noisy, found.redrawn)
        return Reparameterized(*(self._parts(part, scores) for part in parts))

    def redraw(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return ``redrawn`` of :meth:`reparameterize` for a sample ``z`` ``(B, *parts)``."""
        prepared, lengths = self._read(scores, lengths)
        rows, sizes = self._rows(prepared, lengths)
        chosen = (self._rows(z.detach(), lengths)[0] == 1).to(rows)
        return self._parts(OneOfN().redraw(chosen, rows, sizes), prepared)

    def _solution(self, dense: Tensor, prepared: Tensor, dtype: torch.dtype) -> SparseSolution:
        """Return the solution of SparseMAP from the solution of each row ``(B·R, C)``, float64."""
        mean = self._parts(dense, prepared)
        return LateMixture(mean, dtype, lambda: self._mixed(dense, mean, prepared))

    def _mixed(self, dense: Tensor, mean: Tensor, prepared: Tensor) -> SparseSolution:
        """Return the solution with its structures.

        They are those that the rows of the mean assign to a common uniform number (systematic
        sampling, Madow 1949).
        """
        # Only choices with a share, in the order of the rows.
        flat = dense.unflatten(0, prepared.shape[:2]).flatten(1)
        size = max(int((flat > 0).sum(1).max()), 1) if flat.numel() else 0
        place = (flat.detach() > 0).int().argsort(dim=1, descending=True, stable=True)[:, :size]
        solution = decompose(flat.gather(1, place))

        def expand(*device: torch.device) -> Tensor:
            chosen = solution.atoms
            whole = chosen.new_zeros(len(chosen), *flat.shape)
            whole.scatter_(2, place[None].expand_as(chosen), chosen)
            made = self._parts(whole.view(len(chosen), *dense.shape), prepared)
            return send(made, *device) if device else made

        return SparseSolution(mean, solution.weights, solution.gap, expand)
