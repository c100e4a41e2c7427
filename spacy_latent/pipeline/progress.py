"""How far something is that takes long, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# Of an iterable, what is done with it, and how many there are, gives the same iterable.
Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]


def silent(each: Iterable[Any], stage: str, total: int) -> Iterable[Any]:
    """A :data:`Progress` that shows nothing."""
    return each
