"""Calibrated confidences of labelled spans."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Distance from 0 and 1 to which probabilities are clipped.
NEAR = 1e-6


@dataclass(frozen=True)
class SpanConfidence:
    """Confidence of a span with a label, from its probability at a temperature.

    The log-odds are multiplied by a slope and shifted.

    Attributes:
        temperature: divisor of the scores of the tree.
        slope: above 0.
        shifts: shift of each label; empty for no shifts.
    """

    temperature: float = 1.0
    slope: float = 1.0
    shifts: tuple[float, ...] = ()

    def __call__(self, of_labels: Tensor) -> Tensor:
        """Return the confidences of probabilities at the temperature, both ``(L, K)``."""
        if self.slope == 1 and not any(self.shifts):
            return of_labels
        odds = torch.logit(of_labels.double().clamp(NEAR, 1 - NEAR))
        shifts = odds.new_tensor(self.shifts or [0.0])
        return (self.slope * odds + shifts[:, None]).sigmoid().to(of_labels.dtype)


UNCHANGED = SpanConfidence()
