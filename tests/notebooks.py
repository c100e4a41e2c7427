"""The code of a notebook, cell after cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    return notebook


def run_cells(path: Path) -> dict[str, Any]:
    """The namespace after the cells, without a kernel."""
    scope: dict[str, Any] = {"__name__": path.stem}
    for number, cell in enumerate(read(path)["cells"], 1):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), scope)
    return scope
