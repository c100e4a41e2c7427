"""Diagnostics about a pipeline before it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Diagnostic:
    """Statement about a pipeline or its config.

    Attributes:
        level: "error" if something will not learn or not work, "warning" for a probable mistake,
            "note" for useful information.
        code: name for scripts.
    """

    level: Level
    code: str
    text: str


error = partial(Diagnostic, "error")
warning = partial(Diagnostic, "warning")
note = partial(Diagnostic, "note")
