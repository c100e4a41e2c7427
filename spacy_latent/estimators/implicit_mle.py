"""Implicit maximum likelihood estimation, I-MLE (Niepert et al. 2021)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import check_flags, check_positive
from spacy_latent.estimators.noise import Noise, check_noise
from spacy_latent.estimators.target_difference import NoisyTargetDifference
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies


class ImplicitMLE(NoisyTargetDifference):
    """The best structure under noise, with the difference to a target structure as gradient.

    Forward z = MAP(s + ε). Backward z − MAP(s + ε − λg), with the same ε and with g the gradient at
    z (their algorithm 1). K = num_samples, each of weight 1/K. At prediction z = MAP(s).

    Args:
        target_step: λ.
        noise: law of ε, see :class:`~spacy_latent.estimators.perturb_and_map.PerturbAndMap`.
        scale: scale of ε, see the same class.
        num_samples: number of structures drawn per item.
        k: for "sum_of_gamma", the number of parts of a typical structure; for KOfN, its k.
        scale_by_batch: multiply g by the number of items, for losses that are means over them.
            Components solve texts of similar length together; items are then the texts of one such
            group, not of the whole batch.
    """

    def __init__(
        self,
        target_step: float = 10.0,
        noise: Noise = "sum_of_gamma",
        scale: float = 1.0,
        num_samples: int = 1,
        k: int = 10,
        scale_by_batch: bool = False,
    ) -> None:
        check_positive(self.name, target_step=target_step)
        check_noise(self.name, noise, scale, num_samples, k)
        check_flags(self.name, scale_by_batch=scale_by_batch)
        self.target_step = target_step
        self.noise: Noise = noise
        self.scale = scale
        self.num_samples = num_samples
        self.k = k
        self.scale_by_batch = scale_by_batch

    def gradient_of_scores(
        self, structure: Structure, scores: Tensor, z: Tensor, gradient: Tensor, lengths: Tensor
    ) -> Tensor:
        # The gradient of each sample is divided by their number already.
        step = self.target_step * self.num_samples
        if self.scale_by_batch:
            step *= gradient.shape[0] / self.num_samples
        batch = len(lengths) // self.num_samples
        target = solve_copies(structure.map, scores - step * gradient, lengths, batch)
        return (z - target) / self.num_samples
