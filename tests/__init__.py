"""The tests, and what is made for the documentation.

spaCy keeps its functions in the package catalogue. At each look-up of a function and each reading
of a Doc, catalogue loads all entry points of a group, which was half of the time of many tests.
Here they are the same ones, sorted by group once, and each is loaded once.
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
# Of this form they were on Python 3.9, and Catalogue still takes it.
catalogue.AVAILABLE_ENTRY_POINTS = {
    group: [_LoadedOnce(point) for point in _ALL.select(group=group)] for group in _ALL.groups
}
