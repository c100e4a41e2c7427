"""Noise for perturbed scores."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from spacy_latent.errors import MANY, check_one_of, check_positive, check_whole
from spacy_latent.kernels.core.gpu_transfers import derived, send
from spacy_latent.structures.copies import repeat

Noise = Literal["gumbel", "sum_of_gamma", "gaussian"]
NOISES = get_args(Noise)
# Number of terms of the series of gamma variables.
TERMS = 10


def draw_noise(noise: Noise, like: Tensor, scale: float, k: int = 10) -> Tensor:
    """Return noise of the shape, dtype and device of ``like``.

    It is drawn on the CPU by torch's default generator. It is thus the same for the same seed on
    every device, and is restored with the generator.

    Args:
        noise: "gumbel" for Gumbel(0, scale). "sum_of_gamma" for noise whose sum over ``k`` chosen
            parts is near Gumbel(0, scale) (Niepert et al. 2021). "gaussian" for Normal(0, scale²).
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
    for i in range(1, TERMS + 1):
        shape = torch.full_like(total, 1.0 / k)
        # torch's gamma has rate 1: dividing by the rate i/k scales it.
        total += torch._standard_gamma(shape) * (k / i)
    shift = torch.tensor(float(TERMS), device="cpu").log().item()
    return send((scale / k * (total - shift)).to(like.dtype), like.device)


def check_noise(name: str, noise: str, scale: float, num_samples: int, k: int) -> None:
    """Raise an error for an unknown law, a scale of 0 or less, or a count below 1."""
    check_one_of(name, NOISES, noise=noise)
    check_positive(name, scale=scale)
    check_whole(name, most=MANY, num_samples=num_samples, k=k)


def repeat_with_noise(
    scores: Tensor, lengths: Tensor, noise: Noise, scale: float, num_samples: int, k: int = 10
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``num_samples`` perturbed copies of a batch, their noise, and their lengths.

    The noise is returned as well, for gradients that depend on it.

    Returns:
        Copies ``(K·B, *parts)``, one after another; noise of the same shape; and lengths.
    """
    repeated = repeat(scores, num_samples)
    drawn = draw_noise(noise, repeated, scale, k)
    sizes = derived(partial(repeat, count=num_samples), lengths)
    return repeated + drawn, drawn, sizes
