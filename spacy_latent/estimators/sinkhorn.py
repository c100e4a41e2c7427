"""The entropic relaxation of one-to-one alignments (Cuturi 2013; Mena et al. 2018)."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError, check_positive, check_whole
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.noise import Noise, check_noise, repeat_with_noise
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment


class Sinkhorn(Estimator):
    """Soft one-to-one alignment by Sinkhorn's normalisation, in training and at prediction.

    z is the matrix P that maximises Σ P·s − temperature · Σ P (log P − 1), with an alignment's sums
    of rows and columns. Its backward goes through the steps of normalisation (Mena et al. 2018,
    section 3). The structure is OneToOneAlignment, whose marginals are intractable: P is not their
    mean.

    With noise, scores in training are s + ε. Gumbel noise makes it the Gumbel-Sinkhorn operator of
    Mena et al. (2018), K = num_samples, each of weight 1/K. Prediction has no noise.

    Args:
        temperature: larger is smoother. Towards 0, z tends to the best alignment, and the number of
            steps grows.
        max_iter: bound on the steps, each one of the rows and one of the columns. A temperature
            below 1 may need more than the default. If the steps do not suffice, the sums of columns
            are right and the sums of rows are not.
        tolerance: steps end when no logarithm of a sum is wrong by more.
        noise ("gumbel", "gaussian" or "sum_of_gamma"): law of ε, independent for each part; None
            for no noise.
        scale: scale of the noise; only with noise.
        num_samples: with noise, the number K of matrices drawn per item.
        k: for "sum_of_gamma", the number of pairs of a typical alignment.
    """

    requires = frozenset()
    hard = False

    def __init__(
        self,
        temperature: float = 1.0,
        max_iter: int = 100,
        tolerance: float = 1e-4,
        noise: Noise | None = None,
        scale: float = 1.0,
        num_samples: int = 1,
        k: int = 10,
    ) -> None:
        check_positive(self.name, temperature=temperature, tolerance=tolerance)
        check_whole(self.name, max_iter=max_iter)
        check_noise(self.name, "gumbel" if noise is None else noise, scale, num_samples, k)
        if noise is None and num_samples != 1:
            raise LatentError(
                f"{self.name}: num_samples is {num_samples} without noise, so that all samples "
                "would be equal. Set noise, or num_samples = 1."
            )
        if noise is None and scale != 1.0:
            raise LatentError(
                f"{self.name}: scale, the scale of the noise, is {scale}, and noise is null. Set "
                "noise, or leave scale out."
            )
        self.temperature = temperature
        self.max_iter = max_iter
        self.tolerance = tolerance
        self.noise: Noise | None = noise
        self.scale = scale
        self.num_samples = num_samples
        self.k = k

    def check(self, structure: Structure) -> None:
        if not isinstance(structure, OneToOneAlignment):
            raise IncompatiblePair(
                self.name,
                structure.name,
                "it normalises rows and columns in turn, and only one-to-one alignments bound the "
                "sums of both",
                f"OneToOneAlignment with {self.name}, or Marginals or SparseMAP",
            )

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        self.check(structure)
        assert isinstance(structure, OneToOneAlignment)
        normalise = partial(
            structure.sinkhorn,
            temperature=self.temperature,
            max_iter=self.max_iter,
            tolerance=self.tolerance,
        )
        if self.noise is None or not is_train:
            return Draw.single(normalise(scores, lengths))
        noisy, _, sizes = repeat_with_noise(
            scores, lengths, self.noise, self.scale, self.num_samples, self.k
        )
        z = solve_copies(normalise, noisy, sizes, len(scores))
        return Draw.equal(z.view(self.num_samples, *scores.shape))
