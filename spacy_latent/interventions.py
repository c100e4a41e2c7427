"""Counterfactuals: conditions on structures in addition to their scores.

An :class:`Intervention` forbids parts, forces parts, or divides the scores by a temperature. It
holds only for predictions within :func:`intervening`, in the same thread. Models read it when they
predict and hand it on as an argument to the layer that scores. They store nothing of it. To name
components instead of models, see :mod:`spacy_latent.evaluation.counterfactuals`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from thinc.api import Model

Part = tuple[int, ...]
# The first token of a span, in the doc, and a part of its structure as
# spacy_latent.annotations.SpanStructure.parts has it.
Place = tuple[int, Part]


@dataclass(frozen=True)
class Intervention:
    """A condition on the structures of one text.

    Attributes:
        forbidden: parts that no structure may have.
        forced: parts that each structure must have.
        temperature: divisor of the scores, in addition to the temperature of the model.

    Raises:
        LatentError: A place or the temperature is invalid.
    """

    forbidden: tuple[Place, ...] = ()
    forced: tuple[Place, ...] = ()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("forbidden", "forced"):
            object.__setattr__(self, name, _as_places(name, getattr(self, name)))
        known = isinstance(self.temperature, Real)
        if not known or not 0 < self.temperature < math.inf:
            raise LatentError(
                f"temperature is {self.temperature!r}; expected a finite number above 0, and 1 for "
                "that of the model."
            )

    def __bool__(self) -> bool:
        return bool(self.forbidden or self.forced or self.temperature != 1.0)


def _as_places(name: str, asked: Any) -> tuple[Place, ...]:
    try:
        return tuple((_whole(start), tuple(map(_whole, part))) for start, part in asked)
    except (TypeError, ValueError):
        raise LatentError(
            f"{name} is {asked!r}; expected places, each of the first token of a span in the doc "
            "and a part of its structure: ((0, (3, 1)),) for the arc from word 3 to word 1 of the "
            "span that begins at token 0."
        ) from None


def _whole(number: Any) -> int:
    if isinstance(number, bool):
        raise TypeError
    return operator.index(number)


_PRESENT: ContextVar[Mapping[int, Intervention]] = ContextVar("spacy_latent_interventions")


@contextmanager
def intervening(interventions: Mapping[int, Intervention]) -> Iterator[None]:
    """Set the interventions of Thinc models, by their ids, in this thread for a ``with`` block.

    Interventions set outside of the block do not hold within it.
    """
    token = _PRESENT.set({key: one for key, one in interventions.items() if one})
    try:
        yield
    finally:
        _PRESENT.reset(token)


def intervention_on(model: Model) -> Intervention | None:
    """Return the condition that holds for a Thinc model, or None."""
    return _PRESENT.get({}).get(model.id)
