"""Constrained sparsemax attention (Malaviya et al. 2018)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import check_number
from spacy_latent.estimators.attention import Attention
from spacy_latent.structures.one_of_n import OneOfN


class ConstrainedSparsemax(Attention):
    """Sparse attention in which no item has more than a given weight.

    It is the projection of the scores to the simplex with an upper bound on each probability, exact
    (Malaviya et al. 2018). The bounds force the weight to be spread over several items. The
    structure is OneOfN.

    Args:
        upper_bound: largest weight of an item, above 0 and at most 1; 1 is sparsemax. If a text has
            fewer than 1 / upper_bound items, their weights are equal and exceed the bound.
    """

    def __init__(self, upper_bound: float = 0.25) -> None:
        expected = "a number above 0 and at most 1"
        check_number(self.name, lambda bound: 0 < bound <= 1, expected, upper_bound=upper_bound)
        self.upper_bound = upper_bound

    def probabilities(self, structure: OneOfN, scores: Tensor, lengths: Tensor) -> Tensor:
        return structure.constrained_sparsemax(scores, lengths, self.upper_bound)
