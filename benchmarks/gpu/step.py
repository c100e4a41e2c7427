"""One step in this process.

python -m benchmarks.gpu.step NAME FOLDER
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.machine import Machine, Record


def run(name: str, folder: Path, dry: bool = False) -> None:
    """dry: on a pretended GPU."""
    step = import_module(f"benchmarks.gpu.{name}").run
    record = Record(folder / f"{name}.jsonl")
    if not dry:
        step(Machine(folder), record)
        return
    # Of the tests: a machine with a GPU may have none.
    from tests.device.pretended_gpu import pretended_gpu

    with pretended_gpu() as log:
        step(Machine(folder, log), record)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
