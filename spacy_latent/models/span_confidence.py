"""Calibrated confidences of labelled spans."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Distance from 0 and 1 to which probabilities are clipped.
NEAR = 1e-6


@dataclass(frozen=True)
class SpanConfidence:
    """Increasing map from the probability of a span with a label to its confidence.

    The log-odds are multiplied by a slope and shifted.

    Attributes:
        slope: above 0.
        shifts: shift of each label; empty for no shifts.
    """

    slope: float = 1.0
    shifts: tuple[float, ...] = ()

    @property
    def changes(self) -> bool:
        return self.slope != 1 or any(self.shifts)

    def __call__(self, of_labels: Tensor) -> Tensor:
        """Return the confidences of probabilities, both ``(L, K)``."""
        if not self.changes:
            return of_labels
        odds = torch.logit(of_labels.double().clamp(NEAR, 1 - NEAR))
        shifts = odds.new_tensor(self.shifts or [0.0])
        return (self.slope * odds + shifts[:, None]).sigmoid().to(of_labels.dtype)

    def probability(self, confidence: float) -> float:
        """Return a probability below which no label has this confidence."""
        if not self.changes:
            return confidence
        if not 0 < confidence < 1:
            return 0.0
        shift = max(self.shifts, default=0.0)
        odds = (math.log(confidence) - math.log1p(-confidence) - shift) / self.slope
        # The margin is for rounding in float32.
        return 0.999 / (1 + math.exp(-max(-700.0, odds)))


UNCHANGED = SpanConfidence()

__all__ = ["NEAR", "UNCHANGED", "SpanConfidence"]
