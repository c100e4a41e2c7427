"""Oscarmax attention (Niculae and Blondel 2017)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import check_not_negative
from spacy_latent.estimators.attention import Attention
from spacy_latent.structures.one_of_n import OneOfN


class Oscarmax(Attention):
    """Sparsemax of scores that a penalty pulls together, at any distance in the text.

    Experimental: may change in any version.

    z = argmin ½‖p − s‖² + penalty·Σ_{i<j} max(p[i], p[j]) over the simplex (Niculae and Blondel
    2017, section 3.3, with OSCAR of Bondell and Reich 2008). The structure is OneOfN. The original
    composes sparsemax with a step on magnitudes, which gives this minimum only if no score is
    negative. This class, like softmax, does not change if all scores rise by the same number.

    Args:
        penalty: weight of each pair; 0 is sparsemax.
    """

    def __init__(self, penalty: float = 0.01) -> None:
        check_not_negative(self.name, penalty=penalty)
        self.penalty = penalty

    def probabilities(self, structure: OneOfN, scores: Tensor, lengths: Tensor) -> Tensor:
        return structure.oscarmax(scores, lengths, self.penalty)
