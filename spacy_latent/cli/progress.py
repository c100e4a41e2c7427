"""Progress of a command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def progress(docs: Iterable[Any], stage: str, total: int, unit: str = "doc") -> Iterable[Any]:
    from tqdm import tqdm

    # On standard error, and only if it is a terminal.
    return tqdm(docs, desc=stage, total=total, unit=unit, disable=None, leave=False)
