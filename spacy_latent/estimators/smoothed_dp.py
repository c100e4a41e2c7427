"""Smoothed dynamic programs as a layer (Mensch and Blondel 2018)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.structures.base import Structure
from spacy_latent.structures.smoothed import Regularizer, check_regularizer, smoothed_expectation


class SmoothedDP(Estimator):
    """The expected structure of Bellman's recursion with max_Ω.

    It is soft, in training and at prediction. Backward is the product with its Hessian.

    Args:
        regularizer: "entropic", the marginals of scores / γ; or "quadratic", sparse.
        gamma: γ, larger is smoother.
    """

    requires = frozenset({"smoothed"})
    hard = False

    def __init__(self, regularizer: Regularizer = "quadratic", gamma: float = 1.0) -> None:
        check_regularizer(self.name, regularizer, gamma)
        self.regularizer: Regularizer = regularizer
        self.gamma = gamma

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        z = smoothed_expectation(structure, scores, lengths, self.regularizer, self.gamma)
        return Draw.single(z)
