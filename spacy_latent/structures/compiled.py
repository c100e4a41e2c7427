"""Structures whose best members, sums and samples come from compiled kernels."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.kernels.autograd import operators
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import repeat


class CompiledStructure(Structure):
    """Structure whose operations are compiled kernels.

    The kernels read lengths and constraints themselves, check the values that they read, and never
    read padding. A subclass only has to name its family if the kernels read the scores, have no
    options and write 0/1 parts. Otherwise it defines :meth:`~Structure._kernel_input`, which they
    read, :meth:`_options`, and :meth:`_indicate` for the format that they write.

    Attributes:
        family: place of the kernels, "module:NAME" of a
            :class:`spacy_latent.kernels.autograd.families.Family`.
        smoothed_family: place of the kernels of the recursion with the quadratically smoothed
            maximum, for structures that have one, see :mod:`spacy_latent.structures.smoothed`.
    """

    family: ClassVar[str]
    smoothed_family: ClassVar[str | None] = None
    masks_itself: ClassVar[bool] = True
    tractable = frozenset({"log_partition", "marginals", "sample", "entropy", "log_prob"})

    def _options(self, scores: Tensor) -> list[int]:
        """Return numbers that select one structure of the family."""
        return []

    def _indicate(self, found: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return 0/1 parts ``(R, *parts)`` in the dtype of ``scores``.

        The output of the kernels is for R items of these lengths. The default is for kernels that
        write the parts themselves.
        """
        return found.to(scores.dtype)

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return self._indicate(self._best(scores, lengths), scores, lengths)

    def _best(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the best structure of each item as the kernels write it."""
        return operators.best(
            self._kernel_input(scores), lengths, self.family, self._options(scores)
        )

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        options = self._options(scores)
        return operators.log_partition(self._kernel_input(scores), lengths, self.family, options)

    def smoothed_by_kernels(
        self, scores: Tensor, lengths: Tensor, regularizer: str, gamma: float
    ) -> Tensor:
        """Return the smoothed value of each item, ``(B,)``.

        See :func:`spacy_latent.structures.smoothed.smoothed_value`.

        Scores and lengths are as :meth:`check` returns them.
        """
        family = self.family if regularizer == "entropic" else self.smoothed_family
        assert family is not None
        given = self._kernel_input(scores if gamma == 1.0 else scores / gamma)
        return gamma * operators.log_partition(given, lengths, family, self._options(scores))

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return operators.marginals(
            self._kernel_input(scores), lengths, self.family, self._options(scores)
        )

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        options = self._options(scores)
        drawn = operators.sample(
            self._kernel_input(scores), lengths, self.family, options, num_samples, generator
        )
        sizes = repeat(lengths, num_samples)
        return self._indicate(drawn.flatten(0, 1), scores, sizes).unflatten(0, drawn.shape[:2])
