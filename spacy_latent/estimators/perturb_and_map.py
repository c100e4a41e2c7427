"""Perturb-and-MAP, the best structure under noisy scores (Papandreou and Yuille 2011)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import check_one_of
from spacy_latent.estimators.noise import Noise, check_noise
from spacy_latent.estimators.perturbed_best import PerturbedBest
from spacy_latent.estimators.straight_through import (
    BACKWARDS,
    Backward,
    needed_by_backward,
    straight_through,
)
from spacy_latent.structures.base import Structure


class PerturbAndMap(PerturbedBest):
    """The best structure under noise in training, z = MAP(s + ε), and MAP(s) at prediction.

    K = num_samples, each of weight 1/K.

    Args:
        noise ("gumbel", "sum_of_gamma" or "gaussian"): law of ε, independent for each part. With
            independent noise the structures are not exact samples of p(z) ∝ exp(z·s) (except for
            one choice of n).
        scale: scale of the noise; 0.5 is half as noisy as Gumbel-max.
        num_samples: number of structures drawn per item.
        backward ("identity" or "marginals"): with "identity" the gradient goes to s as it is. With
            "marginals" it goes through the marginals at s + ε, with the same noise (Corro and Titov
            2019, with marginals for their relaxed chart).
        k: for "sum_of_gamma", the number of parts of a typical structure.
    """

    hard = True

    def __init__(
        self,
        noise: Noise = "gumbel",
        scale: float = 1.0,
        num_samples: int = 1,
        backward: Backward = "identity",
        k: int = 10,
    ) -> None:
        check_one_of(self.name, BACKWARDS, backward=backward)
        check_noise(self.name, noise, scale, num_samples, k)
        self.noise: Noise = noise
        self.scale = scale
        self.num_samples = num_samples
        self.backward: Backward = backward
        self.k = k

    def needed(self) -> frozenset[str]:
        return needed_by_backward(self.backward)

    def best(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
        return straight_through(structure, scores, lengths, backward=self.backward)
