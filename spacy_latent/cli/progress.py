"""How far a command is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def progress(docs: Iterable[Any], stage: str, total: int, unit: str = "doc") -> Iterable[Any]:
    from tqdm import tqdm

    # To standard error, and only where someone looks.
    return tqdm(docs, desc=stage, total=total, unit=unit, disable=None, leave=False)
