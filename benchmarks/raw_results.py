"""Raw results as JSON Lines, with a line for each run. Tables are written from them.

Several processes may add lines to a file at once, and may be killed while they do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RAW = Path(__file__).with_name("runs")


def add(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line to a file. The line is on the disk when this function returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n"
    with path.open("ab+") as file:
        # A process that was killed may have left a part of a line. Then a new line begins here.
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        # A single write keeps the line together if other processes write as well.
        os.write(file.fileno(), line.encode("utf8"))
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines. There are none if the file does not exist."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
