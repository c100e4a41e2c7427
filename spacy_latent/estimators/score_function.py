"""The score-function estimator, REINFORCE (Williams 1992), with control variates and PPO."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from spacy_latent.errors import (
    MANY,
    LatentError,
    check_flags,
    check_not_negative,
    check_positive,
    check_whole,
)
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.control_variates import ControlVariate, mean_of_others
from spacy_latent.structures.base import Structure


class ScoreFunction(Estimator, nn.Module):
    """An unbiased gradient of E[L(z)] for the scores, by exact samples.

    The gradient is (L(z) − b)·∇log p(z), averaged over the samples. Prediction uses the best
    structure.

    Args:
        num_samples: structures drawn for each text.
        control_variate: gives b; None for 0.
        normalize_advantage: divide L(z) − b by its standard deviation over the batch. The size of
            the step then does not depend on the scale of the loss. The gradient is no longer
            unbiased, since each batch has its own divisor.
        inner_steps: number of times that the scorer learns from the same samples. Above 1 it learns
            by PPO (Schulman et al. 2017): the update of all weights is followed by updates of the
            scorer alone. In these the ratio of new and old probability is clipped to 1 ± clip. Use
            it with dropout = 0.
        clip: bound of PPO on the change of the ratio.
        entropy_bonus: β of a term −β·H(p) in the objective. It is estimated by β·log p(z) in the
            loss of each sample. With several samples, the mean of the others' log p(z) is
            subtracted from log p(z). The estimate is unbiased, and needs no tractable entropy.
    """

    requires = frozenset({"sample", "log_prob"})
    linear_only = False
    needs_loss = True
    posterior: Literal["", "weights", "scores"] = "scores"
    hard = True

    def __init__(
        self,
        num_samples: int = 1,
        control_variate: ControlVariate | None = None,
        normalize_advantage: bool = False,
        inner_steps: int = 1,
        clip: float = 0.2,
        entropy_bonus: float = 0.0,
    ) -> None:
        nn.Module.__init__(self)
        check_not_negative(self.name, entropy_bonus=entropy_bonus)
        check_whole(self.name, most=MANY, num_samples=num_samples, inner_steps=inner_steps)
        # Infinity clips nothing.
        if clip != math.inf:
            check_positive(self.name, clip=clip)
        check_control_variate(self.name, control_variate, num_samples)
        check_flags(self.name, normalize_advantage=normalize_advantage)
        self.num_samples = num_samples
        self.control_variate = control_variate
        self.normalize_advantage = normalize_advantage
        self.inner_steps = inner_steps
        self.clip = clip
        self.entropy_bonus = entropy_bonus

    @property
    def leaves_out_unlabelled(self) -> bool:  # type: ignore[override]
        # The entropy is of all texts.
        return not self.entropy_bonus

    def reset(self, width: int) -> None:
        if self.control_variate is not None:
            self.control_variate = self.control_variate.for_width(width)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        batch = scores.shape[0]
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        z, log_probs = self.drawn(structure, scores, lengths)
        weights = scores.new_full((self.num_samples, batch), 1.0 / self.num_samples)
        if self.control_variate is not None and self.control_variate.greedy:
            z = torch.cat([z, structure.map(scores, lengths)[None]])
            nothing = scores.new_zeros((1, batch))
            log_probs, weights = torch.cat([log_probs, nothing]), torch.cat([weights, nothing])
        return Draw(z, weights, log_probs)

    def drawn(self, structure: Structure, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples ``(K, B, *parts)`` and log-probabilities for training, ``(K, B)``."""
        z = structure.sample(scores.detach(), lengths, self.num_samples)
        return z, structure.log_prob(z, scores, lengths)

    def objective(
        self,
        losses: Tensor,
        weights: Tensor,
        log_probs: Tensor,
        features: Tensor,
        extras: Tensor | None = None,
    ) -> Tensor:
        sampled, known = losses[: self.num_samples], self.judged(losses.detach(), extras)
        own = known[: self.num_samples]
        advantage, objective = own, sampled.mean(0)
        variate = self.control_variate
        if variate is not None:
            advantage = own - variate(own, known[-1] if variate.greedy else None, features)
            fit = variate.fit(own, features)
            objective = objective if fit is None else objective + fit
        if self.normalize_advantage and advantage.numel() > 1:
            advantage = advantage / advantage.std().clamp_min(1e-6)
        if self.entropy_bonus:
            value = log_probs[: self.num_samples].detach()
            if self.num_samples > 1:
                value = value - mean_of_others(value)
            advantage = advantage + self.entropy_bonus * value
        return objective + (advantage * log_probs[: self.num_samples]).mean(0)

    def judged(self, losses: Tensor, extras: Tensor | None) -> Tensor:
        """Return the value of each structure that replaces its loss in (L(z) − b)·∇log p(z).

        It is ``(K, D)``, without gradient. The default is the loss.
        """
        return losses


def check_control_variate(name: str, variate: ControlVariate | None, num_samples: int) -> None:
    """Raise an error unless it is None, or a control variate with enough samples."""
    if variate is None:
        return
    if not isinstance(variate, ControlVariate):
        raise LatentError(
            f"{name}: control_variate is of type {type(variate).__name__}; expected a control "
            "variate, such as spacy-latent.SelfCritical.v1, or null."
        )
    if num_samples < variate.min_samples:
        raise LatentError(
            f"{name}: num_samples is {num_samples}, and {variate.name} needs at least "
            f"{variate.min_samples}."
        )
