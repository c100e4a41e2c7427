"""Perturb-and-MAP: the best structure under noisy scores (Papandreou and Yuille 2011)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.straight_through import (
    Backward,
    check_backward,
    needed_by_backward,
    straight_through,
)
from spacy_latent.structures.base import Structure

Noise = Literal["gumbel", "sum_of_gamma"]


def draw_noise(noise: Noise, like: Tensor, scale: float, k: int = 10, terms: int = 10) -> Tensor:
    """Noise of the shape, dtype and device of ``like``, drawn by torch's default generator.

    "gumbel": Gumbel(0, scale). "sum_of_gamma": such that the sum over ``k`` chosen parts is near
    Gumbel(0, scale) (Niepert et al. 2021), by ``terms`` terms of the series.
    """
    if noise == "gumbel":
        # Exponential(1) may round to 0, whose log would be an infinite score.
        uniform = torch.empty_like(like, memory_format=torch.contiguous_format).exponential_()
        return -scale * uniform.clamp_min(torch.finfo(like.dtype).tiny).log()
    total = torch.zeros_like(like, memory_format=torch.contiguous_format)
    for i in range(1, terms + 1):
        shape = torch.full_like(total, 1.0 / k)
        # torch's gamma has rate 1: dividing by the rate i/k scales it.
        total += torch._standard_gamma(shape) * (k / i)
    return scale / k * (total - torch.tensor(float(terms)).log().item())


def check_noise(name: str, noise: str, scale: float, num_samples: int, k: int) -> None:
    if noise not in ("gumbel", "sum_of_gamma"):
        raise LatentError(f"{name}: noise is {noise!r}; expected 'gumbel' or 'sum_of_gamma'.")
    if not scale > 0:
        raise LatentError(f"{name}: scale is {scale}; expected a positive number.")
    if num_samples < 1 or k < 1:
        raise LatentError(
            f"{name}: num_samples is {num_samples} and k {k}; expected both to be at least 1."
        )


class PerturbAndMap(Estimator):
    """z = MAP(s + ε) in training, MAP(s) at prediction; K = num_samples, each of weight 1/K.

    noise ("gumbel" or "sum_of_gamma"): law of ε, independent for each part. With independent noise
        the structures are not exact samples of p(z) ∝ exp(z·s) (except for one choice of n).
    scale: of the noise; 0.5 is half as noisy as Gumbel-max.
    num_samples: number of structures drawn per item.
    backward ("identity" or "marginals"): the gradient goes to s as it is, or through the marginals
        at s + ε, the same noise (Corro and Titov 2019, with marginals for their
        relaxed chart).
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
        check_backward(self.name, backward)
        check_noise(self.name, noise, scale, num_samples, k)
        self.noise: Noise = noise
        self.scale = scale
        self.num_samples = num_samples
        self.backward: Backward = backward
        self.k = k

    def needed(self) -> frozenset[str]:
        return needed_by_backward(self.backward)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        batch = scores.shape[0]
        if not is_train:
            z = structure.map(scores, lengths)
            return Draw(z[None], scores.new_ones((1, batch)))
        count = self.num_samples
        repeated = scores.repeat(count, *[1] * (scores.dim() - 1))
        noisy = repeated + draw_noise(self.noise, repeated, self.scale, self.k)
        z = straight_through(
            structure, noisy, lengths.repeat(count, *[1] * (lengths.dim() - 1)), self.backward
        )
        weights = scores.new_full((count, batch), 1.0 / count)
        return Draw(z.view(count, *scores.shape), weights)
