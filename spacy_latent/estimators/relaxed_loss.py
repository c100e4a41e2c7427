"""The loss of relaxed samples as a control variate with a trained strength and temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spacy_latent.estimators.base import Draw
from spacy_latent.structures.derivatives import recording
from spacy_latent.structures.results import Reparameterized

# Difference of log τ between the two relaxations of a sample, if τ is trained.
DIFFERENCE = 0.2


class RelaxedLoss(nn.Module):
    """The strength η and temperature τ of the control variate η·L(μ(r/τ)), trained or given.

    They are trained by the gradient of the squared norm of the gradient estimate of each sample.
    Its mean is the variance of the estimate plus a constant. The estimate is linear in η. If τ is
    trained, the control variate is the mean of those with τ·e^(±0.1), whose difference gives the
    derivative for τ. So the loss is differentiated once, and any component can compute it.

    Args:
        strength: η at the beginning.
        relaxation: τ at the beginning.
        learn_strength: whether η is a weight.
        learn_relaxation: whether τ is a weight. Each sample then has four relaxed structures in
            place of two.
    """

    def __init__(
        self, strength: float, relaxation: float, learn_strength: bool, learn_relaxation: bool
    ) -> None:
        super().__init__()
        self.first_strength = strength
        self.first_relaxation = relaxation
        # Relative to the first values, so that weight decay draws them there.
        self.log_strength = (
            nn.Parameter(torch.zeros(1, dtype=torch.float32)) if learn_strength else None
        )
        self.log_relaxation = (
            nn.Parameter(torch.zeros(1, dtype=torch.float32)) if learn_relaxation else None
        )

    def reset(self) -> None:
        """Set η and τ to their first values."""
        for weight in self.parameters():
            nn.init.zeros_(weight)

    @property
    def strength(self) -> float:
        """The present η."""
        return self.first_strength * _exp(self.log_strength)

    @property
    def relaxation(self) -> float:
        """The present τ."""
        return self.first_relaxation * _exp(self.log_relaxation)

    def temperatures(self) -> list[float]:
        """Return the temperatures of the relaxations of each sample, one or two."""
        if self.log_relaxation is None:
            return [self.relaxation]
        return [self.relaxation * math.exp(side * DIFFERENCE / 2) for side in (1, -1)]

    def relaxed(
        self, relaxation: Callable[[Tensor], Tensor], drawn: Reparameterized
    ) -> list[Tensor]:
        """Return the relaxations ``(2·K·B, *parts)`` of both noisy scores for each temperature.

        Args:
            relaxation: function from scores divided by a temperature to soft structures.
            drawn: samples.
        """
        noisy = (drawn.noisy, drawn.redrawn)
        return [
            torch.cat([relaxation(each / temperature) for each in noisy])
            for temperature in self.temperatures()
        ]

    def draw(
        self, z: Tensor, log_probs: Tensor, relaxed: Sequence[Tensor], extras: Sequence[Tensor]
    ) -> Draw:
        """Return the Draw of samples and their relaxations, of which only samples have a weight.

        Args:
            z: samples, ``(K, B, *parts)``.
            log_probs: ``(K·B,)``.
            relaxed: results of :meth:`connect` from the third on.
            extras: extras of the Draw, each ``(K·B,)``. The first is the second result of
                :meth:`connect`. The log-probabilities of ``relaxed`` follow them.
        """
        count, batch = z.shape[:2]
        soft = [part.to(z).view(2 * count, *z.shape[1:]) for part in relaxed[::2]]
        structures = torch.cat([z, *soft])
        nothing = z.new_zeros(len(structures) - count, batch)
        weights = torch.cat([z.new_full((count, batch), 1.0 / count), nothing])
        rows = [part.view(count, batch) for part in (*extras, *relaxed[1::2])]
        own = torch.cat([log_probs.view(count, batch), nothing])
        return Draw(structures, weights, own, extras=torch.cat(rows))

    def terms(
        self,
        losses: Sequence[Tensor],
        known: Sequence[Tensor],
        judged: Callable[[Tensor], Tensor] = lambda losses: losses,
    ) -> Tensor | float:
        """Return the terms of the objective of each sample, ``(K, D)``.

        Args:
            losses: for each temperature two, of the relaxation and of the one drawn again; each
                ``(K, D)``.
            known: for each temperature the log-probabilities ``(K, D)`` whose gradient belongs to
                its control variate.
            judged: function that subtracts from losses what does not depend on the sample.
        """
        total: Tensor | float = 0.0
        for relaxed, redrawn, log_probs in zip(losses[::2], losses[1::2], known):
            total = total + relaxed - redrawn - judged(redrawn.detach()) * log_probs
        return self.strength / len(known) * total

    def connect(self, scores: Tensor, inner: Sampled) -> list[Tensor]:
        """Return results of a graph of its own, whose gradients train this module as well.

        Returns:
            Log-probabilities ``(K·B,)`` for the loss of samples; zeros ``(K·B,)``, which the
            objective must add, since their gradient trains η, τ and the weights of c; then for
            each temperature the relaxations ``(2·K·B, *parts)`` and the log-probabilities again.
        """
        own = (self.log_strength, self.log_relaxation)
        return list(_Trained.apply(inner, scores, *own, *inner.weights))


def _exp(weight: Tensor | None) -> float:
    return 1.0 if weight is None else math.exp(float(weight.detach()))


@dataclass
class Sampled:
    """Samples in a graph of their own.

    Attributes:
        leaf: scores of the samples, ``(K·B, *parts)``, a leaf of the graph.
        log_probs: ``(K·B,)``.
        soft: the relaxations ``(2·K·B, *parts)`` for each temperature.
        network: for another control variate c, ∇c(r) − ∇c(r̃) ``(K·B, *parts)`` and c(r̃)
            ``(K·B,)``; None if there is no c. The objective subtracts c(r̃) from the loss. The
            zeros of :meth:`RelaxedLoss.connect` then have the gradient ∇c(r) − ∇c(r̃).
        weights: weights of c.
    """

    leaf: Tensor
    log_probs: Tensor
    soft: list[Tensor]
    network: tuple[Tensor, Tensor] | None = None
    weights: Sequence[Tensor] = ()


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inner: Sampled, scores: Tensor, *weights: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.inner = inner
        ctx.dtypes = [None if weight is None else weight.dtype for weight in weights[:2]]
        log_probs = inner.log_probs.detach()
        results = [log_probs.clone(), torch.zeros_like(log_probs)]
        for soft in inner.soft:
            results += [soft.detach().clone(), log_probs.clone()]
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inner: Sampled = ctx.inner
        # The zeros are added to the objective, so their gradient is the factor by which the caller
        # multiplies the objective of each sample: the scale of a loss in half precision, a
        # mean over docs. The squared norm has it twice, and an objective has it once.
        of_samples, scale, *others = gradients
        leaf = inner.leaf

        def shaped(numbers: Tensor) -> Tensor:
            return numbers.view(-1, *[1] * (leaf.dim() - 1))

        def for_scores(*pairs: tuple[Tensor, Tensor]) -> Tensor:
            results, upstream = zip(*pairs)
            return torch.autograd.grad(results, leaf, upstream, retain_graph=True)[0]

        own = for_scores((inner.log_probs, of_samples))
        parts = [
            for_scores((soft, of_soft), (inner.log_probs, of_known))
            for soft, of_soft, of_known in zip(inner.soft, others[::2], others[1::2])
        ]
        if inner.network is not None:
            own = own + shaped(scale) * inner.network[0].detach()
        relaxed = torch.stack(parts).sum(0)
        estimate = own + relaxed
        unscaled = torch.where(shaped(scale) == 0, 0.0, estimate / shaped(scale))
        # Each part has half of the strength.
        slope = 2 * (parts[0] - parts[-1]) / DIFFERENCE
        found: list[Tensor | None] = [
            None if dtype is None else 2 * (unscaled * change).sum().view(1).to(dtype)
            for dtype, change in zip(ctx.dtypes, (relaxed, slope))
        ]
        if inner.network is not None:
            slopes, known = inner.network
            score = for_scores((inner.log_probs, scale))
            axes = tuple(range(1, leaf.dim()))
            with recording():
                norm = (shaped(scale) * slopes * unscaled).sum()
                norm = norm - (known * (score * unscaled).sum(axes)).sum()
                found += torch.autograd.grad(2 * norm, list(inner.weights))
        return None, estimate, *found
