"""Structures and estimators that replace each other during training.

A config names the first one, then the one that follows it from some update on. The model is saved
with the last one and predicts with it. Its ``stages`` hold the earlier ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from spacy_latent.errors import LatentError, is_whole

Kind = TypeVar("Kind", bound="Staged")


class Staged:
    """Base of structures and estimators that may have stages of training before them.

    Attributes:
        stages: pairs of an update and the object that training uses before this update, in order.
            Updates count from 0. Empty if the object is the same all along.
        end_setting: name of the setting, in configs and messages, for the number of updates of a
            stage.
    """

    stages: tuple[tuple[int, Any], ...] = ()
    end_setting: ClassVar[str] = "release_at"

    @property
    def name(self) -> str:
        """Name of the class, for messages."""
        return type(self).__name__

    @property
    def shown(self) -> str:
        """The name with the settings that distinguish it from another object of its class."""
        return self.name

    def at(self: Kind, update: int | None) -> Kind:
        """Return the stage at an update of training; the last one if ``update`` is None."""
        if update is not None:
            for end, stage in self.stages:
                if update < end:
                    return stage
        return self

    def each(self: Kind, function: Callable[[Kind], Kind]) -> Kind:
        """Return ``function`` of this object, with ``function`` of each of its stages."""
        made = function(self)
        made.stages = tuple((end, function(stage)) for end, stage in self.stages)
        return made


def follow(first: Kind, then: Kind, end: int) -> Kind:
    """Return a copy of ``then`` that ``first`` replaces in updates before ``end``.

    Both may have stages.

    Raises:
        LatentError: ``end`` is not a whole number of at least 1, or a stage has no update.
    """
    if not is_whole(end, 1):
        raise LatentError(
            f"{then.end_setting} is {end!r}; expected the number of updates of training, at least "
            f"1, after which {following(first, then)}."
        )
    idle = [(first, own, stage, first) for own, stage in first.stages if own >= end]
    idle += [(then, own, stage, stage) for own, stage in then.stages if own <= end]
    for inner, own, stage, unused in idle:
        raise LatentError(
            f"{following(stage, inner)} after {own} updates, and {following(first, then)} after "
            f"{end}: {unused.shown} would be used for no update. Change the numbers of updates, or "
            "leave it out."
        )
    made = copy.deepcopy(then)
    plain = copy.deepcopy(first)
    plain.stages = ()
    made.stages = (*first.stages, (end, plain), *then.stages)
    return made


def following(first: Staged, then: Staged) -> str:
    """Return a clause that says that one follows the other.

    It has their names, or, if these are equal, the settings that differ.
    """
    if first.name == then.name:
        return f"{then.shown} follows {first.shown}"
    return f"{then.name} follows {first.name}"


def unreached(staged: Staged, updates: int) -> str:
    """Return a clause that says that training ends before the last stage; empty if it does not."""
    if not staged.stages or staged.stages[-1][0] < updates:
        return ""
    end, before = staged.stages[-1]
    return f"{following(before, staged)} only after {end} updates"


def periods(*staged: Staged) -> Iterator[tuple[int, int | None]]:
    """Yield the ranges (first, end) of updates in which none of the objects changes.

    The last range has no end. It is also the one that prediction uses.
    """
    ends = sorted({end for each in staged for end, _ in each.stages})
    yield from zip([0, *ends], [*ends, None])
