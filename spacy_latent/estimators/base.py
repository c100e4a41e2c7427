"""The interface of estimators: scores of parts in, weighted structures out, gradients back."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.rewards import Reward
from spacy_latent.kernels.core.gpu_transfers import derived
from spacy_latent.stages import Staged
from spacy_latent.structures.base import Structure

if TYPE_CHECKING:
    from spacy.tokens import Doc

Criterion = Literal["expected_loss", "marginal_likelihood"]
CRITERIA = get_args(Criterion)
# A structure for each span of each doc, in the form of ``Structure.decode``. It is None if the
# structure depends on the scores.
Given = list[list["np.ndarray | None"]]
Self = TypeVar("Self", bound="Estimator")


@dataclass
class Draw:
    """K weighted structures per item, the one form that layers and losses read.

    Attributes:
        z: ``(K, B, *parts)``, hard 0/1 or soft. It carries the gradient of objectives L(E[z]).
        weights: ``(K, B)``, summing to 1 over K.
        log_probs: ``(K, B)``, log p(z) under the scores, or None if the estimator does not need it.
        padding: ``(K, B)`` bool, true for structures beyond the number that an item has. These have
            weight 0 and are not composed. None if every item has K structures.
        penalty: ``(B,)``, added to the objective of each item in training, or None.
        cost: ``(B,)``, or None. The sum over a batch, divided by the number of tokens of the batch,
            is added to its objective in training.
        extras: ``(E, B)``, further numbers of each item for :meth:`Estimator.objective`, or None.
            They are summed over the spans of a text, like ``log_probs``.
    """

    z: Tensor
    weights: Tensor
    log_probs: Tensor | None = None
    padding: Tensor | None = None
    penalty: Tensor | None = None
    cost: Tensor | None = None
    extras: Tensor | None = None

    @classmethod
    def single(cls, z: Tensor) -> Draw:
        """Return a draw of one structure for each item, ``(B, *parts)``, with all the weight."""
        return cls(z[None], z.new_ones((1, z.shape[0])))

    @classmethod
    def equal(cls, z: Tensor) -> Draw:
        """Return a draw of K structures for each item, ``(K, B, *parts)``, with equal weights."""
        return cls(z, z.new_full(z.shape[:2], 1.0 / len(z)))

    @property
    def present(self) -> Tensor:
        """A mask of the structures that are not padding, ``(K, B)`` bool."""
        if self.padding is None:
            return derived(lambda known: torch.ones_like(known, dtype=torch.bool), self.weights)
        return derived(torch.logical_not, self.padding)

    def mean(self) -> Tensor:
        """Return the mean structure Σ_k weight_k · z_k, ``(B, *parts)``."""
        if self.z.shape[0] == 1:
            return self.z[0]
        weights = self.weights.view(*self.weights.shape, *[1] * (self.z.dim() - 2))
        return (weights * self.z).sum(0)


def check_draw(name: str, draw: object, count: int) -> None:
    """Raise LatentError if the result of an estimator is not a :class:`Draw` of ``count`` items."""
    if not isinstance(draw, Draw):
        raise LatentError(
            f"{name} returned {type(draw).__name__}; expected a Draw. For one structure of each "
            "item, return Draw.single(z) with z of shape (B, *parts)."
        )
    shape = tuple(draw.z.shape[:2])
    wrong = {
        part: tuple(given.shape)
        for part in ("weights", "log_probs", "padding")
        if (given := getattr(draw, part)) is not None and given.shape != shape
    }
    if shape[1:] != (count,) or wrong:
        others = "".join(f", {part} {given}" for part, given in wrong.items())
        raise LatentError(
            f"{name} returned a Draw with z of shape {tuple(draw.z.shape)}{others}; expected z "
            f"(K, {count}, *parts) for K structures of each of the {count} items, and weights, "
            f"log_probs and padding (K, {count}) if they are given."
        )


def negative_log_mixture(losses: Tensor, weights: Tensor) -> Tensor:
    """Return −log Σ_k weight_k · e^(−loss_k) of each text, ``(D,)``.

    Structures without weight have no gradient.

    Args:
        losses: −log p(y | z) of each structure, ``(K, D)``.
        weights: p(z), ``(K, D)``, summing to 1 over K.
    """
    # The gradient for a weight has a factor 1 / weight, which overflows below the normal numbers.
    used = weights.detach() >= torch.finfo(weights.dtype).tiny
    log_weights = torch.where(used, weights, 1.0).log()
    return -torch.where(used, log_weights - losses, -torch.inf).logsumexp(0)


class Estimator(Staged, ABC):
    """Base class of estimators, which turn scores into a :class:`Draw`.

    An estimator has no state unless its class says so. ``stages`` are the estimators that training
    begins with: see :mod:`spacy_latent.estimators.sequence`.

    Attributes:
        requires: operations that the structure must have: "map", the best structure, or names in
            ``structure.tractable``.
        linear_only: whether the structure's ``map`` must maximise z·s (Structure.linear). False if
            the estimator needs only the operations of ``needed``, ``map``, ``top_k`` and
            ``log_potential``.
        needs_loss: whether the gradient needs the loss of each structure (:meth:`objective`). Only
            a component that owns its loss can give it; others refuse the estimator.
        solves: whether it calls SparseMAP, for the scores or for a point. SparseMAP reads only
            scores of parts. So the estimator refuses structures that also score something else,
            such as transitions between tags.
        has_support: whether it predicts the mean of SparseMAP's support. These few structures and
            their weights are then its alternatives.
        inner_steps: see ScoreFunction.
        clip: see ScoreFunction.
        reward: the reward, or None. With one, the component that owns its loss gives the rewards of
            all structures to :meth:`objective`, as its extras.
        uses_scores: whether the structures depend on the scores; False if all of them are given.
        posterior: the source of the structures' probabilities in the distribution that is trained.
            "weights" if the weights are these probabilities. "scores" if they are p(z) ∝ exp(z·s)
            and the structures are samples of it, or some structures and a sample of the rest. Empty
            if there is no such source, and no bound on evidence. A subclass that draws from another
            distribution has to set it: check_posterior of the contract kit compares the draws with
            it.
        criterion: "expected_loss" minimises Σ_z p(z)·L(z). "marginal_likelihood" minimises
            −log Σ_z p(z)·e^(−L(z)); the loss is then −log p(y | z), and the component must own it.
        entropy_of_scores: whether the entropy of p(z) ∝ exp(z·s) measures how certain the
            structures are. Only then may ``entropy_weight``, which multiplies it, be set.
        leaves_out_unlabelled: whether texts without labels are left out of :meth:`objective`. Their
            loss would be 0 for all structures, and would bias estimates from several texts, such as
            a running mean.
        hard: whether ``Draw.z`` is 0/1 in training. The default is False, so that composers which
            need 0/1 refuse a class that does not set it.
        hard_at_prediction: whether ``Draw.z`` is 0/1 if ``is_train`` is False.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"map"})
    linear_only: ClassVar[bool] = True
    needs_loss: ClassVar[bool] = False
    uses_scores: ClassVar[bool] = True
    has_support: ClassVar[bool] = False
    inner_steps: int = 1
    clip: float = 0.0
    reward: Reward | None = None
    end_setting: ClassVar[str] = "switch_at"
    posterior: Literal["", "weights", "scores"] = ""
    criterion: Criterion = "expected_loss"
    entropy_of_scores: ClassVar[bool] = True
    leaves_out_unlabelled: bool = False
    hard: ClassVar[bool] = False

    @property
    def shown(self) -> str:
        """The name with the settings that are numbers, words and switches."""
        plain = {
            key: value
            for key, value in sorted(vars(self).items())
            if not key.startswith("_") and key != "training"
            if isinstance(value, (int, float, str, bool, type(None)))
        }
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in plain.items())})"

    @property
    def hard_at_prediction(self) -> bool:
        """True if ``Draw.z`` is 0/1 at prediction; by default as in training."""
        return self.hard

    @property
    def solves(self) -> bool:
        """True if it calls SparseMAP, which reads only scores of parts."""
        return False

    def needed(self) -> frozenset[str]:
        """Return the operations needed under the present options; by default :attr:`requires`."""
        return self.requires

    def check(self, structure: Structure) -> None:
        """Raise IncompatiblePair if this estimator cannot work on ``structure``."""
        if self.linear_only and not structure.linear:
            raise IncompatiblePair(
                self.name,
                structure.name,
                "it needs scores of parts, and this structure has scores of decisions",
                "BestStraightThrough",
            )
        missing = structure.lacks(self.needed())
        if missing:
            raise IncompatiblePair(
                self.name,
                structure.name,
                f"it needs {', '.join(missing)}, which {structure.name} cannot compute exactly",
                "SparseMAP, Spigot, PerturbAndMap or StraightThrough with backward='identity', "
                "which need only the best structure"
                if structure.has_map
                else "SparseMAP with marginalize=false and prediction='sparsemap'",
            )

    def for_width(self: Self, width: int) -> Self:
        """Return a copy with fresh state, for input vectors of ``width`` features."""
        made = copy.deepcopy(self)
        made.reset(width)
        return made

    def reset(self, width: int) -> None:
        """Set weights and running numbers to their first values, for vectors of this width."""

    def given(
        self, structure: Structure, docs: Sequence[Doc], spans: Sequence[Sequence[tuple[int, ...]]]
    ) -> Given | None:
        """Return structures of these spans that do not depend on the scores.

        Args:
            spans: spans of each doc, (start, end) in tokens.

        Returns:
            Structures of the spans of each doc; None if all structures depend on the scores.
        """
        return None

    def objective(
        self,
        losses: Tensor,
        weights: Tensor,
        log_probs: Tensor,
        features: Tensor,
        extras: Tensor | None = None,
    ) -> Tensor:
        """Return the objective of each of D texts, ``(D,)``, from the loss of each structure.

        The default is :meth:`loss_of_text`.

        Args:
            losses: ``(K, D)``, with gradient.
            weights: ``(K, D)`` of the Draw, with gradient.
            log_probs: ``(K, D)`` of the Draw, with gradient; 0 if it has no log_probs.
            features: ``(D, width)``, the mean input vector of each text, without gradient.
            extras: ``(E, D)`` of the Draw, with gradient; None if E is 0. With a reward these are
                the rewards of the structures, ``(K, D)``, without gradient.
        """
        return self.loss_of_text(losses, weights)

    def loss_of_text(self, losses: Tensor, weights: Tensor) -> Tensor:
        """Return the loss of each text under the weights of its structures, ``(D,)``.

        It is the loss that components report, and depends on :attr:`criterion`.

        Args:
            losses: ``(K, D)``.
            weights: ``(K, D)``.
        """
        if self.criterion == "marginal_likelihood":
            return negative_log_mixture(losses, weights)
        return (weights * losses).sum(0)

    @abstractmethod
    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        """Return weighted structures for a batch of scores.

        Args:
            scores: ``(B, *parts)``.
            is_train: whether to draw noise; without it, the result is deterministic.
        """
