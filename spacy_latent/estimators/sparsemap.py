"""SparseMAP, a differentiable sparse average of a few structures (Niculae et al. 2018a)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spacy_latent.errors import (
    LatentError,
    check_flags,
    check_one_of,
    check_positive,
    check_whole,
)
from spacy_latent.estimators.base import CRITERIA, Criterion, Draw, Estimator
from spacy_latent.kernels.core.gpu_transfers import derived
from spacy_latent.structures.base import Structure


class SparseMAP(Estimator):
    """The optimum z = argmax over the marginal polytope of μ·s − ½‖μ‖² (Niculae et al. 2018a).

    It is exact, forward and backward, and needs a MAP oracle alone. If structures tie, for example
    with equal words, the gradient includes all of them. At a kink it is one of the adjacent
    gradients.

    Args:
        marginalize: give the K structures of the support with their differentiable weights in place
            of their mean, for losses E[L(z)] (Niculae et al. 2018b; Correia et al. 2020). The mean
            is unique, but other structures with other weights may have the same mean and another
            E[L(z)]. The active set finds one of them. The gradient includes its support alone,
            since the losses of structures without weight are unknown.
        prediction ("sparsemap" or "map"): the structure that composes the vectors outside of
            training.
        max_iter: bound on the number of calls of the MAP oracle per item. An item that reaches it
            uses the optimum over the structures found until then.
        tolerance: bound on the distance of the mean from the optimum.
        criterion ("expected_loss" or "marginal_likelihood"): with ``marginalize``, minimise the
            expected loss, or −log Σ p(z)·p(y | z) over the support. For one exclusive label the
            latter is the loss of the mean of the probabilities, which is also predicted. It needs a
            component that owns its loss, and has no EvidenceBound.
    """

    has_support = True
    solves = True

    def __init__(
        self,
        marginalize: bool = False,
        prediction: Literal["sparsemap", "map"] = "sparsemap",
        max_iter: int = 200,
        tolerance: float = 1e-6,
        criterion: Criterion = "expected_loss",
    ) -> None:
        check_one_of(self.name, ("sparsemap", "map"), prediction=prediction)
        check_one_of(self.name, CRITERIA, criterion=criterion)
        check_whole(self.name, max_iter=max_iter)
        check_positive(self.name, tolerance=tolerance)
        check_flags(self.name, marginalize=marginalize)
        if criterion == "marginal_likelihood" and not marginalize:
            raise LatentError(
                "SparseMAP: criterion is 'marginal_likelihood', which is a sum over structures. "
                'Set marginalize = true, or criterion = "expected_loss".'
            )
        self.criterion = criterion
        self.marginalize = marginalize
        self.prediction = prediction
        self.max_iter = max_iter
        self.tolerance = tolerance

    @property
    def posterior(self) -> Literal["", "weights"]:  # type: ignore[override]
        # A bound is of an expected loss.
        return "weights" if self.marginalize and self.criterion == "expected_loss" else ""

    @property
    def needs_loss(self) -> bool:  # type: ignore[override]
        return self.criterion == "marginal_likelihood"

    @property
    def hard(self) -> bool:  # type: ignore[override]
        return self.marginalize

    @property
    def hard_at_prediction(self) -> bool:
        return self.prediction == "map" or self.marginalize

    def needed(self) -> frozenset[str]:
        hard = self.marginalize or self.prediction == "map"
        return frozenset({"map"}) if hard else frozenset()

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        if not is_train and self.prediction == "map":
            return Draw.single(structure.map(scores, lengths))
        solution = structure.sparsemap(scores, lengths, self.max_iter, self.tolerance)
        if self.marginalize:
            # Padding repeats the first atom, since some composers need a valid tree there, too.
            atoms, weights = solution.atoms, solution.weights
            padding = derived(lambda known: known.detach() == 0, weights)
            unused = padding.view(*padding.shape, *[1] * structure.part_axes)
            return Draw(torch.where(unused, atoms[:1], atoms), weights, padding=padding)
        return Draw.single(solution.mean)
