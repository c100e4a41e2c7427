"""The score function of a reward that is no loss of the task (Williams 1992)."""

from __future__ import annotations

import math

from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.rewards import Reward
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.structures.base import Structure


class RewardedScoreFunction(ScoreFunction):
    """ScoreFunction whose samples are judged by task_weight · L(z) − reward_weight · R(z), where R
    is a reward of the structure itself. The gradient for the scores is that of the expectation of
    this, unbiased. Composer and labels learn from the task's loss alone, whatever its weight here;
    an embedder that the scorer reads as well, from both.

    reward: R, such as ``spacy-latent.ShortArcs.v1``; None for 0. Of a text with several spans the
        mean of theirs.
    reward_weight, task_weight: at 0 the latter leaves structures to the reward alone.
    num_samples, control_variate, normalize_advantage, inner_steps, clip, entropy_bonus: as for
        ScoreFunction; control variates are of what samples are judged by.
    """

    # Where a reward judges the structures, no bound on evidence is what their distribution trains.
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
        if not (0 <= reward_weight < math.inf and 0 <= task_weight < math.inf):
            raise LatentError(
                f"{self.name}: reward_weight is {reward_weight} and task_weight {task_weight}; "
                "expected numbers >= 0."
            )
        if not task_weight and (reward is None or not reward_weight):
            raise LatentError(
                f"{self.name}: task_weight is 0 and there is no reward with a weight, so that "
                "nothing judges the structures. Set reward, or task_weight above 0."
            )
        self.reward = reward
        self.reward_weight = reward_weight
        self.task_weight = task_weight

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
