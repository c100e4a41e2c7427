"""The base class of estimators for independent choices, and the structures made of these."""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor

from spacy_latent.errors import MANY, IncompatiblePair, check_whole
from spacy_latent.estimators.base import Estimator
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.row_choices import RowChoices

# A choice of one of some parts, or several that do not depend on each other.
Factorised = OneOfN | RowChoices | Bits


def is_factorised(structure: Structure) -> TypeGuard[Factorised]:
    """Return whether the parts are independent choices, as bits without a budget are."""
    if isinstance(structure, Bits):
        return structure.budget is None
    return isinstance(structure, (OneOfN, RowChoices))


def over_choices(structure: Factorised, values: Tensor) -> Tensor:
    """Return the sums of values over the parts of each choice, in a shape that broadcasts to parts.

    A bit is a choice of its one part or none.

    Args:
        values: ``(..., *parts)``.
    """
    if isinstance(structure, Bits):
        return values
    axis = values.dim() - structure.part_axes + structure.choice_axis
    return values.sum(axis, keepdim=True)


class FactorisedEstimator(Estimator):
    """Base class of estimators that sample independent choices.

    In a bound on evidence, the value is an unbiased estimate, and the KL and its gradient are
    exact. The gradient of the reconstruction for the scores is biased, as for other losses.

    Args:
        num_samples: K, each of weight 1/K.
    """

    requires = frozenset({"map", "marginals", "sample"})
    hard = True
    posterior = "scores"

    def __init__(self, num_samples: int = 1) -> None:
        check_whole(self.name, most=MANY, num_samples=num_samples)
        self.num_samples = num_samples

    def check(self, structure: Structure) -> None:
        if not is_factorised(structure):
            raise IncompatiblePair(
                self.name,
                structure.name,
                "it needs a structure of independent choices: OneOfN, IndependentHeads, "
                "ManyToOneAlignment, or Bits without a budget",
                "SampledStraightThrough, for any structure with samples and marginals",
            )
        super().check(structure)

    def samples(self, structure: Factorised, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return K samples ``(K, B, *parts)``, 0/1, without a gradient."""
        return structure.sample(scores.detach(), lengths, self.num_samples)
