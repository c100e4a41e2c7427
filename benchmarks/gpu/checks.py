"""Run tests/gpu by pytest, and record its last line and the tests that failed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from benchmarks.gpu.machine import Machine, Record


def run(machine: Machine, record: Record) -> None:
    if machine.pretended:
        # The tests run in another process, in which the GPU is not simulated.
        record(ended="not on a pretended GPU", failed=[])
        return
    # pyproject.toml has -q already. Another -q would hide the count of tests.
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu"]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.strip())
    said = [line for line in lines if line]
    ended = said[-1] if said else "no output"
    record(ended=ended, failed=[line for line in said if line.startswith("FAILED")])
    if process.returncode:
        raise SystemExit(ended)


def report(records: list[dict[str, Any]]) -> list[str]:
    return [records[-1]["ended"].strip("= "), *(f"- {line}" for line in records[-1]["failed"])]
