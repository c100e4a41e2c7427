"""Raw results as JSON Lines: one line for each run, and tables are written from them.

Several processes may add to a file at once, and may be killed while they do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RAW = Path(__file__).with_name("runs")


def add(path: Path, row: Mapping[str, Any]) -> None:
    """It is on the disk when this comes back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n"
    with path.open("ab+") as file:
        # After what another process left of a line when it was killed.
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        # At once, so that no other one's comes between.
        os.write(file.fileno(), line.encode("utf8"))
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines; empty if there is no file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
