"""Device and output folder of a step: the GPU, or a simulated one in a dry run."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.raw_results import add

# Part of the warning that torch gives for each synchronization, if such warnings are enabled.
WAIT = "called a synchronizing CUDA operation"


@dataclass
class Waits:
    """Synchronizations of the CPU with the GPU.

    Attributes:
        places: file and line of each.
    """

    places: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Machine:
    """The device of a step, and its output folder.

    Attributes:
        folder: folder that the steps write to.
        log: log of the simulated GPU in a dry run, or None. In a dry run, sizes are small and no
            kernel is launched.
    """

    folder: Path
    log: Any = None
    device: str = "cuda"

    @property
    def pretended(self) -> bool:
        return self.log is not None

    def name(self) -> str:
        return "a pretended GPU" if self.pretended else torch.cuda.get_device_name()

    def wait(self) -> None:
        """Wait until the GPU has finished its work."""
        if not self.pretended:
            torch.cuda.synchronize()

    def milliseconds(self, run: Callable[[], Any], rounds: int, most: float = 0.5) -> float:
        """Return the median time of a call by the clock, from an idle GPU to an idle GPU.

        Time on the CPU counts as well. The first call is not counted.

        Args:
            run: the call.
            rounds: greatest number of calls.
            most: seconds after which no further call begins.
        """
        run()
        self.wait()
        times: list[float] = []
        until = time.perf_counter() + most
        while len(times) < rounds and (not times or time.perf_counter() < until):
            start = time.perf_counter()
            run()
            self.wait()
            times.append(1e3 * (time.perf_counter() - start))
        return median(times)

    @contextmanager
    def waits(self) -> Iterator[Waits]:
        """Record the operations that make the CPU wait for the GPU."""
        found = Waits()
        if self.pretended:
            begin = len(self.log)
            yield found
            # The CPU also waits for a blocking transfer from the GPU.
            kinds = ("wait", "down")
            found.places += [e.place for e in self.log[begin:] if e.kind in kinds and e.blocking]
            return
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode(before)
        found.places += [f"{w.filename}:{w.lineno}" for w in said if WAIT in str(w.message)]


@dataclass(frozen=True)
class Record:
    """A function that writes a result of a step at once."""

    path: Path

    def __call__(self, **found: Any) -> None:
        print(json.dumps(found), flush=True)
        add(self.path, found)


def fill(template: str, cells: list[Any]) -> str:
    """Format a row of a table. None becomes an empty cell, and ``template`` formats floats."""
    shown = ["" if c is None else template.format(c) if isinstance(c, float) else c for c in cells]
    return f"| {' | '.join(str(cell) for cell in shown)} |"
