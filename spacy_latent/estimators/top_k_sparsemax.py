"""Sparse marginalization over the k best structures (Correia et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.estimators.base import Draw, Estimator
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
    """

    needs_loss = True
    posterior = "weights"
    hard = True

    def __init__(self, k: int = 10, prediction: Prediction = "map") -> None:
        check_marginalization(self.name, "k", k, prediction)
        self.k = k
        self.prediction: Prediction = prediction

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
