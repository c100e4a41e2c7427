"""Structured attention, the expected structure (Kim et al. 2017; Liu and Lapata 2018)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from spacy_latent.errors import check_one_of
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.structures.base import Structure


class Marginals(Estimator):
    """The expected structure E[z] = ∇A(s), whose backward is the Hessian of the log-partition A.

    Args:
        prediction ("marginals" or "map"): the structure that composes the vectors outside of
            training. With "map" the prediction is computed from the single best structure alone.
    """

    hard = False

    def __init__(self, prediction: Literal["marginals", "map"] = "marginals") -> None:
        check_one_of(self.name, ("marginals", "map"), prediction=prediction)
        self.prediction = prediction

    @property
    def hard_at_prediction(self) -> bool:
        return self.prediction == "map"

    def needed(self) -> frozenset[str]:
        return frozenset({"marginals", "map"} if self.prediction == "map" else {"marginals"})

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        soft = is_train or self.prediction == "marginals"
        z = structure.marginals(scores, lengths) if soft else structure.map(scores, lengths)
        return Draw.single(z)
