"""Constraints for factor graphs: logic factors that are told by what the parts of an item are."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from spacy_latent.errors import LatentError, check_flags, check_whole
from spacy_latent.structures.logic_factors import Budget, LogicFactor


class Constraint(ABC):
    """What a :class:`~spacy_latent.structures.factor_graph.FactorGraph` asks of its members beside
    its structures."""

    @abstractmethod
    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        """For an item with these parts, an int array of the shape of its scores: the number of each
        part in the graph, −1 for what is none."""


class LineBudget(Constraint):
    """At most ``limit`` parts of each line: of arcs [head, modifier] along axis 0, modifiers of
    each head; of cells, partners of each word of the first text along axis 0, of the second along
    axis 1.

    limit: how many, at least 0.
    axis: whose indices have a line each.
    but_first: whether the first line is free, such as that of the root.
    """

    def __init__(self, limit: int, axis: int = 0, but_first: bool = False) -> None:
        check_limit("LineBudget", limit)
        check_whole("LineBudget", least=0, axis=axis)
        check_flags("LineBudget", but_first=but_first)
        self.limit = limit
        self.axis = axis
        self.but_first = but_first

    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        if self.axis >= parts.ndim:
            raise LatentError(
                f"LineBudget: axis is {self.axis}, and parts have {parts.ndim} axes; expected "
                f"{' or '.join(map(str, range(parts.ndim)))}."
            )
        lines = np.moveaxis(parts, self.axis, 0)[int(self.but_first) :]
        known = [line[line >= 0].ravel().tolist() for line in lines]
        return [Budget(line, self.limit) for line in known if len(line) > self.limit]


class TotalBudget(Constraint):
    """At most ``limit`` parts in all.

    limit: how many, at least 0.
    """

    def __init__(self, limit: int) -> None:
        check_limit("TotalBudget", limit)
        self.limit = limit

    def factors(self, parts: np.ndarray) -> list[LogicFactor]:
        known = parts[parts >= 0].ravel().tolist()
        return [Budget(known, self.limit)] if len(known) > self.limit else []


def check_limit(name: str, limit: int) -> None:
    check_whole(name, least=0, limit=limit)
