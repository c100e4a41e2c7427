"""The tests, and programs that write files of the documentation.

spaCy finds registered functions by the package catalogue. For each look-up, and each Doc that is
read, catalogue loads all entry points of a group. This took half of the time of many tests. Here
its entry points are replaced by the same ones, sorted by group and each loaded only once.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

import catalogue


class _LoadedOnce:
    def __init__(self, point: EntryPoint) -> None:
        self.name, self.value, self.group = point.name, point.value, point.group
        self.load = cache(point.load)


_ALL: Any = catalogue.AVAILABLE_ENTRY_POINTS
# Entry points were a dict of lists on Python 3.9, and catalogue still accepts one.
catalogue.AVAILABLE_ENTRY_POINTS = {
    group: [_LoadedOnce(point) for point in _ALL.select(group=group)] for group in _ALL.groups
}
