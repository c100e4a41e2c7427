"""The entropic relaxation of one-to-one alignments (Cuturi 2013; Mena et al. 2018)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.target_difference import check_positive
from spacy_latent.structures.base import Structure
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment


class Sinkhorn(Estimator):
    """z = the matrix P, with the sums of rows and columns of an alignment, that maximises Σ P·s −
    temperature · Σ P (log P − 1), soft, in training and at prediction; its backward goes through
    the steps of normalisation (Mena et al. 2018, section 3). The structure is OneToOneAlignment,
    whose marginals are intractable: P is not their mean.

    temperature: larger is smoother; towards 0 it tends to the best alignment, by ever more steps.
    max_iter: bound on the steps, each one of the rows and one of the columns. Below a temperature
        of 1 it takes more than these: short of that many, sums of columns are right, and those of
        rows not yet.
    tolerance: steps end when no logarithm of a sum is wrong by more.
    """

    requires = frozenset()
    hard = False

    def __init__(
        self, temperature: float = 1.0, max_iter: int = 100, tolerance: float = 1e-4
    ) -> None:
        check_positive(self.name, temperature=temperature, max_iter=max_iter, tolerance=tolerance)
        self.temperature = temperature
        self.max_iter = max_iter
        self.tolerance = tolerance

    def check(self, structure: Structure) -> None:
        if not isinstance(structure, OneToOneAlignment):
            raise IncompatiblePair(
                self.name,
                structure.name,
                "it normalises rows and columns by turns, and only one-to-one alignments have "
                "sums of both",
                f"OneToOneAlignment with {self.name}, or Marginals or SparseMAP",
            )

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        assert isinstance(structure, OneToOneAlignment)
        z = structure.sinkhorn(scores, lengths, self.temperature, self.max_iter, self.tolerance)
        return Draw.single(z)
