"""The mixture of the best few structures, or of those of a beam (Chowdhury and Caragea 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import check_whole
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.dense_marginalization import (
    Prediction,
    best_structures,
    check_marginalization,
)
from spacy_latent.structures.base import Structure
from spacy_latent.structures.totals import exact_potential


class BestMixture(Estimator):
    """Σ_k p_k · composer(z_k) over the k best structures, where p is the softmax of their
    log-probabilities among themselves, differentiated as it stands.

    On MergeSequence the k best are those of a beam over the merges of neighbours: beam tree
    recursive cells (Chowdhury and Caragea 2023, section 3) without their relaxation of what leaves
    the beam. Unlike :class:`BestStraightThrough`, forward is what backward differentiates. It
    differs from TopKSparsemax in that each of the k has a share, that structures of decisions are
    taken, and that it needs no component which owns its loss; under one that does, the losses of
    the k are weighed, not what they compose to.

    k: how many.
    prediction ("map" or "marginal"): whether the best structure is used when not training, or the
        mixture.
    """

    hard = True
    linear_only = False

    def __init__(self, k: int = 5, prediction: Prediction = "map") -> None:
        check_marginalization(self.name, "k", k, prediction)
        # The best and another.
        check_whole(self.name, least=2, k=k)
        self.k = k
        self.prediction: Prediction = prediction

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        z, known = best_structures(structure, scores, lengths, self.k)
        if not is_train and self.prediction == "map":
            return Draw.single(z[0])
        padding = ~known
        some = torch.where(known.view(*known.shape, *[1] * structure.part_axes), z, z[:1])
        totals = exact_potential(structure, some, scores, lengths)
        weights = totals.masked_fill(padding, -torch.inf).softmax(0).to(scores.dtype)
        return Draw(some, weights, padding=padding)
