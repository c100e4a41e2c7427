"""Straight-through from exact samples, with the marginals' backward (SIMPLE, Ahmed et al. 2023)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from spacy_latent.errors import MANY, check_flags, check_whole
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.straight_through import with_gradient_of
from spacy_latent.structures.base import Structure


class SampledStraightThrough(Estimator):
    """Straight-through from an exact sample of p(z) ∝ exp(z·s), with the marginals' backward.

    The gradient goes through the backward of the marginals at s. This is the Hessian of the
    log-partition, which is the covariance of z: dL/ds = Cov(z)·dL/dz. With KOfN it is SIMPLE (Ahmed
    et al. 2023). With OneOfN and Bits it is the straight-through estimator of a sample (Bengio et
    al. 2013). If L is linear in z, the gradient equals the gradient of E[L(z)] and has no noise.
    Otherwise it is biased and has low variance. At prediction z = MAP(s).

    In a bound on evidence, the value is an unbiased estimate, and the KL and its gradient are
    exact. The gradient of the reconstruction for s is biased, as for other losses.

    Args:
        num_samples: K, each of weight 1/K.
        average: compose the soft mean of the samples once, in place of each sample. K samples then
            cost no more than one, and a component that owns its loss judges the mean.
    """

    hard_at_prediction = True

    def __init__(self, num_samples: int = 1, average: bool = False) -> None:
        check_whole(self.name, most=MANY, num_samples=num_samples)
        check_flags(self.name, average=average)
        self.num_samples = num_samples
        self.average = average

    @property
    def posterior(self) -> Literal["", "scores"]:  # type: ignore[override]
        return "" if self.average else "scores"

    @property
    def hard(self) -> bool:  # type: ignore[override]
        return not self.average

    def needed(self) -> frozenset[str]:
        return frozenset({"map", "marginals", "sample"})

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        z = structure.sample(scores.detach(), lengths, self.num_samples)
        if self.average:
            z = z.mean(0, keepdim=True)
        smooth = structure.marginals(scores, lengths)
        # One marginals' backward for all samples, of the sum of their gradients.
        z = with_gradient_of(smooth.expand(z.shape), z)
        return Draw.equal(z)
