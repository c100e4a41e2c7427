"""Fusedmax attention (Niculae and Blondel 2017)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import check_not_negative
from spacy_latent.estimators.attention import Attention
from spacy_latent.structures.one_of_n import OneOfN


class Fusedmax(Attention):
    """Sparsemax of scores smoothed along the text, so that neighbours share their weight.

    z = argmin ½‖p − s‖² + penalty·Σ|p[j+1] − p[j]| over the simplex (Niculae and Blondel 2017,
    section 3.2). The structure is OneOfN.

    Args:
        penalty: weight of each jump; 0 is sparsemax.
    """

    def __init__(self, penalty: float = 0.1) -> None:
        check_not_negative(self.name, penalty=penalty)
        self.penalty = penalty

    def probabilities(self, structure: OneOfN, scores: Tensor, lengths: Tensor) -> Tensor:
        return structure.fusedmax(scores, lengths, self.penalty)
