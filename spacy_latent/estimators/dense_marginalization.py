"""The sum of the loss over all structures, for sets of few structures."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from spacy_latent.errors import LatentError, check_one_of, check_whole
from spacy_latent.estimators.base import CRITERIA, Criterion, Draw, Estimator
from spacy_latent.structures.base import Structure

Prediction = Literal["map", "marginal"]
PREDICTIONS = get_args(Prediction)


class DenseMarginalization(Estimator):
    """The exact expected loss Σ_z p(z)·L(z) over every structure, differentiated as it stands.

    Args:
        max_structures: largest valid number of structures. An item with more raises an error.
        prediction ("map" or "marginal"): use the best structure, or all with their probabilities,
            outside of training.
        criterion ("expected_loss" or "marginal_likelihood"): minimise the expected loss, or
            −log Σ p(z)·p(y | z) over all structures. For one exclusive label the latter is the loss
            of the mean of the probabilities, which ``prediction = "marginal"`` predicts. It needs a
            component that owns its loss, and has no EvidenceBound.
    """

    requires = frozenset({"log_partition"})
    needs_loss = True
    hard = True

    def __init__(
        self,
        max_structures: int = 64,
        prediction: Prediction = "map",
        criterion: Criterion = "expected_loss",
    ) -> None:
        check_whole(self.name, max_structures=max_structures)
        check_one_of(self.name, PREDICTIONS, prediction=prediction)
        check_one_of(self.name, CRITERIA, criterion=criterion)
        self.max_structures = max_structures
        self.prediction: Prediction = prediction
        self.criterion = criterion

    @property
    def posterior(self) -> Literal["", "weights"]:  # type: ignore[override]
        # A bound is of an expected loss.
        return "weights" if self.criterion == "expected_loss" else ""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train and self.prediction == "map":
            return Draw.single(structure.map(scores, lengths))
        count = structure.log_count(scores, lengths)
        many = count > torch.tensor(self.max_structures + 0.5, device="cpu").log()
        if bool(many.any()):
            item = int(many.nonzero()[0])
            raise LatentError(
                f"DenseMarginalization: item {item} has about {float(count[item].exp()):.3g} "
                f"structures and max_structures is {self.max_structures}. Use SparseMAP with "
                "marginalize=true, TopKSparsemax or SumAndSample, or raise max_structures."
            )
        # Memory is taken for as many as are asked for. The logarithm of a count is rounded.
        largest = float(count.double().exp().amax()) if len(count) else 1.0
        most = math.ceil(min(1.1 * largest + 1, self.max_structures))
        z, known = best_structures(structure, scores, lengths, most)
        # Masked before the exponential, which may overflow in padding and give a gradient of NaN.
        log_probs = torch.where(known, structure.log_prob(z, scores, lengths), -torch.inf)
        return Draw(z, log_probs.exp(), padding=~known)


def best_structures(
    structure: Structure, scores: Tensor, lengths: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return the k best structures ``(K, B, *parts)``, and a mask of the existing ones, ``(K, B)``.

    K ≤ k is the largest number that an item needs.
    """
    best = structure.top_k(scores.detach(), lengths, k)
    known = ~best.scores.isneginf()
    count = max(1, int(known.sum(0).amax())) if known.numel() else 1
    return best.z[:count], known[:count]
