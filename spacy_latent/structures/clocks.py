"""Exponential clocks of parts, drawn again given the choices of an algorithm.

Each part has a clock of rate exp(score). The algorithm observes which clock of a set rings first
(Struminsky et al. 2021; as in the code of its authors).

The first of several parallel clocks rings after an exponential time, whose rate is the sum of their
rates, whichever clock it is. The remaining times of the others are then again exponential with
their own rates. So given the choices, a clock is the sum of the times of all choices that it took
part in. A clock that was not chosen also has a remainder. All computations use logarithms, since
rates differ by as much as exp of the scores does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import send


def log_exponential(like: Tensor) -> Tensor:
    """Return logarithms of exponential numbers of rate 1 in the shape, dtype and place of ``like``.

    They are drawn by torch's default generator on the CPU.
    """
    own = torch.empty_like(like, device="cpu", memory_format=torch.contiguous_format)
    # The number may round to 0.
    return send(own.exponential_().clamp_min(torch.finfo(like.dtype).tiny).log(), like.device)


def with_rest(elapsed: Tensor, running: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
    """Return logarithms of whole clocks, with their remainders.

    All arguments have the shape of ``scores``, which are finite.

    Args:
        elapsed: logarithm of the time spent in choices if ``running``, else any number.
        running: whether the clock took part in any choice.
        chosen: the clocks that have rung.
    """
    rest = log_exponential(scores) - scores
    return torch.where(chosen, elapsed, torch.where(running, torch.logaddexp(elapsed, rest), rest))


def free_draw(log_clocks: Tensor, scores: Tensor) -> Tensor:
    """Return perturbed scores, −log of the clocks, with the gradient of scores plus noise.

    The gradient is as if these clocks had been drawn first, and had led to the choices.
    """
    return scores - (scores + log_clocks).detach()
