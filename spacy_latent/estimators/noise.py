"""Noise for perturbed scores."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import LatentError, check_whole
from spacy_latent.kernels.core.gpu_transfers import derived, send

Noise = Literal["gumbel", "sum_of_gamma", "gaussian"]
NOISES = ("gumbel", "sum_of_gamma", "gaussian")


def draw_noise(noise: Noise, like: Tensor, scale: float, k: int = 10, terms: int = 10) -> Tensor:
    """Return noise of the shape, dtype and device of ``like``.

    It is drawn on the CPU by torch's default generator. It is thus the same for the same seed on
    every device, and is restored with the generator.

    Args:
        noise: "gumbel" for Gumbel(0, scale). "sum_of_gamma" for noise whose sum over ``k`` chosen
            parts is near Gumbel(0, scale) (Niepert et al. 2021). "gaussian" for Normal(0, scale²).
        like: tensor of the wished form.
        scale: scale of the noise.
        k: for "sum_of_gamma", the number of chosen parts.
        terms: for "sum_of_gamma", the number of terms of the series.
    """
    own = torch.empty_like(like, device="cpu", memory_format=torch.contiguous_format)
    if noise == "gaussian":
        return send(scale * torch.randn_like(own), like.device)
    if noise == "gumbel":
        # Exponential(1) may round to 0, whose log would be an infinite score.
        drawn = own.exponential_().clamp_min(torch.finfo(like.dtype).tiny)
        return send(-scale * drawn.log(), like.device)
    # torch draws no gammas in half precision.
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    total = torch.zeros_like(own, dtype=wide)
    for i in range(1, terms + 1):
        shape = torch.full_like(total, 1.0 / k)
        # torch's gamma has rate 1: dividing by the rate i/k scales it.
        total += torch._standard_gamma(shape) * (k / i)
    drawn = (scale / k * (total - torch.tensor(float(terms), device="cpu").log().item())).to(
        like.dtype
    )
    return send(drawn, like.device)


def check_noise(name: str, noise: str, scale: float, num_samples: int, k: int) -> None:
    if noise not in NOISES:
        raise LatentError(f"{name}: noise is {noise!r}; expected one of {', '.join(NOISES)}.")
    if not scale > 0:
        raise LatentError(f"{name}: scale is {scale}; expected a positive number.")
    check_whole(name, num_samples=num_samples, k=k)


def repeat_with_noise(
    scores: Tensor, lengths: Tensor, noise: Noise, scale: float, num_samples: int, k: int = 10
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``num_samples`` perturbed copies of a batch, their noise, and their lengths.

    The noise of all parts is drawn at once, since a method with a target uses it twice.

    Returns:
        Copies ``(K·B, *parts)``, one after another; noise of the same shape; and lengths.
    """
    repeated = scores.repeat(num_samples, *[1] * (scores.dim() - 1))
    drawn = draw_noise(noise, repeated, scale, k)
    sizes = derived(lambda each: each.repeat(num_samples, *[1] * (each.dim() - 1)), lengths)
    return repeated + drawn, drawn, sizes
