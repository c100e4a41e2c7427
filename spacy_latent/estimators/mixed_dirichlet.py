"""The mixed Dirichlet on the faces of the simplex (Farinhas et al. 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from spacy_latent.errors import check_one_of, check_positive
from spacy_latent.estimators.attention import Attention
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.kernels.core.gpu_transfers import send_together
from spacy_latent.structures.base import Structure
from spacy_latent.structures.one_of_n import OneOfN

# First and last node and step of the trapezoidal rule in log t. The tails are below rounding for c
# from 1 to the sum of 10,000 times 10,000.
NODES = (-60.0, 4.0, 0.25)


class MixedDirichlet(ScoreFunction):
    """Sparse weights of n items: a random face of the simplex, then a Dirichlet on it.

    A face is a nonempty set of items. Its probability is ∝ exp(Σ s over the set) (Farinhas et al.
    2022, section 4.2). The gradient for the face is the score function's; the gradient for the
    Dirichlet goes through the draw. The structure is OneOfN.

    Draws are made on the CPU, so they are the same for the same seed on every device.

    The best item is not the mean of the draws of training. With 10 items and standard normal
    scores, faces have 5 items on average. The best item then has a weight of 0.23 in their mean,
    and of 0.35 at three times these scores. A model that reads several items in training gets one
    at prediction, unless ``prediction`` is "mean".

    An EvidenceBound and an ``entropy_weight`` are invalid here: both use a softmax over items, and
    p is a distribution over faces.

    Args:
        concentration: factor of the Dirichlet's concentration, which is 1 + log(1 + e^s) times this
            for each item of the face.
        prediction ("map" or "mean"): use the best item, or the mean of all draws.
        num_samples, control_variate, normalize_advantage: as for ScoreFunction.
    """

    requires = frozenset({"map"})
    linear_only = True
    hard = False
    # Scores define a distribution over faces. Training does not use the softmax of the items, its
    # entropy, or its divergence from a prior over items.
    posterior = ""
    entropy_of_scores = False

    def __init__(
        self,
        concentration: float = 1.0,
        num_samples: int = 1,
        control_variate: ControlVariate | None = None,
        normalize_advantage: bool = False,
        prediction: Literal["map", "mean"] = "map",
    ) -> None:
        super().__init__(num_samples, control_variate, normalize_advantage)
        check_one_of(self.name, ("map", "mean"), prediction=prediction)
        check_positive(self.name, concentration=concentration)
        self.concentration = concentration
        self.prediction: Literal["map", "mean"] = prediction

    @property
    def hard_at_prediction(self) -> bool:
        return self.prediction == "map"

    def check(self, structure: Structure) -> None:
        Attention.check(self, structure)  # type: ignore[arg-type]

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        self.check(structure)
        assert isinstance(structure, OneOfN)
        # Refuses an item without any choice.
        best = structure.map(scores, lengths)
        if is_train and scores.shape[1]:
            return super().__call__(structure, scores, lengths, is_train)
        if self.prediction == "mean" and scores.shape[1]:
            own, given, sizes = structure.at_hand(scores, lengths)
            mean = self._mean(own, given.double(), sizes).to(scores.dtype)
            (best,) = send_together([mean], scores.device)
        return Draw.single(best)

    def drawn(self, structure: Structure, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        z, log_probs = self._drawn(*structure.at_hand(scores, lengths))
        sent = send_together([z.to(scores.dtype), log_probs.to(scores.dtype)], scores.device)
        return sent[0], sent[1]

    def _drawn(
        self, structure: Structure, scores: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return weights and the log-probabilities of their faces, for scores on the CPU."""
        count = self.num_samples
        safe, allowed = _allowed(structure, scores, lengths)
        some = allowed.any(1)
        with torch.no_grad():
            faces = _faces(safe, allowed, count)
        log_probs = (faces * safe).sum(2) - torch.where(some, _log_faces(safe, allowed), 0.0)
        shape = self.concentration * (1 + softplus(safe)).expand_as(faces)
        # A face as a product of Gammas, which leaves the other items out exactly.
        gammas = torch.distributions.Gamma(shape, torch.ones_like(shape)).rsample()
        gammas = gammas.clamp_min(1e-20) * faces
        return gammas / gammas.sum(2, keepdim=True).clamp_min(1e-20), log_probs

    @staticmethod
    def _mean(structure: OneOfN, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean of all draws, ``(B, N)``, for float64 scores on the CPU.

        The weight of an item is E[c / Σ c over its face], which does not depend on a factor of all
        c. With 1/x = ∫ exp(−tx) dt the sum over faces is a product: c e^s ∫ exp(−tc) Π (1 +
        e^s' exp(−tc')) dt over the other items. The integrand is analytic in log t, where the
        trapezoidal rule converges exponentially.
        """
        safe, allowed = _allowed(structure, scores, lengths)
        shapes = 1 + softplus(safe)
        nodes = torch.arange(*NODES, dtype=scores.dtype)
        decay = shapes[:, :, None] * nodes.exp()
        each = softplus(safe[:, :, None] - decay).masked_fill(~allowed[:, :, None], 0.0)
        others = each.sum(1, keepdim=True) - each
        integrals = (nodes - decay + others).logsumexp(2)
        weights = (shapes.log() + safe + integrals).masked_fill(~allowed, -torch.inf)
        return torch.where(allowed.any(1, keepdim=True), weights, 0.0).softmax(1) * allowed


def _allowed(structure: Structure, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores with 0 at padding and for forbidden items, and a mask of all others."""
    prepared, lengths = structure.masked(scores, lengths)
    allowed = structure.part_mask(prepared, lengths) & ~prepared.isneginf()
    return prepared.masked_fill(~allowed, 0.0), allowed


def _log_faces(scores: Tensor, allowed: Tensor) -> Tensor:
    """Return log(Π(1 + e^s) − 1), ``(B,)``, the log-partition of all nonempty sets."""
    whole = softplus(scores).masked_fill(~allowed, 0.0).sum(1)
    # If w is small: log expm1(w) = log w + w/2 + ..., with log w from logarithms of its terms.
    small = scores - scores.clamp_max(-15).exp() / 2
    each = torch.where(scores < -15, small, softplus(scores.clamp_min(-15)).log())
    small = each.masked_fill(~allowed, -1e30).logsumexp(1) + whole / 2
    large = whole.clamp_min(1e-3)
    return torch.where(whole < 1e-3, small, large + torch.log(-torch.expm1(-large)))


def _faces(scores: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Return exact samples of nonempty sets, ``(count, B, N)`` 0/1.

    The first item of a set is drawn first, then the later ones independently. The set is empty if
    no item is allowed.
    """
    p = torch.sigmoid(scores).masked_fill(~allowed, 0.0)
    skipped = logsigmoid(-scores).masked_fill(~allowed, 0.0)
    before = skipped.cumsum(1) - skipped
    first = before + logsigmoid(scores).masked_fill(~allowed, -torch.inf)
    some = allowed.any(1, keepdim=True)
    chances = torch.where(some, first, 0.0).softmax(1)
    begin = torch.multinomial(chances, count, replacement=True).t()
    place = torch.arange(scores.shape[1], device=scores.device)
    drawn = torch.rand(count, *scores.shape, device=scores.device, dtype=scores.dtype) < p
    later = place > begin[:, :, None]
    return ((drawn & later) | ((place == begin[:, :, None]) & some)).to(scores.dtype)
