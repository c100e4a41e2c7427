"""Differentiation of black-box solvers (Pogančić et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import check_flags, check_positive
from spacy_latent.estimators.target_difference import TargetDifference
from spacy_latent.structures.base import Structure


class BlackBox(TargetDifference):
    """The best structure, with the gradient of a piecewise affine interpolation.

    Forward z = MAP(s). Backward (z − MAP(s − λg)) / λ with g the gradient at z (their equation 3,
    for a maximum in place of a minimum).

    Args:
        interpolation: λ, to be chosen against the size of scores and gradients.
        scale_by_batch: multiply g by the number of items, for losses that are means over them.
            Components solve texts of similar length together; items are then the texts of one such
            group, not of the whole batch.
    """

    def __init__(self, interpolation: float = 10.0, scale_by_batch: bool = False) -> None:
        check_positive(self.name, interpolation=interpolation)
        self.interpolation = interpolation
        check_flags(self.name, scale_by_batch=scale_by_batch)
        self.scale_by_batch = scale_by_batch

    def gradient_of_scores(
        self, structure: Structure, scores: Tensor, z: Tensor, gradient: Tensor, lengths: Tensor
    ) -> Tensor:
        step = self.interpolation * (gradient.shape[0] if self.scale_by_batch else 1)
        return (z - structure.map(scores - step * gradient, lengths)) / self.interpolation
