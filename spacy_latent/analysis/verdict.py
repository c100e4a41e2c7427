"""Verdict on a structure, and numbers in its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["warning", "note", "good"]


@dataclass(frozen=True)
class Verdict:
    """One statement about the structures of a layer.

    Attributes:
        level: "warning" for a trivial structure, "note" for a limit of the report, otherwise
            "good".
        code: name for scripts.
    """

    level: Level
    code: str
    text: str


def percent(share: float) -> str:
    """Format a share in percent: 0.937 is "94 %", 0.003 is "0.3 %".

    The result is 0 or 100 only if the share is exactly 0 or 1.
    """
    points = 100 * share
    if 0 < points < 0.05:
        return "under 0.1 %"
    if 99.95 <= points < 100:
        return "over 99.9 %"
    digits = 0 if 1 <= points <= 99 or points in (0.0, 100.0) else 1
    return f"{points:.{digits}f} %"


def points(share: float) -> str:
    """Format a difference of scores in points of a hundred, with a proper minus sign."""
    return f"{100 * share:.1f}".replace("-", "−").replace("−0.0", "0.0")
