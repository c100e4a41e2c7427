"""Perturbed optimizers, the mean of the best structures under noise (Berthet et al. 2020)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.noise import check_noise, repeat_with_noise
from spacy_latent.kernels.autograd.tracing import refuse_transforms
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies


class PerturbedMean(Estimator):
    """The mean of MAP(s + σε) over ``num_samples`` draws, soft; at prediction MAP(s).

    Backward is the Monte-Carlo estimate of its Jacobian with the same draws, E[(g·z) ∇ν(ε)] / σ.
    The noise ε has density exp(−ν) (their proposition 3.1).

    Args:
        noise ("gaussian" or "gumbel"): ∇ν(ε) is ε, or 1 − exp(−ε).
        scale: σ.
        num_samples: number of draws, at least 2. The mean of the other draws' g·z is subtracted
            from each draw's g·z, which changes no expectation and lowers the variance.
    """

    hard = False
    hard_at_prediction = True

    def __init__(
        self,
        noise: Literal["gaussian", "gumbel"] = "gaussian",
        scale: float = 1.0,
        num_samples: int = 10,
    ) -> None:
        check_noise(self.name, noise, scale, num_samples, 1)
        if noise == "sum_of_gamma" or num_samples < 2:
            raise LatentError(
                f"{self.name}: noise is {noise!r} and num_samples {num_samples}; expected "
                "'gaussian' or 'gumbel', whose density has a gradient, and at least 2."
            )
        self.noise: Literal["gaussian", "gumbel"] = noise
        self.scale = scale
        self.num_samples = num_samples

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        refuse_transforms(self.name, scores)
        return Draw.single(_PerturbedMean.apply(scores, structure, lengths, self))


class _PerturbedMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, structure: Structure, lengths: Tensor, estimator: PerturbedMean
    ) -> Tensor:
        count = estimator.num_samples
        noisy, noise, repeated = repeat_with_noise(
            scores, lengths, estimator.noise, estimator.scale, count, 1
        )
        z = solve_copies(structure.map, noisy, repeated, len(scores)).view(count, *scores.shape)
        allowed = structure.part_mask(scores, lengths) & ~scores.isneginf()
        ctx.save_for_backward(z, noise.view(count, *scores.shape), allowed)
        ctx.estimator = estimator
        return z.mean(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        z, noise, allowed = ctx.saved_tensors
        estimator: PerturbedMean = ctx.estimator
        slope = noise / estimator.scale
        if estimator.noise == "gumbel":
            slope = 1.0 - (-slope).exp()
        count = z.shape[0]
        gradient = gradient.masked_fill(~allowed, 0.0)
        inner = (z * gradient).flatten(2).sum(2)
        # Less the mean of the other draws.
        inner = (inner - inner.mean(0)) * (count / (count - 1))
        inner = inner.view(*inner.shape, *[1] * (z.dim() - 2))
        result = (inner * slope).mean(0) / estimator.scale
        return result.masked_fill(~allowed, 0.0), None, None, None
