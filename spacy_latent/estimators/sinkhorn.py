"""The entropic relaxation of one-to-one alignments (Cuturi 2013; Mena et al. 2018)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.target_difference import check_positive
from spacy_latent.structures.base import Structure
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment


class Sinkhorn(Estimator):
    """Soft one-to-one alignment by Sinkhorn's normalisation, in training and at prediction.

    z is the matrix P that maximises Σ P·s − temperature · Σ P (log P − 1), with an alignment's sums
    of rows and columns. Its backward goes through the steps of normalisation (Mena et al. 2018,
    section 3). The structure is OneToOneAlignment, whose marginals are intractable: P is not their
    mean.

    Args:
        temperature: larger is smoother. Towards 0, z tends to the best alignment, and the number of
            steps grows.
        max_iter: bound on the steps, each one of the rows and one of the columns. A temperature
            below 1 takes more than the default. If the bound ends the steps, the sums of columns
            are right and the sums of rows are not yet.
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
