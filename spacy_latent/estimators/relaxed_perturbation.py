"""Relaxed samples, the Gumbel-softmax for any structure.

See Jang et al. (2017), Maddison et al. (2017), and Corro and Titov (2019).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from spacy_latent.errors import LatentError, check_flags
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.noise import Noise, check_noise, repeat_with_noise
from spacy_latent.estimators.straight_through import with_gradient_of
from spacy_latent.estimators.target_difference import check_positive
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies


class RelaxedPerturbation(Estimator):
    """Relaxed samples z = μ((s + ε) / τ) with μ the marginals or SparseMAP.

    For one of n items and Gumbel noise this is the Gumbel-softmax. K = num_samples, each of weight
    1/K. Prediction has no noise.

    Args:
        relaxation ("marginals" or "sparsemap"): μ. With "sparsemap", Gaussian noise and OneOfN,
            KOfN or Bits, it is the Gaussian-sparsemax of Farinhas et al. (2022): the intrinsic one
            on the simplex, and its analogue on the capped simplex and the cube.
        temperature: τ.
        straight_through: the value is the best structure under the same noise, 0/1; only the
            gradient goes through μ.
        noise, scale, num_samples, k: as for
            :class:`~spacy_latent.estimators.perturb_and_map.PerturbAndMap`.
    """

    def __init__(
        self,
        relaxation: Literal["marginals", "sparsemap"] = "marginals",
        temperature: float = 1.0,
        straight_through: bool = False,
        noise: Noise = "gumbel",
        scale: float = 1.0,
        num_samples: int = 1,
        k: int = 10,
    ) -> None:
        if relaxation not in ("marginals", "sparsemap"):
            raise LatentError(
                f"{self.name}: relaxation is {relaxation!r}; expected 'marginals' or 'sparsemap'."
            )
        check_positive(self.name, temperature=temperature)
        check_noise(self.name, noise, scale, num_samples, k)
        check_flags(self.name, straight_through=straight_through)
        self.relaxation = relaxation
        self.temperature = temperature
        self.straight_through = straight_through
        self.noise: Noise = noise
        self.scale = scale
        self.num_samples = num_samples
        self.k = k

    @property
    def solves(self) -> bool:
        return self.relaxation == "sparsemap"

    @property
    def hard(self) -> bool:  # type: ignore[override]
        return self.straight_through

    def needed(self) -> frozenset[str]:
        soft = {"marginals"} if self.relaxation == "marginals" else set()
        return frozenset(soft | {"map"} if self.straight_through else soft)

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        batch, count = scores.shape[0], self.num_samples if is_train else 1
        given = scores
        if is_train:
            given, _, lengths = repeat_with_noise(
                scores, lengths, self.noise, self.scale, count, self.k
            )
        z = solve_copies(structure.map, given, lengths, batch) if self.straight_through else None
        if z is None or is_train:
            cool = given / self.temperature
            if self.relaxation == "marginals":
                soft = solve_copies(structure.marginals, cool, lengths, batch)
            else:
                soft = solve_copies(structure.sparsemap, cool, lengths, batch).mean
            z = soft if z is None else with_gradient_of(soft, z)
        return Draw.equal(z.view(count, *scores.shape))
