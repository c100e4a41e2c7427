"""Straight-through over the best few structures, or over a beam (Maillard and Clark 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import MANY, check_whole
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.straight_through import with_gradient_of
from spacy_latent.structures.base import Structure
from spacy_latent.structures.totals import exact_potential


class BestStraightThrough(Estimator):
    """Straight-through with the best structure forward and the softmax over the k best backward.

    Each of the k is composed. The scores get the gradient of Σ_k softmax(log p)_k · composer(z_k)
    at the weights 1, 0, ….

    On ShiftReduce, the k best are the results of a beam of size k, which is the method of Maillard
    and Clark (2018, section 3.2). Other structures give the exact k best.

    Args:
        k: number of structures, at least 2.
    """

    hard = True
    linear_only = False

    def __init__(self, k: int = 4) -> None:
        # A mixture needs at least two structures.
        check_whole(self.name, least=2, most=MANY, k=k)
        self.k = k

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        best = structure.top_k(scores.detach(), lengths, self.k)
        if not is_train:
            return Draw.single(best.z[0])
        padding = best.scores.isneginf()
        z = torch.where(
            padding.view(*padding.shape, *[1] * structure.part_axes), best.z[:1], best.z
        )
        totals = exact_potential(structure, z, scores, lengths)
        soft = totals.masked_fill(padding, -torch.inf).softmax(0).to(scores.dtype)
        first = torch.zeros_like(soft)
        first[0] = 1.0
        return Draw(z, with_gradient_of(soft, first), padding=padding)
