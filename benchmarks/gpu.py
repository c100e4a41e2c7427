"""Every check and measurement that needs a GPU; without one it says so and ends well.

    python -m benchmarks gpu

First the tests marked ``gpu``, where spaCy and CuPy are there. Then for each structure the best
member, marginals with their gradient and SparseMAP with its gradient are computed from scores on
the GPU, compared with those from the same scores on the CPU, and timed. Nothing new is begun after
seven minutes.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from datetime import date
from statistics import median

import torch
from torch import Tensor

from benchmarks.cases import scores_for, structures
from benchmarks.sections import write_section
from spacy_latent.kernels import blocks
from spacy_latent.structures.base import Structure

WORDS, BATCH, ROUNDS = 25, 32, 15
TEST_SECONDS, ALL_SECONDS = 300, 420
OPERATIONS = ("map", "log_partition", "marginals", "sparsemap")


def run(structure: Structure, operation: str, scores: Tensor, lengths: Tensor) -> list[Tensor]:
    """The result, and the gradient of the scores where there is one."""
    if operation == "map":
        return [structure.map(scores, lengths)]
    given = scores.detach().requires_grad_()
    result = getattr(structure, operation)(given, lengths)
    result = result.mean if operation == "sparsemap" else result
    upstream = torch.ones_like(result) if result.dim() == 1 else scores
    return [result.detach(), *torch.autograd.grad(result, given, upstream)]


def measure(structure: Structure, operation: str, device: str) -> float:
    """Milliseconds. Results are compared with those from the CPU first."""
    scores, lengths = scores_for(structure, WORDS, BATCH, device)
    found = run(structure, operation, scores, lengths)
    expected = run(structure, operation, scores.cpu(), lengths.cpu())
    for own, reference in zip(found, expected):
        assert own.device == scores.device and own.dtype == scores.dtype
        torch.testing.assert_close(own.cpu(), reference, rtol=1e-4, atol=1e-4)
    times = []
    for _ in range(ROUNDS):
        if device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run(structure, operation, scores, lengths)
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def run_tests() -> str:
    """The last line that pytest prints."""
    missing = [name for name in ("spacy", "cupy", "pytest") if not importlib.util.find_spec(name)]
    if missing:
        return f"GPU tests not run: {', '.join(missing)} not installed."
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"GPU tests stopped after {TEST_SECONDS} seconds."
    print(done.stdout)
    return f"GPU tests: {(done.stdout.strip() or 'no output').splitlines()[-1]}"


def rows(device: str, until: float = float("inf")) -> list[str]:
    lines = [
        f"| structure, n = {WORDS}, batch of {BATCH} | {' | '.join(OPERATIONS)} |",
        f"|---|{'---:|' * len(OPERATIONS)}",
    ]
    for structure in structures():
        if time.monotonic() > until:
            lines.append(f"| {structure.name} | not reached in time |")
            continue
        cells = []
        for operation in OPERATIONS:
            missing = {operation} - structure.tractable - {"map", "sparsemap"}
            try:
                cells.append("" if missing else f"{measure(structure, operation, device):.2f}")
            except Exception as error:
                print(f"{structure.name}.{operation}: {error}")
                cells.append("FAILED")
        lines.append(f"| {structure.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    if not torch.cuda.is_available():
        print("No GPU here: nothing to run.")
        return
    until = time.monotonic() + ALL_SECONDS
    name = torch.cuda.get_device_name()
    print(name)
    tested = run_tests()
    print(tested)
    lines = [f"{date.today()}, torch {torch.__version__}, {name}; milliseconds, with gradients."]
    table = rows("cuda", until)
    by = "kernels of its own" if blocks.usable() else "those for the CPU"
    failed = f", but for {len(blocks.failed())} that failed" if blocks.failed() else ""
    lines += [tested, f"Structures that can be solved on a GPU were by {by}{failed}.", "", *table]
    write_section("gpu", "On a GPU", lines)
    if any("FAILED" in line or "failed" in line or "error" in line for line in lines):
        sys.exit("Something failed on the GPU.")


if __name__ == "__main__":
    main()
