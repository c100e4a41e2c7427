"""The contract of an estimator: scores of parts in, weighted structures out, gradients back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spacy_latent.errors import IncompatiblePair
from spacy_latent.structures.base import Structure


@dataclass
class Draw:
    """K weighted structures per item: the one shape that layers and losses see.

    z: ``(K, B, *parts)``, hard 0/1 or soft; carries the gradient of L(E[z]) objectives.
    weights: ``(K, B)``, summing to 1 over K.
    log_probs: ``(K, B)``, log p(z) under the scores, or None where no estimator needs it.
    padding: ``(K, B)`` bool, where an item has fewer than K structures: what z holds there has
        weight 0 and is not composed. None where every item has K.
    """

    z: Tensor
    weights: Tensor
    log_probs: Tensor | None = None
    padding: Tensor | None = None

    def mean(self) -> Tensor:
        """Σ_k weight_k · z_k, ``(B, *parts)``."""
        if self.z.shape[0] == 1:
            return self.z[0]
        weights = self.weights.view(*self.weights.shape, *[1] * (self.z.dim() - 2))
        return (weights * self.z).sum(0)


class Estimator(ABC):
    """Turns scores into a :class:`Draw`. Stateless unless it says so.

    requires: operations that must be in ``structure.tractable``.
    linear_only: whether it needs a structure whose ``map`` maximises z·s (Structure.linear); False
        if it asks for no more than what ``needed`` names, ``map``, ``top_k`` and ``log_potential``.
    hard: whether ``Draw.z`` is 0/1 in training.
    hard_at_prediction: whether it is 0/1 when ``is_train`` is False.
    """

    requires: ClassVar[frozenset[str]] = frozenset()
    linear_only: ClassVar[bool] = True
    hard: ClassVar[bool]

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def hard_at_prediction(self) -> bool:
        return self.hard

    def needed(self) -> frozenset[str]:
        """Operations needed under the present options; by default :attr:`requires`."""
        return self.requires

    def check(self, structure: Structure) -> None:
        """Raise IncompatiblePair if this estimator cannot work on ``structure``."""
        if self.linear_only and not structure.linear:
            raise IncompatiblePair(
                self.name,
                structure.name,
                "it takes scores for those of parts, and these are of decisions",
                "BestStraightThrough",
            )
        missing = sorted(self.needed() - structure.tractable)
        if missing:
            raise IncompatiblePair(
                self.name,
                structure.name,
                f"it needs {', '.join(missing)}, which {structure.name} cannot compute exactly",
                "SparseMAP, Spigot, PerturbAndMap or StraightThrough with backward='identity', "
                "which need only the best structure",
            )

    @abstractmethod
    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        """Weighted structures for ``scores`` (B, *parts). Without ``is_train`` there is no noise
        and the result is deterministic."""
