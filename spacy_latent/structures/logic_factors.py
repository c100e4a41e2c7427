"""Logic factors: constraints on a few 0/1 parts of a factor graph (Martins et al. 2015).

``negated`` holds those of a factor's parts that enter it as 1 − value. Forbidden parts, of score
−inf, are 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from spacy_latent.errors import LatentError

# The numbers of spacy_latent.kernels.logic, which is not imported with this module: it compiles.
AT_MOST, EXACTLY, OR_OUT = 0, 1, 2


@dataclass(frozen=True)
class Encoded:
    """A factor as the kernel reads it: ``flips`` says which of ``parts`` are negated."""

    kind: int
    limit: float
    parts: list[int]
    flips: list[bool]

    def holds(self, chosen: np.ndarray) -> bool:
        """Whether 0/1 parts ``(P,)``, by their numbers in the graph, satisfy the factor."""
        values = np.asarray(chosen, dtype=bool)[self.parts] ^ np.asarray(self.flips, dtype=bool)
        if self.kind == OR_OUT:
            return bool(values[-1] == values[:-1].any())
        count = values.sum()
        return bool(count <= self.limit if self.kind == AT_MOST else count == self.limit)


class LogicFactor(ABC):
    """A set of 0/1 vectors over some parts, given by their numbers in the graph."""

    @abstractmethod
    def encode(self) -> Encoded: ...

    def _encode(
        self, kind: int, limit: float, parts: Sequence[int], negated: Collection[int]
    ) -> Encoded:
        name = type(self).__name__
        numbers = [int(part) for part in parts]
        if len(set(numbers)) < len(numbers) or any(part < 0 for part in numbers):
            raise LatentError(f"{name}: parts {numbers} repeat or are negative; name each once.")
        strangers = sorted(set(negated) - set(numbers))
        if strangers:
            raise LatentError(f"{name}: negated parts {strangers} are not among {numbers}.")
        return Encoded(kind, limit, numbers, [part in set(negated) for part in numbers])


@dataclass(frozen=True)
class Budget(LogicFactor):
    """At most ``limit`` of the parts."""

    parts: Sequence[int]
    limit: int
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        if self.limit < 0:
            raise LatentError(f"Budget: limit is {self.limit}; expected at least 0.")
        return self._encode(AT_MOST, self.limit, self.parts, self.negated)


@dataclass(frozen=True)
class AtMostOne(LogicFactor):
    """At most one of the parts."""

    parts: Sequence[int]
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        return self._encode(AT_MOST, 1, self.parts, self.negated)


@dataclass(frozen=True)
class Xor(LogicFactor):
    """Exactly one of the parts. With one of them negated, say o, it says that o is the
    exclusive or of the others, of which at most one may hold."""

    parts: Sequence[int]
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        return self._encode(EXACTLY, 1, self.parts, self.negated)


@dataclass(frozen=True)
class Or(LogicFactor):
    """At least one of the parts."""

    parts: Sequence[int]
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        # At most n − 1 of their negations.
        opposite = [part for part in self.parts if part not in set(self.negated)]
        self._encode(AT_MOST, 0, self.parts, self.negated)
        return self._encode(AT_MOST, len(self.parts) - 1, self.parts, opposite)


@dataclass(frozen=True)
class OrOut(LogicFactor):
    """``output`` holds where, and only where, at least one of ``parts`` holds. With all of them
    negated, the output too, it is the logical and."""

    parts: Sequence[int]
    output: int
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        return self._encode(OR_OUT, 0, [*self.parts, self.output], self.negated)


@dataclass(frozen=True)
class Implication(LogicFactor):
    """If all of ``premises`` hold, so does ``conclusion``."""

    premises: Sequence[int]
    conclusion: int
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        flipped = [part for part in self.premises if part not in set(self.negated)]
        if self.conclusion in self.negated:
            flipped.append(self.conclusion)
        parts = [*self.premises, self.conclusion]
        self._encode(AT_MOST, 0, parts, self.negated)
        return Or(parts, flipped).encode()
