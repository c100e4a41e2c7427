"""Run the steps of the plan in order, and write the section of their results."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.prerequisites import PACKAGES
from benchmarks.pages import FOLDER
from benchmarks.raw_results import read
from benchmarks.sections import write_section

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Step:
    """A step of the plan.

    Attributes:
        name: name of its module in this package.
        seconds: its time limit.
        title: its name in the section of results.
        must: whether the plan ends if it fails.
        extra: whether it only runs on request, and is not a part of the nine minutes.
    """

    name: str
    seconds: int
    title: str
    must: bool = False
    extra: bool = False


STEPS = (
    Step("prerequisites", 20, "what must be there", must=True),
    Step("answers", 60, "eight kernels against stored answers"),
    Step("memory_check", 90, "kernels under a checker of memory"),
    Step("training", 130, "spacy train on the GPU"),
    Step("checks", 90, "tests/gpu"),
    Step("one_step", 45, "one step of training"),
    # This step comes last, because an interruption of it only loses its largest batches.
    Step("kernels", 105, "kernels beside the path through the CPU and the peers"),
    Step("structures", 420, "every structure on the GPU beside the CPU", extra=True),
    Step("demo", 570, "the demo from end to end", extra=True),
)
# Kernels for the CPU, which this step and later ones need, are compiled while the first steps run.
COMPILES_BEFORE = "training"
COMPILE_SECONDS = 150


def run_step(step: Step, folder: Path) -> str:
    """Run a step in its own process, and return how it ended.

    At the end, all processes that the step has started are killed.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.step", step.name, str(folder)]
    start = time.monotonic()
    with (folder / f"{step.name}.log").open("w", encoding="utf8") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(step.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    took = f"{time.monotonic() - start:.0f} s"
    if code is None:
        return f"stopped after its {step.seconds} s"
    return f"done in {took}" if code == 0 else f"FAILED after {took}: {last_line(log.name)}"


def rehearse(step: Step, machine: Machine) -> str:
    """Run a step in this process on a simulated GPU, and return how it ended.

    No process of its own is needed, because an error does not make a simulated GPU unusable.
    """
    # The module is imported here because run_step() runs it by -m, before which no import may have
    # loaded it.
    from benchmarks.gpu.step import run

    start = time.monotonic()
    log = (machine.folder / f"{step.name}.log").open("w", encoding="utf8")
    with log, redirect_stdout(log), redirect_stderr(log):
        try:
            run(step.name, machine)
        except (SystemExit, Exception) as error:
            return f"FAILED after {time.monotonic() - start:.0f} s: {error}"
    return f"done in {time.monotonic() - start:.0f} s"


@contextmanager
def pretended(folder: Path) -> Iterator[Machine]:
    """Simulate a GPU. Thinc must not have been imported.

    This imports modules of the tests, which an installation may lack.
    """
    from tests.device.pretended_cupy import pretended_cupy
    from tests.device.pretended_gpu import pretended_gpu

    with pretended_gpu() as log, pretended_cupy():
        yield Machine(folder, log)


def end(process: subprocess.Popen) -> None:
    """Kill a process and all processes of its group."""
    if os.name == "posix":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    else:
        process.kill()
    process.wait()


def last_line(path: str) -> str:
    lines = Path(path).read_text(encoding="utf8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:200].replace("|", "/") if said else "it said nothing"


def section(folder: Path, ended: dict[str, str], chosen: Sequence[Step]) -> list[str]:
    """Return the lines of the section of results, for the steps that have ended so far."""
    found = read(folder / "prerequisites.jsonl")
    versions = {key: value for line in found for key, value in line.get("versions", {}).items()}
    on = next((line["gpu"] for line in found if "gpu" in line), "no GPU")
    said = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    heading = f"{date.today()}, {on}; {said}." if found else "No GPU was there to run this on."
    lines = [heading, "", "| step | how it ended |", "|---|---|"]
    lines += [f"| {step.title} | {ended.get(step.name, 'not run')} |" for step in chosen]
    for step in chosen:
        records = read(folder / f"{step.name}.jsonl")
        tables = import_module(f"benchmarks.gpu.{step.name}").report(records) if records else []
        lines += (
            ["", f"**{step.title[0].upper()}{step.title[1:]}.**", "", *tables] if tables else []
        )
    return lines


def compile_beside(folder: Path) -> subprocess.Popen | None:
    """Start to compile the CPU's kernels for all structures, on all cores."""
    if not find_spec("hypothesis"):
        # The compilation uses modules of the tests, which need hypothesis. Without it, each step
        # compiles the kernels that it needs.
        return None
    with (folder / "compile.log").open("w", encoding="utf8") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.compile_kernels"],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], default=[])
    parser.add_argument("--output", type=Path, default=Path("training/gpu"), metavar="FOLDER")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args(arguments)
    if not (given.dry_run or torch.cuda.is_available()):
        print("No GPU here: nothing to run. --dry-run goes through the plan without one.")
        return
    folder = given.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [step for step in STEPS if (step.name in given.only if given.only else not step.extra)]
    for step in chosen:
        (folder / f"{step.name}.jsonl").unlink(missing_ok=True)
    results = folder if given.dry_run else FOLDER
    ended: dict[str, str] = {}
    with ExitStack() as stack:
        machine = stack.enter_context(pretended(folder)) if given.dry_run else None
        compiling = None if given.dry_run else compile_beside(folder)
        if compiling is not None:
            stack.callback(end, compiling)
        for step in chosen:
            if compiling is not None and step.name == COMPILES_BEFORE:
                wait_for(compiling)
            print(f"{step.title} ...", flush=True)
            ended[step.name] = rehearse(step, machine) if machine else run_step(step, folder)
            print(f"    {ended[step.name]}", flush=True)
            page = write_section("gpu", "On a GPU", section(folder, ended, chosen), results)
            if step.must and not ended[step.name].startswith("done"):
                break
    print(f"Written to {page} and {folder}.")
    if len(ended) < len(chosen) or not all(said.startswith("done") for said in ended.values()):
        sys.exit("Not all of it ran to its end.")


def wait_for(compiling: subprocess.Popen) -> None:
    try:
        compiling.wait(COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        print("Compiling for the CPU takes too long: the steps go on without.", flush=True)
        end(compiling)
