"""A mixture of the best few structures, or of a beam (Chowdhury and Caragea 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import MANY, check_one_of, check_whole
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.dense_marginalization import PREDICTIONS, Prediction, best_structures
from spacy_latent.structures.base import Structure
from spacy_latent.structures.totals import exact_potential


class BestMixture(Estimator):
    """The mixture Σ_k p_k · composer(z_k) over the k best structures.

    p is the softmax of the log-probabilities of these k structures. The mixture is differentiated
    as it stands.

    On MergeSequence, the k best are the results of a beam over the merges of neighbours. This gives
    beam tree recursive cells (Chowdhury and Caragea 2023, section 3) without their relaxation for
    structures that leave the beam.

    Unlike :class:`BestStraightThrough`, the backward pass differentiates the forward pass itself.
    Unlike TopKSparsemax, each of the k has a share, structures of decisions are valid, and no
    component has to own its loss. In a component that owns its loss, p weights the losses of the k,
    not the composed vectors.

    Args:
        k: number of structures, at least 2.
        prediction ("map" or "marginal"): use the best structure, or the mixture, outside of
            training.
    """

    hard = True
    linear_only = False

    def __init__(self, k: int = 5, prediction: Prediction = "map") -> None:
        # A mixture needs at least two structures.
        check_whole(self.name, least=2, most=MANY, k=k)
        check_one_of(self.name, PREDICTIONS, prediction=prediction)
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
