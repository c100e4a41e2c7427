"""Hard concrete masks (Louizos et al. 2018)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import check_positive
from spacy_latent.estimators.stochastic_mask import HIGH, LOW, StochasticMask


class HardConcrete(StochasticMask):
    """Masks z = clip(σ((s + logit u) / temperature) · 1.2 − 0.1, 0, 1) with u uniform.

    See Louizos et al. (2018, equations 10 and 11). P(z ≠ 0) = σ(s − temperature · log(0.1/1.1)).
    The structure is Bits.

    Args:
        temperature: the smaller, the more of the masks are 0 or 1.
        rate, transitions, multiplier_rate, damping, prediction: see StochasticMask.
    """

    def __init__(
        self,
        temperature: float = 2 / 3,
        rate: float | None = None,
        transitions: float | None = None,
        multiplier_rate: float = 0.1,
        damping: float = 10.0,
        prediction: Literal["map", "mean"] = "map",
    ) -> None:
        super().__init__(rate, transitions, multiplier_rate, damping, prediction)
        check_positive(self.name, temperature=temperature)
        self.temperature = temperature

    def mask(self, scores: Tensor, uniform: Tensor) -> Tensor:
        concrete = torch.sigmoid((scores + uniform.logit()) / self.temperature)
        return (concrete * (HIGH - LOW) + LOW).clamp(0.0, 1.0)

    def above(self, scores: Tensor, stretched: float) -> Tensor:
        return torch.sigmoid(scores - self.temperature * math.log(stretched / (1 - stretched)))
