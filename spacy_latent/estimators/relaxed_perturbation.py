"""Relaxed samples, the Gumbel-softmax for any structure.

See Jang et al. (2017), Maddison et al. (2017), Corro and Titov (2019), and, for smoothed dynamic
programs, Stanojević and Sartran (2023).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from torch import Tensor

from spacy_latent.errors import IncompatiblePair, check_flags, check_one_of, check_positive
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.noise import Noise, check_noise, repeat_with_noise
from spacy_latent.estimators.straight_through import with_gradient_of
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies
from spacy_latent.structures.smoothed import smoothed_expectation

Relaxation = Literal["marginals", "sparsemap", "smoothed"]


class RelaxedPerturbation(Estimator):
    """Relaxed samples z = μ((s + ε) / τ) with μ the marginals, SparseMAP or a smoothed recursion.

    For one of n items and Gumbel noise this is the Gumbel-softmax. K = num_samples, each of weight
    1/K. Prediction has no noise.

    Args:
        relaxation ("marginals", "sparsemap" or "smoothed"): μ. With "sparsemap", Gaussian noise
            and OneOfN, KOfN or Bits, it is the Gaussian-sparsemax of Farinhas et al. (2022): the
            intrinsic one on the simplex, and its analogue on the capped simplex and the cube. With
            "smoothed" it is the expected structure of the quadratically smoothed recursion, as in
            :class:`~spacy_latent.estimators.smoothed_dp.SmoothedDP` with γ = τ: the
            perturb-and-sparsemax-DP of SynJax. Chains, segments, Runs and MonotoneAlignment have
            it. The entropic recursion gives the marginals.
        temperature: τ.
        straight_through: the value is the best structure under the same noise, 0/1; only the
            gradient goes through μ.
        noise, scale, num_samples, k: as for
            :class:`~spacy_latent.estimators.perturb_and_map.PerturbAndMap`.
    """

    def __init__(
        self,
        relaxation: Relaxation = "marginals",
        temperature: float = 1.0,
        straight_through: bool = False,
        noise: Noise = "gumbel",
        scale: float = 1.0,
        num_samples: int = 1,
        k: int = 10,
    ) -> None:
        check_one_of(self.name, get_args(Relaxation), relaxation=relaxation)
        check_positive(self.name, temperature=temperature)
        check_noise(self.name, noise, scale, num_samples, k)
        check_flags(self.name, straight_through=straight_through)
        self.relaxation: Relaxation = relaxation
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
        soft = frozenset[str]({self.relaxation} - {"sparsemap"})
        return soft | {"map"} if self.straight_through else soft

    def check(self, structure: Structure) -> None:
        if self.relaxation == "smoothed" and structure.lacks(frozenset({"smoothed"})):
            raise IncompatiblePair(
                f"{self.name} with relaxation='smoothed'",
                structure.name,
                f"{structure.name} has no smoothed recursion, unlike chains, segments, Runs and "
                "MonotoneAlignment",
                f"{self.name} with relaxation='sparsemap'",
            )
        super().check(structure)

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
            soft = solve_copies(
                partial(self.relaxed, structure), given / self.temperature, lengths, batch
            )
            z = soft if z is None else with_gradient_of(soft, z)
        return Draw.equal(z.view(count, *scores.shape))

    def relaxed(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return μ(scores), ``(B, *parts)``."""
        if self.relaxation == "marginals":
            return structure.marginals(scores, lengths)
        if self.relaxation == "sparsemap":
            return structure.sparsemap(scores, lengths).mean
        return smoothed_expectation(structure, scores, lengths, "quadratic")
