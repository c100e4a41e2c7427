"""HardKuma masks (Bastings et al. 2019)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from spacy_latent.errors import check_flags, check_positive
from spacy_latent.estimators.stochastic_mask import HIGH, LOW, StochasticMask

# With shapes beyond e^(±4.5) nearly all draws are the same.
LARGEST_SCORE = 9.0


class HardKuma(StochasticMask):
    """Masks z = clip(k · 1.2 − 0.1, 0, 1) with k of Kumaraswamy's law.

    k = (1 − u^(1/b))^(1/a) with u uniform (Bastings et al. 2019, section 4). Both shapes come from
    one score and one concentration κ, a = κ e^(s/2) and b = κ e^(−s/2). z is near 1 for high scores
    and near 0 for low ones. κ decides how often an undecided mask is 0 or 1: for a score of 0 and
    κ = 1, k is uniform and 83 % of the draws lie between 0 and 1; with κ = 0.2 it is 38 %.

    The paper learns a and b of each word. Here κ is one number for all parts.

    Args:
        concentration: κ, at the beginning if it is learned.
        learn_concentration: whether κ is a weight.
        rate, transitions, multiplier_rate, damping, prediction: see StochasticMask.
    """

    def __init__(
        self,
        rate: float | None = None,
        transitions: float | None = None,
        multiplier_rate: float = 0.1,
        damping: float = 10.0,
        prediction: Literal["map", "mean"] = "map",
        concentration: float = 1.0,
        learn_concentration: bool = False,
    ) -> None:
        super().__init__(rate, transitions, multiplier_rate, damping, prediction)
        check_positive(self.name, concentration=concentration)
        check_flags(self.name, learn_concentration=learn_concentration)
        self.concentration = concentration
        first = torch.tensor([math.log(concentration)], dtype=torch.float32)
        self.log_concentration = nn.Parameter(first) if learn_concentration else None

    def reset(self, width: int) -> None:
        super().reset(width)
        if self.log_concentration is not None:
            nn.init.constant_(self.log_concentration, math.log(self.concentration))

    def mask(self, scores: Tensor, uniform: Tensor) -> Tensor:
        a, b = self._shapes(scores)
        # 1 − u^(1/b) without cancellation.
        inner = (-torch.expm1(uniform.log() / b)).clamp_min(torch.finfo(scores.dtype).tiny)
        return (inner.pow(1 / a) * (HIGH - LOW) + LOW).clamp(0.0, 1.0)

    def above(self, scores: Tensor, stretched: float) -> Tensor:
        a, b = self._shapes(scores)
        # (1 − x^a)^b without cancellation if a is small.
        return (b * (-torch.expm1(a * math.log(stretched))).log()).exp()

    def _shapes(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        # Not clipped: a score that is too large must keep a gradient.
        bounded = LARGEST_SCORE * torch.tanh(scores / LARGEST_SCORE) / 2
        if self.log_concentration is None:
            return self.concentration * bounded.exp(), self.concentration * (-bounded).exp()
        log = self.log_concentration.to(scores)
        return (bounded + log).exp(), (log - bounded).exp()
