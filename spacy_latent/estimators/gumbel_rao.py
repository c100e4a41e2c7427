"""Rao-Blackwellised straight-through Gumbel for independent choices (Paulus et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import MANY, check_positive, check_whole
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.factorised import Factorised, FactorisedEstimator, is_factorised
from spacy_latent.estimators.straight_through import with_gradient_of
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import repeat


class GumbelRao(FactorisedEstimator):
    """Straight-through from an exact sample z ~ p, with a Rao-Blackwellised gradient.

    Straight-through Gumbel-softmax has the gradient of μ((s + ε) / τ) for the noise ε that chose z.
    Here this gradient is averaged over ``num_redrawn`` draws of ε given z (Paulus, Maddison and
    Krause 2021). ε itself is constant in the gradient. The mean of the gradient is the same as with
    straight-through Gumbel-softmax, and its variance is no greater, whatever the loss. This permits
    a lower τ, which has less bias and more variance. At prediction z = MAP(s).

    For rows with one chosen part, the base method is ``RelaxedPerturbation`` with
    ``straight_through``. For bits, ε is logistic, the difference of two Gumbels. Words that may
    stay unaligned have noise for that choice, too, so that z is a sample of p.
    ``RelaxedPerturbation`` gives each part one Gumbel, and its z is then not a sample of p.

    The structure is OneOfN, IndependentHeads, ManyToOneAlignment or Bits without a budget. The
    composer gets ``num_samples`` structures, whatever ``num_redrawn`` is.

    Args:
        temperature: τ.
        num_redrawn: draws of the noise for each sample.
        num_samples: K, each of weight 1/K.
    """

    def __init__(
        self, temperature: float = 0.5, num_redrawn: int = 10, num_samples: int = 1
    ) -> None:
        super().__init__(num_samples)
        check_positive(self.name, temperature=temperature)
        check_whole(self.name, most=MANY, num_redrawn=num_redrawn)
        self.temperature = temperature
        self.num_redrawn = num_redrawn

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        self.check(structure)
        assert is_factorised(structure)
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        z = self.samples(structure, scores, lengths)
        soft = self.relaxed(structure, z, scores, lengths)
        return Draw.equal(with_gradient_of(soft, z))

    def relaxed(self, structure: Factorised, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean, ``(K, B, *parts)``, of relaxed samples whose best structure is ``z``."""
        count = self.num_redrawn * len(z)
        repeated, sizes = repeat(scores, count), repeat(lengths, count)
        chosen = repeat(z, self.num_redrawn).flatten(0, 1)
        with torch.no_grad():
            noisy = structure.redraw(chosen, repeated, sizes)
        safe = repeated.masked_fill(noisy.isneginf(), 0.0)
        # The value of the noisy scores, with the gradient of the scores without noise.
        moved = (noisy + (safe - safe.detach())).to(scores.dtype)
        soft = structure.marginals(moved / self.temperature, sizes)
        return soft.unflatten(0, (self.num_redrawn, *z.shape[:2])).mean(0)
