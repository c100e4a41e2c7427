"""Run the demo from end to end on the GPU, and record the figures of its report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import Machine, Record

ROOT = Path(__file__).parents[2]


def run(machine: Machine, record: Record) -> None:
    if machine.pretended:
        record(ended="a dry run trains no demo")
        return
    start = time.perf_counter()
    command = [sys.executable, "-m", "spacy", "project", "run", "demo", "--vars.gpu_id", "0"]
    subprocess.run(command, cwd=ROOT, check=True)
    figures = json.loads((ROOT / "metrics/demo.json").read_text(encoding="utf8"))
    record(ended=f"{time.perf_counter() - start:.0f} s", figures=figures)


def report(records: list[dict[str, Any]]) -> list[str]:
    lines = [f"Data, training and report: {records[-1]['ended']}."]
    if "figures" in records[-1]:
        shown = json.dumps(records[-1]["figures"], indent=1)[:3000]
        lines += ["", "```json", shown, "```"]
    return lines
