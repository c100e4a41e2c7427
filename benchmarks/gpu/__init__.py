"""Every check and measurement that needs a GPU, in nine minutes; without one it says so and ends.

    python -m benchmarks gpu [--only STEP ...] [--output FOLDER] [--dry-run]

Each step is a process of its own with a limit of its own, since an error on a GPU ends all that a
process can do with it. Each step writes its results at once, one JSON object a line, to
FOLDER/STEP.jsonl, and its output to FOLDER/STEP.log. After each step the section of results/gpu.md
is written anew, so that an interrupted plan keeps its results. The first step says whether any of
the others makes sense; where it fails, the plan ends.

``--dry-run`` goes through all of it without a GPU, with small sizes and the pretended one of
tests/device: its times mean nothing, and its section goes to FOLDER/gpu.md.
"""

from benchmarks.gpu.plan import main

__all__ = ["main"]
