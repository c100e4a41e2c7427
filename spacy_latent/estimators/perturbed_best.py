"""The base class of estimators by the best structures of K perturbed copies of the scores."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

from torch import Tensor

from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.noise import Noise, repeat_with_noise
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies


class PerturbedBest(Estimator):
    """Best structures of K perturbed copies of the scores; at prediction MAP(scores).

    Subclasses set the attributes. ``noise`` may be None, for no noise.

    Attributes:
        noise: law of the noise, "gumbel", "sum_of_gamma" or "gaussian".
        scale: scale of the noise.
        num_samples: K.
        k: for "sum_of_gamma", the number of parts of a typical structure.
    """

    noise: Noise | None
    scale: float
    num_samples: int
    k: int = 10

    @abstractmethod
    def best(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return MAP(scores) with the estimator's gradient."""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        batch, parts = scores.shape[0], scores.shape[1:]
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        count = self.num_samples
        if self.noise is not None:
            scores, _, lengths = repeat_with_noise(
                scores, lengths, self.noise, self.scale, count, self.k
            )
        z = solve_copies(partial(self.best, structure), scores, lengths, batch)
        return Draw.equal(z.view(count, batch, *parts))
