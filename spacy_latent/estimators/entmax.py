"""α-entmax attention (Peters et al. 2019)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import check_number
from spacy_latent.estimators.attention import Attention
from spacy_latent.structures.one_of_n import OneOfN


class Entmax(Attention):
    """Sparse attention: z = argmax over the simplex of p·s plus Tsallis' entropy with index α.

    It lies between softmax (α = 1) and sparsemax (α = 2), and is sparse for every α > 1 (Peters et
    al. 2019). The structure is OneOfN.

    Args:
        alpha: α, with 1 < α ≤ 10.
    """

    def __init__(self, alpha: float = 1.5) -> None:
        expected = "a number above 1 and up to 10 (for softmax, which is alpha = 1, use Marginals)"
        check_number(self.name, lambda a: 1 < a <= 10, expected, alpha=alpha)
        self.alpha = alpha

    def probabilities(self, structure: OneOfN, scores: Tensor, lengths: Tensor) -> Tensor:
        return structure.entmax(scores, lengths, self.alpha)
