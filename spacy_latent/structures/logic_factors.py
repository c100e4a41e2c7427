"""Logic factors: constraints on a few 0/1 parts of a factor graph (Martins et al. 2015).

``negated`` holds those parts of a factor that enter it as 1 − value. Forbidden parts, of score
−inf, are 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spacy_latent.errors import LatentError, check_whole

# The numbers of spacy_latent.kernels.sparsemap.logic_factors, which is not imported with this
# module: it compiles.
AT_MOST, EXACTLY, OR_OUT = 0, 1, 2


@dataclass(frozen=True)
class Encoded:
    """Factor as the kernel reads it: ``flips`` is a mask of the ``parts`` that are negated."""

    kind: int
    limit: float
    parts: list[int]
    flips: list[bool]

    def holds(self, chosen: np.ndarray) -> bool:
        """Return whether 0/1 parts ``(P,)``, by their numbers in the graph, satisfy the factor."""
        values = np.asarray(chosen, dtype=bool)[self.parts] ^ np.asarray(self.flips, dtype=bool)
        if self.kind == OR_OUT:
            return bool(values[-1] == values[:-1].any())
        count = values.sum()
        return bool(count <= self.limit if self.kind == AT_MOST else count == self.limit)

    def best(self, scores: np.ndarray) -> np.ndarray | None:
        """Return the values, bool, of the factor's parts with the highest total score.

        ``scores`` ``(P,)`` are of all parts of the graph. The result is None if forbidden parts,
        −inf, leave no valid values.
        """
        flips = np.asarray(self.flips, dtype=bool)
        own = np.asarray(scores, dtype=np.float64)[self.parts]
        gains = np.where(flips, -own, own)
        must, may = gains == np.inf, gains > -np.inf
        values = gains > 0
        if self.kind == OR_OUT:
            return self._best_or(gains, must, may, flips)
        order = np.argsort(-gains, kind="stable")
        if self.kind == EXACTLY or values.sum() > self.limit:
            values = np.zeros_like(flips)
            values[order[: int(self.limit)]] = True
        fits = values.sum() == self.limit or (self.kind == AT_MOST and values.sum() < self.limit)
        return values ^ flips if fits and (values >= must).all() and may[values].all() else None

    def _best_or(
        self, gains: np.ndarray, must: np.ndarray, may: np.ndarray, flips: np.ndarray
    ) -> np.ndarray | None:
        """Return the better of two choices: no variable, or the output with some input."""
        values = gains > 0
        values[-1] = True
        if not values[:-1].any() and len(gains) > 1:
            values[gains[:-1].argmax()] = True
        nothing = np.zeros_like(flips)
        possible = bool(values[:-1].any() and may[values].all())
        if must.any():
            return values ^ flips if possible else None
        return (values if possible and gains[values].sum() > 0 else nothing) ^ flips


class LogicFactor(ABC):
    """Set of 0/1 vectors over some parts, given by their numbers in the graph."""

    @abstractmethod
    def encode(self) -> Encoded:
        """Return the factor as numbers for the kernels, and check its parts."""

    def _encode(
        self, kind: int, limit: float, parts: Iterable[int], negated: Iterable[int]
    ) -> Encoded:
        return Encoded(kind, limit, *self._read(parts, negated))

    def _encode_or(
        self, parts: Iterable[int], negated: Iterable[int], premises: int = 0
    ) -> Encoded:
        """Encode that at least one part holds, as at most n − 1 of the negations.

        The first ``premises`` parts enter it as "not".
        """
        numbers, flips = self._read(parts, negated)
        opposite = [flip == (i < premises) for i, flip in enumerate(flips)]
        return Encoded(AT_MOST, len(numbers) - 1, numbers, opposite)

    def _read(self, parts: Iterable[int], negated: Iterable[int]) -> tuple[list[int], list[bool]]:
        """Return the numbers of the parts, and which of them are negated."""
        name = type(self).__name__
        numbers = _numbers(f"{name}: parts", parts)
        opposite = set(_numbers(f"{name}: negated", negated))
        nowhere = sorted({part for part in numbers if part < 0})
        if nowhere:
            raise LatentError(
                f"{name}: parts are {nowhere}; expected numbers of at least 0. A negative number "
                "marks an entry that is no part; leave it out."
            )
        if len(set(numbers)) < len(numbers):
            twice = sorted(part for part, count in Counter(numbers).items() if count > 1)
            raise LatentError(f"{name}: parts {twice[:10]} repeat; name each once.")
        strangers = sorted(opposite - set(numbers))
        if strangers:
            raise LatentError(f"{name}: negated parts {strangers} are not among {numbers}.")
        return numbers, [part in opposite for part in numbers]


def _numbers(name: str, given: Iterable[int]) -> list[int]:
    try:
        numbers = np.asarray(list(given))
    except (TypeError, ValueError):
        numbers = np.array(None)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise LatentError(
            f"{name} are {given!r}; expected a sequence of the numbers of parts, ints from 0, as "
            "the scores are numbered in C order. For a mask, give np.flatnonzero(mask)."
        )
    return [int(number) for number in numbers]


@dataclass(frozen=True)
class Budget(LogicFactor):
    """Constraint that at most ``limit`` of the parts hold."""

    parts: Sequence[int] | np.ndarray
    limit: int
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        check_whole("Budget", least=0, limit=self.limit)
        return self._encode(AT_MOST, self.limit, self.parts, self.negated)


@dataclass(frozen=True)
class AtMostOne(LogicFactor):
    """Constraint that at most one of the parts holds."""

    parts: Sequence[int] | np.ndarray
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        return self._encode(AT_MOST, 1, self.parts, self.negated)


@dataclass(frozen=True)
class Xor(LogicFactor):
    """Constraint that exactly one of the parts holds.

    If one of them is negated, say o, then o is the exclusive or of the others, of which at most one
    may hold.
    """

    parts: Sequence[int] | np.ndarray
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        return self._encode(EXACTLY, 1, self.parts, self.negated)


@dataclass(frozen=True)
class Or(LogicFactor):
    """Constraint that at least one of the parts holds."""

    parts: Sequence[int] | np.ndarray
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        return self._encode_or(self.parts, self.negated)


@dataclass(frozen=True)
class OrOut(LogicFactor):
    """Constraint that ``output`` holds if and only if at least one of ``parts`` holds.

    If all of them are negated, including the output, it is the logical and.
    """

    parts: Sequence[int] | np.ndarray
    output: int
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        return self._encode(OR_OUT, 0, [*self.parts, self.output], self.negated)


@dataclass(frozen=True)
class Implication(LogicFactor):
    """Constraint that ``conclusion`` holds if all of ``premises`` hold."""

    premises: Sequence[int] | np.ndarray
    conclusion: int
    negated: Collection[int] = ()

    def encode(self) -> Encoded:
        parts = [*self.premises, self.conclusion]
        return self._encode_or(parts, self.negated, premises=len(parts) - 1)
