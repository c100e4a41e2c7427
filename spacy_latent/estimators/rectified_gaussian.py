"""Rectified Gaussian masks, the Gaussian-sparsemax of one bit (Farinhas et al. 2022)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from spacy_latent.errors import check_flags, check_positive
from spacy_latent.estimators.stochastic_mask import HIGH, LOW, StochasticMask


class RectifiedGaussian(StochasticMask):
    """Masks z = clip(s + ½ + σε, 0, 1) with ε standard normal and σ learned.

    P(z = 0) = Φ((−½ − s)/σ) and P(z = 1) = Φ((s − ½)/σ); between them lies the Gaussian's density.
    This is the Gaussian-sparsemax of Farinhas et al. (2022) for a bit, moved by ½ so that a score
    of 0 prefers neither value, as in MAP. The structure is Bits.

    Args:
        scale: σ at the beginning. The smaller, the more the mask is SparseMAP's.
        learn_scale: whether σ is a weight, one for all parts. Its gradient comes from the drawn
            masks and from the penalty.
        rate, transitions, multiplier_rate, damping, prediction: see StochasticMask.
    """

    def __init__(
        self,
        scale: float = 1.0,
        learn_scale: bool = True,
        rate: float | None = None,
        transitions: float | None = None,
        multiplier_rate: float = 0.1,
        damping: float = 10.0,
        prediction: Literal["map", "mean"] = "map",
    ) -> None:
        super().__init__(rate, transitions, multiplier_rate, damping, prediction)
        check_positive(self.name, scale=scale)
        check_flags(self.name, learn_scale=learn_scale)
        self.scale = scale
        first = torch.tensor([math.log(scale)], dtype=torch.float32)
        self.log_scale = nn.Parameter(first) if learn_scale else None

    def reset(self, width: int) -> None:
        super().reset(width)
        if self.log_scale is not None:
            nn.init.constant_(self.log_scale, math.log(self.scale))

    def mask(self, scores: Tensor, uniform: Tensor) -> Tensor:
        noise = torch.special.ndtri(uniform)
        return (scores + 0.5 + self._sigma(scores) * noise).clamp(0.0, 1.0)

    def above(self, scores: Tensor, stretched: float) -> Tensor:
        x = stretched * (HIGH - LOW) + LOW
        return torch.special.ndtr((scores + 0.5 - x) / self._sigma(scores))

    def mean(self, scores: Tensor) -> Tensor:
        # E[clip(y, 0, 1)] = σ (L(−m/σ) − L((1 − m)/σ)), L(x) = φ(x) − x Φ(−x), without quadrature,
        # which would miss the step of a small σ. For m above ½ large numbers would cancel, so it is
        # 1 less the mean for 1 − m, by symmetry.
        sigma, middle = self._sigma(scores), scores + 0.5
        low = torch.where(middle > 0.5, 1.0 - middle, middle)
        value = sigma * (_loss(-low / sigma) - _loss((1.0 - low) / sigma))
        return torch.where(middle > 0.5, 1.0 - value, value)

    def _sigma(self, scores: Tensor) -> Tensor | float:
        return self.scale if self.log_scale is None else self.log_scale.exp().to(scores)


def _loss(x: Tensor) -> Tensor:
    """Return E[max(y − x, 0)] of a standard normal y."""
    # Beyond these the value is −x or below 1e-300, and x² would be too large for a number.
    bounded = x.clamp(-40.0, 40.0)
    density = (-0.5 * bounded.square()).exp() / math.sqrt(2 * math.pi)
    tail = torch.special.ndtr(-bounded)
    # Without cancellation of φ and x Φ far to the right, by the scaled complement of erf.
    scaled = torch.special.erfcx(bounded.clamp_min(0.0) / math.sqrt(2.0))
    right = density * (1.0 - bounded * scaled * math.sqrt(math.pi / 2))
    return torch.where(x > 0, right, density - x * tail)
