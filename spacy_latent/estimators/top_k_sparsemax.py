"""Sparse marginalization over the k best structures (Correia et al. 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spacy_latent.estimators.base import Criterion, Draw, Estimator, check_criterion
from spacy_latent.estimators.dense_marginalization import (
    Prediction,
    best_structures,
    check_marginalization,
)
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
            −log Σ p(z)·p(y | z) over these structures. For one exclusive
            label the latter is the loss of the mean of the probabilities, which
            ``prediction = "marginal"`` predicts. It needs a component
            that owns its loss, and has no EvidenceBound.
    """

    needs_loss = True
    hard = True

    def __init__(
        self, k: int = 10, prediction: Prediction = "map", criterion: Criterion = "expected_loss"
    ) -> None:
        check_marginalization(self.name, "k", k, prediction)
        self.k = k
        check_criterion(self.name, criterion)
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
            z = structure.map(scores, lengths)
            return Draw.single(z)
        z, known = best_structures(structure, scores, lengths, self.k)
        totals = torch.where(known, exact_potential(structure, z, scores, lengths), -torch.inf)
        sizes = torch.full((totals.shape[1],), len(totals), dtype=torch.int64, device="cpu")
        weights = sparsemax(totals.t().contiguous(), sizes, self.name).t().to(scores.dtype)
        return Draw(z, weights, padding=weights.detach() == 0)
