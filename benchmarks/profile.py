"""Share of the time of inference that kernels take, alone and among other work.

    python -m benchmarks profile

The rows are the rows of ``inference`` without other libraries, at their largest n. *Alone*, a row
is repeated on the same scores. Its data are then in the caches, and the processor predicts its
branches. *Among others*, all rows take turns, as in a program that also does other work.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import date
from statistics import median
from typing import Any

import torch

from benchmarks.inference import BATCH, ROWS, THREADS, Setting
from benchmarks.sections import write_section
from spacy_latent.kernels.core import pool

ROUNDS = 21


class Spread:
    """A replacement of kernels.core.pool.spread in all modules, which adds up its seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.original = pool.spread
        for module in list(sys.modules.values()):
            if getattr(module, "spread", None) is self.original:
                module.spread = self  # type: ignore[attr-defined]

    def __call__(self, kernel: Callable[..., Any], costs: Any, arguments: Any) -> None:
        start = time.perf_counter()
        self.original(kernel, costs, arguments)
        self.seconds += time.perf_counter() - start


def timed(run: Callable[[], Any], spread: Spread) -> tuple[float, float]:
    """Return the milliseconds of a call, and the milliseconds of its kernels."""
    spread.seconds = 0.0
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start), 1e3 * spread.seconds


def main() -> None:
    torch.set_num_threads(THREADS)
    runs = {row: row.make(Setting(row.sizes[-1]), None)[0] for row in ROWS}
    for run in runs.values():
        run()
    # The replacement comes after the first calls, which import all modules of kernels.
    spread = Spread()
    alone, among = {}, {row: [] for row in ROWS}
    for row, run in runs.items():
        alone[row] = [timed(run, spread) for _ in range(ROUNDS)]
    for _ in range(ROUNDS):
        for row, run in runs.items():
            among[row].append(timed(run, spread))
    lines = [
        f"{date.today()}, torch {torch.__version__}; batch of {BATCH}, {THREADS} threads, load "
        f"average {os.getloadavg()[0]:.1f}. Medians in milliseconds.",
        "",
        "| work | n | alone | of it kernels | among others | of it kernels |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in ROWS:
        cells = [
            f"{median(values):.2f}" for found in (alone[row], among[row]) for values in zip(*found)
        ]
        lines.append(f"| {row.work} | {row.sizes[-1]} | {' | '.join(cells)} |")
    print("\n".join(lines))
    write_section("profile", "Where the time of inference goes", lines)


if __name__ == "__main__":
    main()
