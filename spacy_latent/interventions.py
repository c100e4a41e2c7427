"""What is asked of structures beside what the scores say: counterfactuals.

An :class:`Intervention` forbids parts, forces parts, or moves the temperature. It holds for what is
predicted within :func:`intervening`, in the same thread, and for nothing else: models look for it
when they predict, hand it on as an argument to the layer that scores, and keep nothing of it. To
name components instead of models, see :mod:`spacy_latent.pipeline.counterfactuals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from thinc.api import Model

Part = tuple[int, ...]
# The first token of a span, in the doc, and a part of its structure as
# spacy_latent.annotations.SpanStructure.parts has it.
Place = tuple[int, Part]


@dataclass(frozen=True)
class Intervention:
    """What is asked of the structures of one text.

    forbidden: parts that no structure may have. forced: parts that each must have.
    temperature: scores are divided by it, beside the temperature of the model.
    """

    forbidden: tuple[Place, ...] = ()
    forced: tuple[Place, ...] = ()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise LatentError(
                f"temperature is {self.temperature}; expected a finite number above 0, and 1 for "
                "that of the model."
            )

    def __bool__(self) -> bool:
        return bool(self.forbidden or self.forced or self.temperature != 1.0)


_PRESENT: ContextVar[Mapping[int, Intervention]] = ContextVar("spacy_latent_interventions")


@contextmanager
def intervening(interventions: Mapping[int, Intervention]) -> Iterator[None]:
    """While it lasts, Thinc models of these ids predict so, in this thread. What was asked for
    around it does not hold meanwhile."""
    token = _PRESENT.set({key: one for key, one in interventions.items() if one})
    try:
        yield
    finally:
        _PRESENT.reset(token)


def intervention_on(model: Model) -> Intervention | None:
    """What is asked of a Thinc model; None for nothing."""
    return _PRESENT.get({}).get(model.id)


__all__ = ["Intervention", "intervening", "intervention_on"]
