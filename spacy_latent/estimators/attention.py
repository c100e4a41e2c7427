"""The base class of attention over the items of OneOfN."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.structures.base import Structure
from spacy_latent.structures.one_of_n import OneOfN


class Attention(Estimator):
    """Soft weights of n items, in training and at prediction."""

    requires = frozenset()
    hard = False

    def check(self, structure: Structure) -> None:
        if not isinstance(structure, OneOfN):
            raise IncompatiblePair(
                self.name,
                structure.name,
                "it maps scores to weights that sum to 1, which are soft choices of one item",
                f"OneOfN with {self.name}, or SparseMAP, which is sparsemax for any structure",
            )

    @abstractmethod
    def probabilities(self, structure: OneOfN, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return weights ``(B, n)`` that sum to 1 over each item; differentiable."""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        self.check(structure)
        assert isinstance(structure, OneOfN)
        return Draw.single(self.probabilities(structure, scores, lengths))
