"""Sparse marginalization over the k best structures (Correia et al. 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import MANY, check_one_of, check_whole
from spacy_latent.estimators.base import CRITERIA, Criterion, Draw, Estimator
from spacy_latent.estimators.dense_marginalization import PREDICTIONS, Prediction, best_structures
from spacy_latent.structures.base import Structure
from spacy_latent.structures.totals import exact_potential


class TopKSparsemax(Estimator):
    """The expected loss Σ p(z)·L(z) with p the sparsemax of the k highest total scores.

    See Correia et al. (2020, section 4). It equals the sparsemax over all structures if fewer than
    k get a share. Otherwise the share of the other structures is lost.

    Args:
        k: bound on the number of structures.
        prediction ("map" or "marginal"): use the best structure, or all k with their weights,
            outside of training.
        criterion ("expected_loss" or "marginal_likelihood"): minimise the expected loss, or
            −log Σ p(z)·p(y | z) over these structures; see
            :class:`~spacy_latent.estimators.dense_marginalization.DenseMarginalization`.
    """

    needs_loss = True
    hard = True

    def __init__(
        self, k: int = 10, prediction: Prediction = "map", criterion: Criterion = "expected_loss"
    ) -> None:
        check_whole(self.name, most=MANY, k=k)
        check_one_of(self.name, PREDICTIONS, prediction=prediction)
        check_one_of(self.name, CRITERIA, criterion=criterion)
        self.k = k
        self.prediction: Prediction = prediction
        self.criterion = criterion

    @property
    def posterior(self) -> Literal["", "weights"]:  # type: ignore[override]
        # A bound is of an expected loss.
        return "weights" if self.criterion == "expected_loss" else ""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        from spacy_latent.kernels.choices.simplex import sparsemax

        if not is_train and self.prediction == "map":
            return Draw.single(structure.map(scores, lengths))
        z, known = best_structures(structure, scores, lengths, self.k)
        totals = torch.where(known, exact_potential(structure, z, scores, lengths), -torch.inf)
        sizes = torch.full((totals.shape[1],), len(totals), dtype=torch.int64, device="cpu")
        weights = sparsemax(totals.t().contiguous(), sizes, self.name).t().to(scores.dtype)
        return Draw(z, weights, padding=weights.detach() == 0)
