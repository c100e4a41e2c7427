"""Run the step ``answers`` under compute-sanitizer, which finds accesses out of bounds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import Any

from benchmarks.gpu.machine import Machine, Record

# Exit status of the checker if it finds an error.
FOUND = 9


def run(machine: Machine, record: Record) -> None:
    checker = shutil.which("compute-sanitizer")
    if machine.pretended or checker is None:
        record(ended="compute-sanitizer is not here")
        return
    folder = machine.folder / "memory_check"
    folder.mkdir(exist_ok=True)
    step = [sys.executable, "-m", "benchmarks.gpu.step", "answers", str(folder)]
    command = [checker, "--tool", "memcheck", "--error-exitcode", str(FOUND), *step]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    print(said[-6000:])
    errors = re.search(r"ERROR SUMMARY: (\d+) error", said)
    refused = re.search(r"Error: .*", said)
    if errors is None:
        # Some virtual machines do not give the checker access to the GPU.
        record(ended=refused.group(0) if refused else f"it ended with {done.returncode}")
        return
    record(ended=f"{errors.group(1)} errors")
    if int(errors.group(1)):
        raise SystemExit(f"{errors.group(1)} errors of memory.")


def report(records: list[dict[str, Any]]) -> list[str]:
    return [f"compute-sanitizer, memcheck: {records[-1]['ended']}."]
