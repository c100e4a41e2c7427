"""The mixed Dirichlet on the faces of the simplex (Farinhas et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from spacy_latent.errors import LatentError
from spacy_latent.estimators.attention import Attention
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.kernels.transfers import send_together
from spacy_latent.structures.base import Structure
from spacy_latent.structures.one_of_n import OneOfN


class MixedDirichlet(ScoreFunction):
    """Sparse weights of n items: a face of the simplex, that is a set of items that is not empty,
    with probability ∝ exp(Σ s over the set), then a Dirichlet on it (Farinhas et al. 2022, section
    4.2). The gradient for the face is that of the score function, that for the Dirichlet goes
    through the draw. The structure is OneOfN; at prediction its best item.

    Draws are made on the CPU, so that they are the same for the same seed wherever scores are.

    Prediction is thus not the mean of what training draws: of 10 items with standard normal scores,
    faces have 5 items on average, and the best item a weight of 0.24 in their mean, 0.35 at three
    times these scores. A model that reads several items in training sees one at prediction.

    Since p is one of faces, an EvidenceBound and an ``entropy_weight``, which are of a softmax over
    items, are refused.

    concentration: the Dirichlet's is this times 1 + log(1 + e^s) for each item of the face.
    num_samples, control_variate, normalize_advantage: as for ScoreFunction.
    """

    requires = frozenset({"map"})
    linear_only = True
    hard = False
    # The scores are those of faces: neither the softmax of the items nor its entropy is what is
    # trained, and the divergence from a prior over items would be that of another distribution.
    posterior = ""
    entropy_of_scores = False

    def __init__(
        self,
        concentration: float = 1.0,
        num_samples: int = 1,
        control_variate: ControlVariate | None = None,
        normalize_advantage: bool = False,
    ) -> None:
        super().__init__(num_samples, control_variate, normalize_advantage)
        if not concentration > 0:
            raise LatentError(
                f"MixedDirichlet: concentration is {concentration}; expected a positive number."
            )
        self.concentration = concentration

    @property
    def hard_at_prediction(self) -> bool:
        return True

    def check(self, structure: Structure) -> None:
        Attention.check(self, structure)  # type: ignore[arg-type]

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        assert isinstance(structure, OneOfN)
        batch, count = scores.shape[0], self.num_samples
        best = structure.map(scores, lengths)[None]
        if not is_train or not scores.shape[1]:
            return Draw(best, scores.new_ones((1, batch)))
        z, log_probs = self._drawn(*structure.at_hand(scores, lengths))
        z, log_probs = send_together([z.to(scores.dtype), log_probs], scores.device)
        weights = scores.new_full((count, batch), 1.0 / count)
        if self.control_variate is not None and self.control_variate.greedy:
            nothing = log_probs.new_zeros((1, batch))
            z, weights = torch.cat([z, best]), torch.cat([weights, nothing.to(weights)])
            log_probs = torch.cat([log_probs, nothing])
        return Draw(z, weights, log_probs.to(scores.dtype))

    def _drawn(self, structure: OneOfN, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Weights ``(num_samples, B, N)`` and the logarithms of the probabilities of their faces,
        of scores on the CPU."""
        count = self.num_samples
        prepared, lengths = structure.masked(scores, lengths)
        inside = structure.part_mask(prepared, lengths)
        allowed = inside & ~prepared.isneginf()
        some = allowed.any(1)
        safe = prepared.masked_fill(~allowed, 0.0)
        with torch.no_grad():
            faces = _faces(safe, allowed, count)
        log_probs = (faces * safe).sum(2) - torch.where(some, _log_faces(safe, allowed), 0.0)
        shape = self.concentration * (1 + softplus(safe)).expand_as(faces)
        # A face as a product of Gammas, which leaves the other items out exactly.
        gammas = torch.distributions.Gamma(shape, torch.ones_like(shape)).rsample()
        gammas = gammas.clamp_min(1e-20) * faces
        return gammas / gammas.sum(2, keepdim=True).clamp_min(1e-20), log_probs


def _log_faces(scores: Tensor, allowed: Tensor) -> Tensor:
    """log(Π(1 + e^s) − 1), ``(B,)``: of all sets but the empty one."""
    whole = softplus(scores).masked_fill(~allowed, 0.0).sum(1)
    # Where it is small, its logarithm from those of softplus, and expm1(w) = w·(1 + w/2 + ...).
    each = torch.where(scores < -15, scores, softplus(scores.clamp_min(-15)).log())
    small = each.masked_fill(~allowed, -1e30).logsumexp(1) + whole / 2
    large = whole.clamp_min(1e-3)
    return torch.where(whole < 1e-3, small, large + torch.log(-torch.expm1(-large)))


def _faces(scores: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Exact samples of sets that are not empty, ``(count, B, N)`` 0/1: which of the items is the
    first, then the later ones independently. Empty where nothing is allowed."""
    p = torch.sigmoid(scores).masked_fill(~allowed, 0.0)
    before = torch.nn.functional.logsigmoid(-scores).masked_fill(~allowed, 0.0).cumsum(1)
    before = before - torch.nn.functional.logsigmoid(-scores).masked_fill(~allowed, 0.0)
    first = before + torch.nn.functional.logsigmoid(scores).masked_fill(~allowed, -torch.inf)
    some = allowed.any(1, keepdim=True)
    chances = torch.where(some, first, 0.0).softmax(1)
    begin = torch.multinomial(chances, count, replacement=True).t()
    place = torch.arange(scores.shape[1], device=scores.device)
    drawn = torch.rand(count, *scores.shape, device=scores.device, dtype=scores.dtype) < p
    later = place > begin[:, :, None]
    return ((drawn & later) | ((place == begin[:, :, None]) & some)).to(scores.dtype)
