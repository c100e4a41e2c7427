"""The base class of relaxed masks over bits, with a Lagrangian constraint on their rate."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, check_not_negative, check_number, check_one_of
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits

# Gauss-Legendre quadrature for means. With 48 points, relative errors of HardConcrete and HardKuma
# with their defaults are below 1e-7 for scores of any size.
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(48)
# The interval that a variable in (0, 1) is stretched to before it is clipped to [0, 1].
LOW, HIGH = -0.1, 1.1


class StochasticMask(Estimator, nn.Module):
    """Masks in [0, 1] that are 0 or 1 with positive probability and differentiable in between.

    Training uses one draw. A penalty can keep the expected rate of tokens that are not 0 near a
    target.

    Args:
        prediction ("map" or "mean"): "map" gives z = 1 if s > 0, else 0. "mean" gives the mean of
            the stretched and clipped variable, which is seldom 0. The constraint on the rate is on
            P(z ≠ 0). So "map" satisfies it only when all P(z ≠ 0) are near 0 or 1.
        rate: target for the expected share of tokens that are not 0; None for no constraint. The
            excess of a text is its share less the target. The loss of each text gets
            (λ + damping · e) times its excess, with e the mean excess of the batch. λ grows by
            multiplier_rate · e in each step. This is the Lagrangian of Bastings et al. (2019,
            section 3.3) with the damping of Platt and Barr (1987).
        transitions: target for the expected share of pairs of neighbours of which exactly one is 0,
            with the same penalty; None for no constraint.
        multiplier_rate: growth of λ per unit of excess, see ``rate``. λ starts at 0; it is a
            buffer, stored with the weights.
        damping: factor of the mean excess in the penalty, see ``rate``. Without it the shares
            oscillate.
    """

    hard = False
    multipliers: Tensor

    def __init__(
        self,
        rate: float | None,
        transitions: float | None,
        multiplier_rate: float,
        damping: float,
        prediction: Literal["map", "mean"],
    ) -> None:
        nn.Module.__init__(self)
        check_one_of(self.name, ("map", "mean"), prediction=prediction)
        self.prediction = prediction
        check_shares(self.name, rate, transitions, multiplier_rate, damping)
        self.rate = rate
        self.transitions = transitions
        self.multiplier_rate = multiplier_rate
        self.damping = damping
        self.register_buffer("multipliers", torch.zeros(2, dtype=torch.float64))

    def reset(self, width: int) -> None:
        self.multipliers.zero_()

    @property
    def hard_at_prediction(self) -> bool:
        return self.prediction == "map"

    def check(self, structure: Structure) -> None:
        super().check(structure)
        if not isinstance(structure, Bits) or structure.budget is not None:
            raise IncompatiblePair(
                self.name,
                structure.name,
                "it draws each part independently, and parts of this structure depend on others",
                f"Bits without a budget, or RelaxedPerturbation with {structure.name}",
            )
        if self.transitions is not None and structure.part_axes != 1:
            raise IncompatiblePair(
                f"{self.name} with transitions",
                f"{structure.name} of {structure.parts}",
                "only items have neighbours",
                "transitions = null",
            )

    @abstractmethod
    def mask(self, scores: Tensor, uniform: Tensor) -> Tensor:
        """Return differentiable masks for finite scores, from uniform numbers in (0, 1)."""

    @abstractmethod
    def above(self, scores: Tensor, stretched: float) -> Tensor:
        """Return P(z > x), differentiable, for x in [0, 1).

        Args:
            scores: finite scores.
            stretched: the number in (0, 1) that is stretched to x.
        """

    def nonzero(self, scores: Tensor) -> Tensor:
        """Return P(z ≠ 0), differentiable."""
        return self.above(scores, -LOW / (HIGH - LOW))

    def draw(self, scores: Tensor) -> Tensor:
        """Draw one mask for each score."""
        smallest = torch.finfo(scores.dtype).tiny
        # Drawn by the generator of the CPU, whose state is saved in training.
        drawn = torch.rand_like(scores, device="cpu").clamp(smallest, 1 - 2**-24)
        return self.mask(scores, send(drawn, scores.device))

    def mean(self, scores: Tensor) -> Tensor:
        """Return the means of the masks, the integral of P(z > x) over x in [0, 1].

        Unlike a drawn mask, the mean is smooth in the scores, and above 0 however small it is.
        """
        total = torch.zeros_like(scores)
        for node, weight in zip(POINTS, WEIGHTS):
            x = (float(node) + 1) / 2
            total = total + float(weight) / 2 * self.above(scores, (x - LOW) / (HIGH - LOW))
        return total

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train and self.prediction == "map":
            return Draw.single(structure.map(scores, lengths))
        prepared, _ = structure.masked(scores, lengths)
        allowed = ~prepared.isneginf()
        safe = prepared.masked_fill(~allowed, 0.0)
        own = self.draw(safe) if is_train else self.mean(safe)
        draw = Draw.single(torch.where(allowed, own, 0.0).to(scores.dtype))
        if is_train:
            chosen = torch.where(allowed, self.nonzero(safe), 0.0).to(scores.dtype)
            inside = structure.part_mask(scores, lengths.to(scores.device)).expand_as(chosen)
            draw.penalty = self._penalty(chosen, inside)
        return draw

    def _penalty(self, chosen: Tensor, inside: Tensor) -> Tensor | None:
        penalty = None
        wanted = (self.rate, self.transitions)
        for i, (target, measure) in enumerate(zip(wanted, (share_chosen, share_changed))):
            if target is None:
                continue
            share, count = measure(chosen, inside)
            # A text without parts to count has no excess.
            excess = torch.where(count > 0, share - target, 0.0)
            options = self.multiplier_rate, self.damping
            own = hold(self.multipliers[i], excess, count > 0, *options)
            penalty = own if penalty is None else penalty + own
        return penalty


def share_chosen(chosen: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected share of parts that are not 0, and the number of parts, both ``(B,)``."""
    count = inside.flatten(1).sum(1)
    return chosen.flatten(1).sum(1) / count.clamp_min(1), count


def share_changed(chosen: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected share of neighbours that differ, and the number of pairs, both ``(B,)``.

    Neighbours differ if one is 0 and the other is not. They must be independent of each other.
    """
    left, right = chosen[:, :-1], chosen[:, 1:]
    changed = torch.where(inside[:, 1:], left * (1 - right) + (1 - left) * right, 0.0)
    count = inside[:, 1:].sum(1)
    return changed.sum(1) / count.clamp_min(1), count


def hold(
    multiplier: Tensor, excess: Tensor, counted: Tensor, multiplier_rate: float, damping: float
) -> Tensor:
    """Return the penalty of each item for its excess, ``(B,)``, and update the multiplier.

    See :class:`StochasticMask`.

    Args:
        multiplier: λ, a scalar that is changed in place.
        excess: ``(B,)``.
        counted: ``(B,)`` bool, the items that count in the mean excess.
    """
    if not bool(counted.any()):
        return excess
    mean = float(excess.detach().double().sum() / counted.sum())
    force = float(multiplier) + damping * mean
    with torch.no_grad():
        multiplier += multiplier_rate * mean
    return force * excess


def check_shares(
    name: str,
    rate: float | None,
    transitions: float | None,
    multiplier_rate: float,
    damping: float,
) -> None:
    """Raise an error for invalid settings of the mean share of chosen words."""
    shares = {"rate": rate, "transitions": transitions}
    check_number(name, lambda s: 0 < s < 1, "a share between 0 and 1", or_null=True, **shares)
    check_not_negative(name, multiplier_rate=multiplier_rate, damping=damping)
