"""The score function of a reward that is no loss of the task (Williams 1992)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError, check_not_negative
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.rewards import Reward
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.structures.base import Structure


class RewardedScoreFunction(ScoreFunction):
    """A score function whose samples are judged by the task's loss and by a reward.

    A sample has the value task_weight · L(z) − reward_weight · R(z). R is a reward of the structure
    itself. The gradient for the scores is an unbiased estimate of the gradient of its expectation.
    The composer and the labels learn from the task's loss alone, whatever its weight here. An
    embedder that the scorer reads as well learns from both.

    Args:
        reward: R, such as ``spacy-latent.ShortArcs.v1``; None for 0. A text with several spans has
            the mean of their rewards.
        reward_weight: factor of R.
        task_weight: factor of L; 0 leaves structures to the reward alone.
        num_samples, control_variate, normalize_advantage, inner_steps, clip, entropy_bonus: as for
            ScoreFunction; control variates estimate the value above.
    """

    # With a reward, the distribution is not trained on a bound on evidence alone.
    posterior = ""

    def __init__(
        self,
        reward: Reward | None = None,
        reward_weight: float = 1.0,
        task_weight: float = 1.0,
        num_samples: int = 1,
        control_variate: ControlVariate | None = None,
        normalize_advantage: bool = False,
        inner_steps: int = 1,
        clip: float = 0.2,
        entropy_bonus: float = 0.0,
    ) -> None:
        super().__init__(
            num_samples, control_variate, normalize_advantage, inner_steps, clip, entropy_bonus
        )
        if reward is not None and not isinstance(reward, Reward):
            raise LatentError(
                f"{self.name}: reward is of type {type(reward).__name__}; expected a Reward, such "
                "as spacy-latent.ShortArcs.v1, or null."
            )
        check_not_negative(self.name, reward_weight=reward_weight, task_weight=task_weight)
        if not task_weight and (reward is None or not reward_weight):
            raise LatentError(
                f"{self.name}: task_weight is 0, and reward is null or reward_weight is 0, so that "
                "structures would not be trained. Set a reward and its weight, or task_weight."
            )
        self.reward = reward
        self.reward_weight = reward_weight
        self.task_weight = task_weight

    @property
    def leaves_out_unlabelled(self) -> bool:  # type: ignore[override]
        return self.reward is None and super().leaves_out_unlabelled

    def check(self, structure: Structure) -> None:
        super().check(structure)
        reward = self.reward
        if reward is not None and reward.parts and structure.parts != reward.parts:
            raise IncompatiblePair(
                f"{self.name} with the reward {reward.name}",
                structure.name,
                f"this reward is for {reward.parts} and the structure is made of "
                f"{structure.parts or 'other parts'}",
                f"a structure of {reward.parts}, or another reward",
            )

    def judged(self, losses: Tensor, extras: Tensor | None) -> Tensor:
        weighted = self.task_weight * losses
        return weighted if extras is None else weighted - self.reward_weight * extras.detach()
