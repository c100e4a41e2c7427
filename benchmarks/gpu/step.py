"""Run one step of the plan in this process.

python -m benchmarks.gpu.step NAME FOLDER
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.machine import Machine, Record


def run(name: str, machine: Machine) -> None:
    record = Record(machine.folder / f"{name}.jsonl")
    import_module(f"benchmarks.gpu.{name}").run(machine, record)


if __name__ == "__main__":
    run(sys.argv[1], Machine(Path(sys.argv[2])))
