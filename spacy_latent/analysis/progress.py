"""Interface to report the progress of long computations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Each = TypeVar("Each")


class Progress(Protocol):
    """Function that returns an iterable unchanged and reports its progress.

    It receives the iterable, a description of the stage and the number of items.
    """

    def __call__(self, each: Iterable[Each], stage: str, total: int, /) -> Iterable[Each]:
        """Return the items unchanged, and report how many have been taken."""


def silent(each: Iterable[Each], stage: str, total: int) -> Iterable[Each]:
    """Return the iterable and report nothing, as the default :class:`Progress`."""
    return each
