"""An exact sum over the likeliest structures, and one sample of the others (Liu et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spacy_latent.errors import MANY, check_whole
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.dense_marginalization import best_structures
from spacy_latent.estimators.score_function import check_control_variate
from spacy_latent.structures.base import Structure

# A rest of a lower probability is omitted: rejection would take too many draws.
NEGLIGIBLE = 1e-3
# Draws at once, and the number of rounds. The bound prevents an endless loop if scores are so large
# that the rest is a rounding error.
DRAWS, ROUNDS = 16, 500


class SumAndSample(Estimator, nn.Module):
    """An exact sum over the k best structures plus a score function of one sample from the rest.

    The objective is Σ p(z)·L(z) over the k best structures, plus (1 − Σ p)·L(z)·∇log p of one
    sample z from the rest. Its variance is below the variance of one plain sample. It is unbiased,
    except that rests of a probability below 0.001 are omitted. Prediction uses the best structure.

    Args:
        k: number of structures in the sum.
        control_variate: subtracted from all losses that multiply the gradient of a probability;
            None for 0. SelfCritical subtracts the loss of the best structure, which the sum
            contains.
    """

    requires = frozenset({"sample", "log_prob"})
    needs_loss = True
    leaves_out_unlabelled = True
    posterior = "scores"
    hard = True

    def __init__(self, k: int = 4, control_variate: ControlVariate | None = None) -> None:
        nn.Module.__init__(self)
        check_whole(self.name, most=MANY, k=k)
        check_control_variate(self.name, control_variate, 1)
        self.k = k
        self.control_variate = control_variate

    def reset(self, width: int) -> None:
        if self.control_variate is not None:
            self.control_variate = self.control_variate.for_width(width)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        z, known = best_structures(structure, scores, lengths, self.k)
        # Masked before the exponential, which may overflow in padding and give a gradient of NaN.
        log_probs = torch.where(known, structure.log_prob(z, scores, lengths), -torch.inf)
        weights = log_probs.exp()
        rest = (1 - weights.detach().sum(0)).clamp_min(0.0)
        other, found = _sample_outside(structure, scores.detach(), lengths, z, rest)
        z = torch.cat([z, other[None]])
        last = torch.where(found, rest, 0.0)
        of_other = structure.log_prob(other, scores, lengths)
        # The sum is differentiated through its weights, the sample through its log-probability.
        log_probs = torch.cat([torch.zeros_like(log_probs), of_other[None]])
        present = torch.cat([known, found[None]])
        return Draw(z, torch.cat([weights, last[None]]), log_probs, padding=~present)

    def objective(
        self,
        losses: Tensor,
        weights: Tensor,
        log_probs: Tensor,
        features: Tensor,
        extras: Tensor | None = None,
    ) -> Tensor:
        fixed, known = weights.detach(), losses.detach()
        objective = (fixed * losses).sum(0)
        own = (fixed * known).sum(0, keepdim=True)
        baseline: Tensor | float = 0.0
        variate = self.control_variate
        if variate is not None:
            baseline = variate(own, known[0], features)
            fit = variate.fit(own, features)
            objective = objective if fit is None else objective + fit
        advantage = known - baseline
        objective = objective + (advantage * (weights - fixed))[:-1].sum(0)
        return objective + fixed[-1] * advantage[-1] * log_probs[-1]


def _sample_outside(
    structure: Structure, scores: Tensor, lengths: Tensor, z: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a sample of each item outside of its structures ``z``, by rejection.

    Args:
        z: excluded structures, ``(K, B, *parts)``.
        rest: probability of all other structures, ``(B,)``.

    Returns:
        Samples ``(B, *parts)``, and a mask of the items for which one was found, ``(B,)``.
    """
    result = z[0].clone()
    wanted = rest > NEGLIGIBLE
    found = torch.zeros_like(wanted)
    for _ in range(ROUNDS):
        items = (wanted & ~found).nonzero().flatten()
        if not len(items):
            break
        drawn = structure.sample(scores[items], lengths[items.to(lengths.device)], DRAWS)
        same = (drawn[:, None] == z[None, :, items]).flatten(3).all(3).any(1)
        some = (~same).any(0)
        first = (~same).to(torch.int8).argmax(0)
        result[items[some]] = drawn[first[some], some.nonzero().flatten()]
        found[items[some]] = True
    return result, found
