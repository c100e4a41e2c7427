"""How far something is that takes long, for those who wait for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Each = TypeVar("Each")


class Progress(Protocol):
    """Of an iterable, what is done with it, and how many there are, gives the same iterable."""

    def __call__(self, each: Iterable[Each], stage: str, total: int, /) -> Iterable[Each]: ...


def silent(each: Iterable[Each], stage: str, total: int) -> Iterable[Each]:
    """A :class:`Progress` that shows nothing."""
    return each
