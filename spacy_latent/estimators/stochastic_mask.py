"""The base class of relaxed masks over bits: a rate of choices, held by a Lagrangian."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.kernels.transfers import send
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits

# Gauss and Legendre's, for means: of 48, relative errors are below 1e-7 at scores of any size.
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(48)
# The interval that a variable in (0, 1) is stretched to before it is clipped to [0, 1].
LOW, HIGH = -0.1, 1.1


class StochasticMask(Estimator, nn.Module):
    """Masks in [0, 1] that are 0 or 1 with positive probability and differentiable in between. In
    training one draw.

    prediction ("map" or "mean"): z = 1 where s > 0, else 0; or the mean of the stretched and
        clipped variable, which is seldom 0. A rate is held for P(z ≠ 0), and the best mask keeps it
        only where scores have become decided.
    rate, transitions: the expected share of tokens that are not 0, and of neighbours of which one
        is 0 and the other not, are held at these. To the loss of each text comes (λ + damping · e)
        times its own excess, where e is the mean excess of the batch and λ grows by
        multiplier_rate · e in each step: the Lagrangian of Bastings et al. (2019, section 3.3) with
        the damping of Platt and Barr (1987), without which it swings. None for no constraint.
    multiplier_rate, damping: as above. λ starts at 0; it is a buffer, stored with the weights.
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
        if prediction not in ("map", "mean"):
            raise LatentError(
                f"{self.name}: prediction is {prediction!r}; expected 'map' or 'mean'."
            )
        self.prediction = prediction
        for name, value in (("rate", rate), ("transitions", transitions)):
            if value is not None and not 0 < value < 1:
                raise LatentError(
                    f"{self.name}: {name} is {value}; expected a share between 0 and 1, or null."
                )
        if not multiplier_rate >= 0 or not damping >= 0:
            raise LatentError(
                f"{self.name}: multiplier_rate is {multiplier_rate} and damping {damping}; "
                "expected both to be at least 0."
            )
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
                "its masks are independent of each other, and members of this structure are not",
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
        """Masks for finite scores from numbers in (0, 1), differentiable."""

    @abstractmethod
    def above(self, scores: Tensor, stretched: float) -> Tensor:
        """P(z > x), differentiable, for x in [0, 1) given as the number in (0, 1) that is stretched
        to it."""

    def nonzero(self, scores: Tensor) -> Tensor:
        """P(z ≠ 0), differentiable."""
        return self.above(scores, -LOW / (HIGH - LOW))

    def draw(self, scores: Tensor) -> Tensor:
        """One mask for each score."""
        smallest = torch.finfo(scores.dtype).tiny
        # By the generator of the CPU, whose state is saved with a training.
        drawn = torch.rand_like(scores, device="cpu").clamp(smallest, 1 - 2**-24)
        return self.mask(scores, send(drawn, scores.device))

    def mean(self, scores: Tensor) -> Tensor:
        """Means of the masks, the integral of P(z > x) over x in [0, 1]. It is smooth, unlike the
        mask as a function of what a draw takes at random, and never loses a small mean."""
        total = torch.zeros_like(scores)
        for node, weight in zip(POINTS, WEIGHTS):
            x = (float(node) + 1) / 2
            total = total + float(weight) / 2 * self.above(scores, (x - LOW) / (HIGH - LOW))
        return total

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        ones = scores.new_ones((1, scores.shape[0]))
        if not is_train and self.prediction == "map":
            return Draw(structure.map(scores, lengths)[None], ones)
        prepared, _ = structure.masked(scores, lengths)
        allowed = ~prepared.isneginf()
        safe = prepared.masked_fill(~allowed, 0.0)
        own = self.draw(safe) if is_train else self.mean(safe)
        z = torch.where(allowed, own, 0.0).to(scores.dtype)
        if not is_train:
            return Draw(z[None], ones)
        chosen = torch.where(allowed, self.nonzero(safe), 0.0).to(scores.dtype)
        inside = structure.part_mask(scores, lengths.to(scores.device)).expand_as(chosen)
        return Draw(z[None], ones, penalty=self._penalty(chosen, inside))

    def _penalty(self, chosen: Tensor, inside: Tensor) -> Tensor | None:
        penalty = None
        wanted = (self.rate, self.transitions)
        for i, (target, measure) in enumerate(zip(wanted, (share_chosen, share_changed))):
            if target is None:
                continue
            share, count = measure(chosen, inside)
            # A text without anything to count neither keeps a rate nor breaks it.
            excess = torch.where(count > 0, share - target, 0.0)
            options = self.multiplier_rate, self.damping
            own = hold(self.multipliers[i], excess, count > 0, *options)
            penalty = own if penalty is None else penalty + own
        return penalty


def share_chosen(chosen: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Expected share of parts that are not 0, and the number of parts, ``(B,)``."""
    count = inside.flatten(1).sum(1)
    return chosen.flatten(1).sum(1) / count.clamp_min(1), count


def share_changed(chosen: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Expected share of neighbours of which one is 0 and the other not, and the number of
    neighbours, ``(B,)``, where they are independent."""
    left, right = chosen[:, :-1], chosen[:, 1:]
    changed = torch.where(inside[:, 1:], left * (1 - right) + (1 - left) * right, 0.0)
    count = inside[:, 1:].sum(1)
    return changed.sum(1) / count.clamp_min(1), count


def hold(
    multiplier: Tensor, excess: Tensor, counted: Tensor, multiplier_rate: float, damping: float
) -> Tensor:
    """The penalty of each item for its own excess, both ``(B,)``, and a step of the multiplier, a
    scalar that is changed in place. See :class:`StochasticMask`.

    counted: ``(B,)`` bool, the items that have a say.
    """
    if not bool(counted.any()):
        return excess
    mean = float(excess.detach().double().sum() / counted.sum())
    force = float(multiplier) + damping * mean
    with torch.no_grad():
        multiplier += multiplier_rate * mean
    return force * excess
