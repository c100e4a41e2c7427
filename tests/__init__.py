"""The tests, and what is made for the documentation.

Catalogue, in which spaCy keeps its functions, goes through the entry points of all packages each
time that one is looked up or a Doc is read, which was half of the time of many tests. Here they are
the same ones, sorted by group once, which it takes as well.
"""

from __future__ import annotations

from typing import Any

import catalogue

_ALL: Any = catalogue.AVAILABLE_ENTRY_POINTS
catalogue.AVAILABLE_ENTRY_POINTS = {group: list(_ALL.select(group=group)) for group in _ALL.groups}
