"""Adaptive implicit maximum likelihood estimation, AIMLE (Minervini et al. 2023)."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from spacy_latent.errors import (
    check_not_negative,
    check_number,
    check_one_of,
    check_positive,
)
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.noise import Noise, check_noise
from spacy_latent.estimators.perturbed_best import PerturbedBest
from spacy_latent.estimators.target_difference import NoisyTargetDifference, norms, not_masked
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import repeat, solve_copies


class AdaptiveImplicitMLE(NoisyTargetDifference, nn.Module):
    """I-MLE with an adaptive step, λ = β·‖s + ε‖ / ‖g‖ or β·‖s‖ / ‖g‖ for each item.

    The difference of the structures is divided by λ. Neither norm includes parts that a mask
    forbids, even by a score like −1e6 or −1e30. The authors' code takes both norms over the whole
    batch. Here each item has its own, so that no item changes the step of another.

    β rises by ``rate`` after a batch if too few parts get a gradient: if a running mean of their
    number per sample is below ``target``. Otherwise it falls by ``rate``. β and the running mean
    are saved with the weights, as the buffers ``step`` and ``changed``. The scale of the loss
    changes the size of the gradient, but not the parts that get one.

    Args:
        difference: "forward", (z − MAP(s + ε − λg)) / λ, or "central", between s + ε + λg and s + ε
            − λg, divided by 2λ.
        initial: β at the start.
        rate: change of β in a step.
        target: number of parts of a sample that should get a gradient.
        momentum: weight of the past in the running mean; with 0 it is the mean of the last batch.
        noise, scale, num_samples, k: as for I-MLE.
        norm ("noisy" or "scores"): "scores" takes ‖s‖, as in the paper. Scores of 0, which a scorer
            with a last layer of zeros gives, then never have a gradient, whatever β. "noisy" takes
            ‖s + ε‖, at the cost that the step varies with the noise.
    """

    step: Tensor
    changed: Tensor
    # ‖s‖ of each copy in a batch, on a copy of the estimator for that batch; None for ‖s + ε‖.
    _norms: Tensor | None = None

    def __init__(
        self,
        difference: Literal["forward", "central"] = "forward",
        initial: float = 1.0,
        rate: float = 1e-3,
        target: float = 1.0,
        momentum: float = 0.9,
        noise: Noise = "sum_of_gamma",
        scale: float = 1.0,
        num_samples: int = 1,
        k: int = 10,
        norm: Literal["noisy", "scores"] = "noisy",
    ) -> None:
        nn.Module.__init__(self)
        check_one_of(self.name, ("forward", "central"), difference=difference)
        check_one_of(self.name, ("noisy", "scores"), norm=norm)
        check_not_negative(self.name, initial=initial)
        check_number(self.name, lambda m: 0 <= m < 1, "a number in [0, 1)", momentum=momentum)
        check_positive(self.name, rate=rate, target=target)
        check_noise(self.name, noise, scale, num_samples, k)
        self.difference = difference
        self.initial = float(initial)
        self.rate = rate
        self.target = target
        self.momentum = momentum
        self.noise: Noise = noise
        self.scale = scale
        self.num_samples = num_samples
        self.k = k
        self.norm = norm
        self.register_buffer("step", torch.tensor(self.initial, dtype=torch.float64))
        self.register_buffer("changed", torch.tensor(float(target), dtype=torch.float64))

    def reset(self, width: int) -> None:
        self.step.fill_(self.initial)
        self.changed.fill_(self.target)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if self.norm == "noisy" or not is_train:
            return super().__call__(structure, scores, lengths, is_train)
        # Buffers are shared with the copy. The backward pass of another batch may come between.
        own = copy.copy(self)
        allowed = structure.part_mask(scores, lengths)
        plain = scores.detach().masked_fill(~allowed, -torch.inf)
        own._norms = repeat(norms(plain, not_masked(plain)), self.num_samples)
        return PerturbedBest.__call__(own, structure, scores, lengths, is_train)

    def gradient_of_scores(
        self, structure: Structure, scores: Tensor, z: Tensor, gradient: Tensor, lengths: Tensor
    ) -> Tensor:
        counted = not_masked(scores)
        magnitude = norms(scores, counted) if self._norms is None else self._norms
        share = self.step.to(scores) * magnitude
        length = norms(gradient, counted)
        # An item without a gradient, or with β = 0, keeps its structure.
        size = torch.where(length > 0, share / length.clamp_min(1e-300), 0.0)
        batch = len(lengths) // self.num_samples
        ahead = solve_copies(structure.map, scores - size * gradient, lengths, batch)
        if self.difference == "central":
            behind = solve_copies(structure.map, scores + size * gradient, lengths, batch)
            width = 2 * size
        else:
            behind, width = z, size
        difference = behind - ahead
        self._adapt(difference)
        return torch.where(width > 0, difference / width.clamp_min(1e-300), 0.0)

    @torch.no_grad()
    def _adapt(self, difference: Tensor) -> None:
        if not difference.shape[0]:
            return
        count = difference.count_nonzero().double().to(self.changed.device) / difference.shape[0]
        self.changed.mul_(self.momentum).add_((1 - self.momentum) * count)
        rate = self.rate if self.changed < self.target else -self.rate
        self.step.add_(rate).clamp_min_(0.0)
