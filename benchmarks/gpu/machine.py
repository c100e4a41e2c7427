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

# Text of torch's warning on each wait, if these warnings are on.
WAIT = "called a synchronizing CUDA operation"


@dataclass
class Waits:
    """places: the file and line of each."""

    places: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Machine:
    """folder: of what the steps write. log: of the pretended GPU, in a dry run: sizes are small
    then, and no kernel is launched."""

    folder: Path
    log: Any = None
    device: str = "cuda"

    @property
    def pretended(self) -> bool:
        return self.log is not None

    def name(self) -> str:
        return "a pretended GPU" if self.pretended else torch.cuda.get_device_name()

    def wait(self) -> None:
        """Until the GPU has done all that it was asked for."""
        if not self.pretended:
            torch.cuda.synchronize()

    def milliseconds(self, run: Callable[[], Any], rounds: int, most: float = 0.5) -> float:
        """The median of as many rounds as begin within ``most`` seconds, after one that is not
        counted; by the clock, from a GPU with nothing to do to the next such moment: a call that
        goes through the CPU costs what it costs."""
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
        """The operations that made the CPU wait for the GPU."""
        found = Waits()
        if self.pretended:
            begin = len(self.log)
            yield found
            # A transfer down is waited for.
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
    """Writes what a step found, each at once."""

    path: Path

    def __call__(self, **found: Any) -> None:
        print(json.dumps(found), flush=True)
        add(self.path, found)


def fill(template: str, cells: list[Any]) -> str:
    """A row of a table; None is an empty cell, and numbers are formatted."""
    shown = ["" if c is None else template.format(c) if isinstance(c, float) else c for c in cells]
    return f"| {' | '.join(str(cell) for cell in shown)} |"
