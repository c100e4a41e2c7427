"""Exponential clocks of parts, one of rate exp(score) for each, drawn again given which of them
rang first wherever an algorithm looked (Struminsky et al. 2021; as in the code of its authors).

Of clocks that run beside each other the first rings after a time that is exponential of the sum of
their rates, whichever it is; what is left of the others then is exponential of their own rates
again. So given the choices, a clock is the sum of the times of all choices that it took part in,
and, unless it was chosen, of a rest. All is in logarithms: rates are as far apart as scores are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.kernels.transfers import send


def log_exponential(like: Tensor) -> Tensor:
    """Logarithms of exponential numbers of rate 1 in the shape, dtype and place of ``like``, drawn
    by torch's default generator on the CPU."""
    own = torch.empty_like(like, device="cpu", memory_format=torch.contiguous_format)
    # It may round to 0.
    return send(own.exponential_().clamp_min(torch.finfo(like.dtype).tiny).log(), like.device)


def with_rest(elapsed: Tensor, running: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
    """Logarithms of whole clocks, all arguments in the shape of ``scores``, which are finite.

    elapsed: the logarithm of the time in choices, where ``running`` says that there were any; else
        any number. chosen: the clocks that have rung.
    """
    rest = log_exponential(scores) - scores
    return torch.where(chosen, elapsed, torch.where(running, torch.logaddexp(elapsed, rest), rest))


def free_draw(log_clocks: Tensor, scores: Tensor) -> Tensor:
    """Perturbed scores, −log of the clocks, whose gradient is that of scores plus noise: as if
    these clocks had been drawn first, and had led to the choices."""
    return scores - (scores + log_clocks).detach()
