"""Train the demo with batches for a GPU, and record its seconds and the figures of its report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import Machine, Record

ROOT = Path(__file__).parents[2]
# The recipe is demo_large_batches.
VARIANT = "large_batches"


def run(machine: Machine, record: Record) -> None:
    if machine.pretended:
        record(ended="a dry run trains no demo")
        return
    seconds = {}
    for command in ("demo-data", "estimator-train", "estimator-report"):
        start = time.perf_counter()
        run = [sys.executable, "-m", "spacy", "project", "run", command, "--force"]
        given = ["--vars.gpu_id", "0", "--vars.demo_estimator", VARIANT]
        subprocess.run([*run, *given], cwd=ROOT, check=True)
        seconds[command] = round(time.perf_counter() - start)
    figures = json.loads((ROOT / f"metrics/demo_{VARIANT}.json").read_text(encoding="utf8"))
    record(seconds=seconds, figures=figures)


def report(records: list[dict[str, Any]]) -> list[str]:
    last = records[-1]
    if "ended" in last:
        return [last["ended"]]
    spent = "; ".join(f"{name} {taken} s" for name, taken in last["seconds"].items())
    shown = json.dumps(last["figures"], indent=1)[:3000]
    return [f"{spent}.", "", "```json", shown, "```"]
