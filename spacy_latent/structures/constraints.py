"""Constraints of factor graphs: logic factors that follow from the parts of an item."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from spacy_latent.errors import LatentError, check_flags, check_whole
from spacy_latent.structures.logic_factors import Budget, LogicFactor


class Constraint(ABC):
    """Requirement of a :class:`~spacy_latent.structures.factor_graph.FactorGraph` on its members.

    It is added to the structures of the graph.
    """

    def check(self, axes: int) -> None:  # noqa: B027 (most constraints fit any parts)
        """Raise LatentError if the constraint cannot be on parts with so many axes."""

    @abstractmethod
    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        """Return the logic factors of an item with these parts.

        Args:
            parts: int array of the shape of the item's scores: the number of each part in the
                graph, −1 at entries that are no part.
        """


class LineBudget(Constraint):
    """Limit on the number of parts in each line: at most ``limit``.

    For arcs [head, modifier] along axis 0 these are modifiers of each head. For cells they are
    partners of each word: of the first text along axis 0, of the second along axis 1.

    Args:
        limit: largest number of parts, at least 0.
        axis: axis whose indices have a line each.
        but_first: whether the first line has no limit, for example the root's.
    """

    def __init__(self, limit: int, axis: int = 0, but_first: bool = False) -> None:
        check_whole("LineBudget", least=0, limit=limit, axis=axis)
        check_flags("LineBudget", but_first=but_first)
        self.limit = limit
        self.axis = axis
        self.but_first = but_first

    def check(self, axes: int) -> None:
        if self.axis >= axes:
            raise LatentError(
                f"LineBudget: axis is {self.axis}, and parts have {axes} axes; expected "
                f"{' or '.join(map(str, range(axes)))}."
            )

    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        self.check(parts.ndim)
        lines = np.moveaxis(parts, self.axis, 0)[int(self.but_first) :]
        known = [line[line >= 0].ravel().tolist() for line in lines]
        return [Budget(line, self.limit) for line in known if len(line) > self.limit]


class TotalBudget(Constraint):
    """Limit on the number of all parts: at most ``limit``.

    Experimental: may change in any version.

    Args:
        limit: largest number of parts, at least 0.
    """

    def __init__(self, limit: int) -> None:
        check_whole("TotalBudget", least=0, limit=limit)
        self.limit = limit

    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        known = parts[parts >= 0].ravel().tolist()
        return [Budget(known, self.limit)] if len(known) > self.limit else []
