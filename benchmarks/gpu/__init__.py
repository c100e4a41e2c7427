"""Run every check and measurement that needs a GPU, in nine minutes.

    python -m benchmarks gpu [--only STEP ...] [--output FOLDER] [--dry-run]

Each step is a process with a time limit of its own, because a process cannot use a GPU after an
error on it. Each step writes every result at once, as a line of JSON, to FOLDER/STEP.jsonl, and its
output to FOLDER/STEP.log. After each step the section of results/gpu.md is written again, so that
an interrupted plan keeps its results. The first step checks the prerequisites of the others; if it
fails, the plan ends. Without a GPU, the program only says that there is none.

``--dry-run`` runs all steps without a GPU, with small sizes and the simulated GPU of tests/device.
Its times mean nothing, and its section goes to FOLDER/gpu.md.
"""

from benchmarks.gpu.plan import main

__all__ = ["main"]
