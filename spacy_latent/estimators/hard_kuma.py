"""HardKuma masks (Bastings et al. 2019)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from spacy_latent.estimators.stochastic_mask import HIGH, LOW, StochasticMask

# With shapes beyond e^(±4.5) nearly all draws are the same.
LARGEST_SCORE = 9.0


class HardKuma(StochasticMask):
    """Masks z = clip(k · 1.2 − 0.1, 0, 1) with k of Kumaraswamy's law.

    k = (1 − u^(1/b))^(1/a) with u uniform (Bastings et al. 2019, section 4). Both shapes come from
    one score, a = e^(s/2) and b = e^(−s/2). z is near 1 for high scores and near 0 for low ones. k
    is uniform for a score of 0. The structure is Bits.

    The paper learns a and b apart. Here an undecided mask cannot be hard: for a score of 0, 83 % of
    the draws lie between 0 and 1, while a = b = 0.2 would leave 39 %. Only decided scores, below -2
    or above 2, make most draws 0 or 1.

    Args:
        rate, transitions, multiplier_rate, damping, prediction: see StochasticMask.
    """

    def __init__(
        self,
        rate: float | None = None,
        transitions: float | None = None,
        multiplier_rate: float = 0.1,
        damping: float = 10.0,
        prediction: Literal["map", "mean"] = "map",
    ) -> None:
        super().__init__(rate, transitions, multiplier_rate, damping, prediction)

    def mask(self, scores: Tensor, uniform: Tensor) -> Tensor:
        a, b = _shapes(scores)
        # 1 − u^(1/b) without cancellation.
        inner = (-torch.expm1(uniform.log() / b)).clamp_min(torch.finfo(scores.dtype).tiny)
        return (inner.pow(1 / a) * (HIGH - LOW) + LOW).clamp(0.0, 1.0)

    def above(self, scores: Tensor, stretched: float) -> Tensor:
        a, b = _shapes(scores)
        # (1 − x^a)^b without cancellation if a is small.
        return (b * (-torch.expm1(a * math.log(stretched))).log()).exp()


def _shapes(scores: Tensor) -> tuple[Tensor, Tensor]:
    # Not clipped: a score that is too large must keep a gradient.
    bounded = LARGEST_SCORE * torch.tanh(scores / LARGEST_SCORE) / 2
    return bounded.exp(), (-bounded).exp()
