"""What is found of a pipeline before it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """level: "error" for what will not learn or not work, "warning" for what likely is a mistake,
    "note" for what is good to know. code: a name for scripts. text: sentences."""

    level: Level
    code: str
    text: str


__all__ = ["Finding", "Level"]
