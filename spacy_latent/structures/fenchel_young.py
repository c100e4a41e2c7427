"""Losses of scores against a gold structure, for any structure with the inference that they need.

All are Fenchel-Young losses (Blondel et al. 2020, definition 2),

    L_Ω(s; z) = max_μ (μ·s − Ω(μ)) − (z·s − Ω(z)),

with the maximum over the convex hull of the structures. The gradient is argmax − z.

- "crf": Ω is the negative entropy. The loss is the negative log-likelihood, with the gradient
  marginals − z.
- "sparsemap": Ω = ½‖μ‖² (Niculae et al. 2018a, section 4). It is 0 if z·s exceeds y·s by at least
  z·(z − y) for every other y. With equally many parts in all structures this is ½‖z − y‖².
- "perceptron": Ω = 0 (Collins 2002). With a margin it is the structured hinge loss (Taskar et al.
  2003), whose maximum has the cost of errors added.
- "perturbed": max_μ (μ·s − Ω(μ)) is E[max_y y·(s + ε)], the maximum under noise (Berthet et al.
  2020, section 4). Here it is the mean over given draws, with the gradient mean of MAP(s + ε) less
  z. Ω(z) has no closed form and does not depend on s. It is left out, so the smallest value is not
  0. It needs a best structure and nothing else.

Smoothed dynamic programs have a loss of their own, in :mod:`spacy_latent.structures.smoothed`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spacy_latent.errors import (
    MANY,
    IncompatiblePair,
    LatentError,
    check_not_negative,
    check_one_of,
    check_positive,
    check_whole,
)
from spacy_latent.kernels.autograd.derivatives import differentiable_once
from spacy_latent.structures.base import Structure
from spacy_latent.structures.totals import exact_potential, exact_scores

LOSS_ONCE = "the loss 'sparsemap' can be differentiated once, and 'crf' twice"
LOSSES = ("crf", "sparsemap", "perceptron", "perturbed")


def check_loss(structure: Structure, loss: str) -> None:
    """Check that the loss is available for scores of ``structure``.

    Raises:
        IncompatiblePair: it is not.
    """
    able = [name for name in LOSSES if _is_able(structure, name)]
    if loss not in able:
        needed = {"crf": "log_prob", "sparsemap": "sparsemap"}.get(loss, "map")
        reason = (
            f"it needs {needed}, which {structure.name} cannot compute exactly"
            if structure.linear or loss == "crf"
            else "it needs scores of parts, and these are of decisions"
        )
        instead = " or ".join(f"'{name}'" for name in able) or "another structure"
        raise IncompatiblePair(f"The loss '{loss}'", structure.name, reason, instead)


def check_loss_settings(
    name: str,
    loss: str,
    margin: float,
    noise: float = 1.0,
    num_samples: int = 1,
    prefix: str = "",
) -> None:
    """Refuse invalid settings.

    Args:
        name: owner of the settings, for errors.
        prefix: beginning of the names of the settings.
    """

    def named(setting: str, value: object) -> dict[str, Any]:
        return {f"{prefix}{setting}": value}

    check_one_of(name, LOSSES, **named("loss", loss))
    check_not_negative(name, **named("margin", margin))
    if margin and loss != "perceptron":
        raise LatentError(
            f"{name}: {prefix}margin is {margin} and {prefix}loss is {loss!r}. Only the "
            f"perceptron's margin can be chosen; set {prefix}margin to 0, or {prefix}loss to "
            "'perceptron'."
        )
    check_positive(name, **named("noise", noise))
    check_whole(name, most=MANY, **named("samples", num_samples))


def _is_able(structure: Structure, loss: str) -> bool:
    if loss == "crf":
        return "log_prob" in structure.tractable
    return structure.linear and (structure.has_map or loss == "sparsemap")


def structured_loss(
    structure: Structure,
    scores: Tensor,
    gold: Tensor,
    lengths: Tensor,
    loss: str = "crf",
    margin: float = 0.0,
    noise: Tensor | None = None,
) -> Tensor:
    """Return the loss of each item, ``(B,)``, differentiable in ``scores``.

    It is differentiable twice for "crf", and once for the other losses.

    It is never negative, up to rounding. It is computed in float64, as a small difference of large
    numbers.

    Args:
        scores: ``(B, *parts)``.
        gold: ``(B, *parts)``, 0/1, members of the structure.
        margin: for "perceptron", the cost of each part of another structure that is not in the gold
            one. The gold score must exceed the score of the other one by its total cost.
        noise: for "perturbed", ``(K, B, *parts)``, K at least 1, added to the scores.
    """
    check_loss_settings("structured_loss", loss, margin)
    if loss == "crf":
        return -structure.log_prob(gold, scores, lengths)
    exact, dtype = exact_scores(structure, scores), scores.dtype
    gold = gold.to(exact.dtype)
    if loss == "sparsemap":
        # At the maximum the value does not change with μ: no gradient has to go through it.
        mean = structure.sparsemap(exact.detach(), lengths).mean
        exact = differentiable_once(exact, LOSS_ONCE)
        squares = (mean.square() - gold.square()).flatten(1).sum(1)
        return (_dot(mean, exact) - _dot(gold, exact) - 0.5 * squares).to(dtype)
    # Unlike a dot product, this counts the transitions that a structure may have bound.
    of_gold = exact_potential(structure, gold, exact, lengths)
    if loss == "perturbed":
        if noise is None or not len(noise):
            raise LatentError(
                "structured_loss: the loss 'perturbed' needs noise (K, B, *parts) with K >= 1."
            )
        # The gold score has the same noise, which is 0 on average. So the loss is never negative,
        # with less variance.
        gains = [
            _maximum(structure, noisy, lengths) - exact_potential(structure, gold, noisy, lengths)
            for noisy in exact + noise
        ]
        return torch.stack(gains).mean(0).to(dtype)
    cost = margin * (1 - gold)
    best = structure.map(exact.detach() + cost, lengths)
    of_best = exact_potential(structure, best, exact, lengths)
    return (of_best - of_gold + (best * cost).flatten(1).sum(1)).to(dtype)


def _maximum(structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the score ``(B,)`` of the best structure; its gradient is that structure."""
    best = structure.map(scores.detach(), lengths)
    return exact_potential(structure, best, scores, lengths)


def _dot(z: Tensor, scores: Tensor) -> Tensor:
    """Return z·s of each item; parts that are not in z count as 0, whatever their score."""
    taken = torch.where(z != 0, scores, scores.new_zeros(()))
    return (z * taken).flatten(1).sum(1)
