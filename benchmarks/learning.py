"""Scores of trained configs: every config of a group is trained with every seed.

    python -m benchmarks learning rationales --seeds 0 1 2 3 4
    python -m benchmarks learning systems --only rationale_fusedmax
    python -m benchmarks learning systems --seeds      # no run, the table alone
    python -m benchmarks learning listops --seeds 0 1 2 3 4 --gpu --minutes 9
    python -m benchmarks learning transformers --encoder path/to/encoder

Each run is a training in its own process, on one thread. Its figures belong to the checkpoint that
is best on the development set. They are measured on that set, or on the test set if a group has
one. Runs are cells of a sweep (:mod:`spacy_latent.distributed.sweep`), so that the same command in
another terminal is one more worker. If it is killed, start it again: a training resumes from its
last checkpoint.

A finished run is a line of JSON in RAW, which has a file of the repository for each config. It is
not trained again while the config is the same. The table is written from these files, to the
terminal and to the group's section of the results, with a drawing of its first figure. With
--minutes, all trainings together stop after that time. If some are left, the program ends with
status 3, and the same command resumes them. The commands of project.yml make the corpora.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import spacy
import torch
from spacy.util import load_config

from benchmarks import config_digest, recipes
from benchmarks.learning_groups import ACCURACY, DEVELOPMENT, GROUPS, WITH_SUMS, Entry, Group
from benchmarks.learning_plot import write_drawing
from benchmarks.learning_trial import time_noted
from benchmarks.raw_results import RAW, add, read
from benchmarks.sections import write_section
from spacy_latent.distributed.checkpoint import checkpoints_in
from spacy_latent.distributed.directories import locked, replace_file
from spacy_latent.distributed.sweep import Cell, Scores, sweep
from spacy_latent.errors import LatentError
from spacy_latent.listops.assessment import MEASURES
from spacy_latent.listops.record import key_of

# The raw results of each entry, by seed.
Results = dict[Entry, dict[int, dict[str, Any]]]

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "training" / "learning"


def of_listops(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a model from the metrics of a report on ListOps.

    Figures of the first corpus have plain names. Accuracy and measures of trees on the other
    corpora have the corpus in their names, such as "whole depth6".

    Args:
        metrics: metrics of the report, in which the model comes before the controls.
    """
    scores: dict[str, float] = {ACCURACY["accuracy"]: metrics["accuracy"]}
    if "brackets" in metrics:
        scores["brackets"] = next(iter(metrics["brackets"].values()))
    elif "attachment" in metrics:
        scores["attachment"] = next(iter(metrics["attachment"].values()))["without ]"]
    if "edges" in metrics:
        edges = next(iter(metrics["edges"].values()))
        scores |= {"edges": edges["all tokens"], "edges without ]": edges["without ]"]}
    first, *others = metrics.get("corpora", {}).items() or [("", {})]
    part = first[1]
    for name, group in part.get("by_operator", {}).items():
        if name in WITH_SUMS:
            scores[name] = next(iter(group["models"].values()))["accuracy"][0]
    own = _of_all(part)
    if "gold" in own.get("accuracy_with", {}):
        scores["gold"] = own["accuracy_with"]["gold"][0]
    for name, corpus in ((None, part), *others):
        found = _of_all(corpus)
        measured = {key_of(key, name): found[key][0] for key in MEASURES if key in found}
        scores = measured | scores
    return scores


def _of_all(corpus: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the model on the expressions of all depths."""
    return next(iter(corpus.get("by_depth", {}).get("all", {}).get("models", {}).values()), {})


# ---------------------------------------------------------------- one run


class TimeIsUp(BaseException):
    """The time for all trainings is over.

    It is no Exception, because a sweep would record one as the failure of a run.
    """


@dataclass(frozen=True)
class Run:
    """The training of an entry with a seed.

    Attributes:
        entry: the entry.
        seed: the seed.
        runs: directory of unfinished runs.
        raw: directory of raw results.
        gpu: whether to train on the first GPU.
        end: time to stop, by ``time.monotonic()``.
        encoder: path of a local copy of the encoder that the config names. Results do not record
            it.
    """

    entry: Entry
    seed: int
    runs: Path
    raw: Path
    gpu: bool = False
    end: float = math.inf
    encoder: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run. It depends on the digest, so a changed config does not resume."""
        name = f"{self.entry.config}-{self.seed}-{digest_of_entry(self.entry)}"
        if self.paths:
            # A training that began with one encoder cannot resume with another.
            name += "-" + hashlib.sha256(json.dumps(self.paths).encode()).hexdigest()[:8]
        return self.runs / name

    @property
    def paths(self) -> dict[str, str]:
        """The settings of ``[paths]`` that differ from the config on this machine."""
        if self.encoder is None or not has_encoder(self.entry.config):
            return {}
        return {f"paths.{ENCODER}": str(self.encoder)}

    @property
    def path(self) -> Path:
        return self.raw / f"{self.entry.config}.jsonl"

    def row(self) -> dict[str, Any] | None:
        """Return the stored result, or None if there is none."""
        return rows_of(self.entry, self.raw).get(self.seed)

    def keep(self) -> dict[str, Any]:
        """Return the result, and remove the folder of the run.

        Without a stored result, the run is trained and its result is stored.
        """
        found = self.row()
        if found is None:
            train(self)
            found = result_of(self)
            add(self.path, found)
        shutil.rmtree(self.folder, ignore_errors=True)
        return found

    def cell(self) -> Cell:
        setting = {"config": self.entry.config, **dict(self.entry.settings)}
        return Cell(setting, self.seed, {"system.seed": self.seed})


# Name of the path of the pre-trained encoder in configs.
ENCODER = "encoder"


def recipe(name: str) -> Path:
    """Return a file with the whole config of a recipe."""
    return recipes.path_of(name, ROOT / "training" / "recipes", ROOT / "configs")


@cache
def has_encoder(config: str) -> bool:
    return ENCODER in load_config(recipe(config)).get("paths", {})


def digest_of_entry(entry: Entry) -> str:
    """Return the digest of the config of an entry with its settings."""
    own = digest_of(entry.config)
    if not entry.settings:
        return own
    return hashlib.sha256(f"{own} {json.dumps(entry.settings)}".encode()).hexdigest()[:16]


@cache
def digest_of(config: str) -> str:
    return config_digest.digest_of(recipe(config))


@cache
def task_of(entry: Entry) -> str:
    """Return the development corpus of an entry. Entries with the same one have the same task."""
    settings = dict(entry.settings)
    if DEVELOPMENT in settings:
        return str(settings[DEVELOPMENT])
    dev: str = load_config(recipe(entry.config), interpolate=False)["paths"]["dev"]
    return dev


def rows_of(entry: Entry, raw: Path = RAW) -> dict[int, dict[str, Any]]:
    """Return the last result of each seed with the present settings of an entry."""
    rows = read(raw / f"{entry.config}.jsonl")
    found = {row["seed"]: row for row in rows if row["digest"] == digest_of_entry(entry)}
    return dict(sorted(found.items()))


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def train(run: Run) -> None:
    """Train into the folder of a run, unless its training has finished before.

    Raises:
        TimeIsUp: The time of the run is over.
        LatentError: The training failed.
    """
    trained = run.folder / "trained.json"
    if trained.exists():
        return
    left = run.end - time.monotonic()
    if left <= 0:
        raise TimeIsUp
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.learning_trial", str(os.getpid())]
    command += [str(recipe(run.entry.config)), str(run.folder), str(run.seed)]
    overrides = run.paths | dict(run.entry.settings)
    command += [json.dumps(overrides), "gpu" if run.gpu else "cpu"]
    start = time.perf_counter()
    given: dict[str, Any] = {"cwd": ROOT, "env": ENVIRONMENT}
    with (run.folder / "log.txt").open("ab") as log:
        try:
            limit = None if math.isinf(left) else left
            done = subprocess.run(command, **given, stdout=log, stderr=log, timeout=limit)
        except subprocess.TimeoutExpired:
            raise TimeIsUp from None
    if done.returncode:
        said = (run.folder / "log.txt").read_text(encoding="utf8", errors="replace")
        raise LatentError(f"{' '.join(command)} failed:\n{said[-4000:]}")
    replace_file(trained, json.dumps({"seconds": round(time.perf_counter() - start, 1)}))


def result_of(run: Run) -> dict[str, Any]:
    """Return the result of a finished training, as a line of the raw results.

    Its entries include:

    - steps: number of steps up to the last evaluation
    - started: number of starts, which is more than 1 if the training was killed and resumed
    - processor_seconds: processor time of all starts, without the last seconds before a kill
    - seconds: time of the last start by the clock
    """
    folder, entry = run.folder, run.entry
    model = folder / entry.model
    scores = scores_of(model)
    if entry.listops is not None:
        metrics = folder / "metrics.json"
        report = [*(sys.executable, "-m", "spacy_latent.cli.listops", "report"), str(model)]
        report += [entry.listops, "--metrics", str(metrics)]
        done = subprocess.run(report, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
        if done.returncode:
            raise LatentError(f"{' '.join(report)} failed:\n{done.stderr[-4000:]}")
        scores = of_listops(json.loads(metrics.read_text(encoding="utf8")))
    if entry.tests:
        scores = evaluated(model, entry.tests)
    clocks = time_noted(folder)
    return {
        "config": entry.config,
        **({"settings": dict(entry.settings)} if entry.settings else {}),
        **({"device": torch.cuda.get_device_name(0)} if run.gpu else {}),
        "digest": digest_of_entry(entry),
        "seed": run.seed,
        "model": entry.model,
        "steps": max((step for step, _ in checkpoints_in(folder)), default=None),
        "scores": {key: value for key, value in scores.items() if isinstance(value, float)},
        "seconds": json.loads((folder / "trained.json").read_text())["seconds"],
        "processor_seconds": round(sum(clocks), 1),
        "started": len(clocks),
        "date": str(date.today()),
        "torch": torch.__version__,
        "spacy": spacy.__version__,
    }


def scores_of(model: Path) -> dict[str, Any]:
    """Return the scores on the development set that a trained pipeline has in its metadata.

    Scores of structures are left out if no component annotates them, because spaCy stores 0 for
    scores that a scorer does not return.
    """
    meta = json.loads((model / "meta.json").read_text(encoding="utf8"))
    components = load_config(model / "config.cfg", interpolate=False)["components"].values()
    annotates = [part["annotate"] != "none" for part in components if "annotate" in part]
    return {
        name: value
        for name, value in meta["performance"].items()
        if any(annotates) or not name.startswith(("latent_align", "latent_uas", "rationale_"))
    }


def evaluated(model: Path, corpora: Sequence[str]) -> dict[str, Any]:
    """Return the scores of a trained pipeline by ``spacy latent evaluate scores``."""
    metrics = model.parent / "scores.json"
    command = [sys.executable, "-m", "spacy_latent", "evaluate", "scores"]
    command += [str(model), *corpora]
    command += ["--metrics", str(metrics)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        raise LatentError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    scores: dict[str, Any] = json.loads(metrics.read_text(encoding="utf8"))
    return scores


def work(runs: Iterable[Run]) -> list[str]:
    """Work on runs until all have ended.

    Returns:
        A message for each run that failed.
    """
    failed: dict[Run, str] = {}

    def keep(run: Run) -> Scores:
        try:
            scores: Scores = run.keep()["scores"]
        except Exception as error:
            failed[run] = f"{run.entry.config}, seed {run.seed}: {error}"
            raise
        return {"score": 0.0, **scores}

    # First take the runs that no worker has. Then wait for the runs of other workers, and take over
    # a run if its worker has died.
    for wait in (False, True):
        for run in runs:
            if run.row() is not None:
                shutil.rmtree(run.folder, ignore_errors=True)
                continue
            study = run.folder.with_name(f"{run.folder.name}.study")
            sweep([run.cell()], study, lambda cell, number, run=run: keep(run), wait=wait)
            if wait and run.row() is None:
                said = f"{run.entry.config}, seed {run.seed} failed before, or its result is gone"
                failed.setdefault(run, said)
                failed[run] += f"\nTo try again, remove {study}"
    return list(failed.values())


# ---------------------------------------------------------------- the table


def value_of(values: Sequence[float]) -> str:
    """Format each value in percent, followed by mean, minimum and maximum if there are several."""
    if not values:
        return ""
    shares = [100 * value for value in values]
    each = ", ".join(f"{share:.1f}" for share in shares)
    if len(shares) == 1:
        return each
    return f"{each}; mean {mean(shares):.1f} ({min(shares):.1f} to {max(shares):.1f})"


def values_of(group: Group, runs: dict[int, dict[str, Any]]) -> list[str]:
    """Return a cell for each figure of the group."""
    return [
        value_of([run["scores"][key] for run in runs.values() if key in run["scores"]])
        for key in group.figures.values()
    ]


def control_of(group: Group, entry: Entry, found: Results) -> str:
    """Format the name of an entry's control, and the control's mean of the first figure of both.

    The cell is empty for an entry without a control.
    """
    if not entry.control:
        return ""
    (control,) = (other for other in group.entries if other.name == entry.control)
    name = f"`{control.config}`{control.name.removeprefix(control.config)}"
    for key in group.figures.values():
        own, of_control = (
            [run["scores"][key] for run in found[one].values() if key in run["scores"]]
            for one in (entry, control)
        )
        if own and of_control:
            return f"{name}: {100 * mean(of_control):.1f}"
    return name


def table(group: Group, found: Results) -> list[str]:
    others = {
        "control": {entry: control_of(group, entry, found) for entry in group.entries},
        "published, other data": {entry: entry.published for entry in group.entries},
    }
    # Columns without any cell are left out, since most groups have neither.
    others = {name: cells for name, cells in others.items() if any(cells.values())}
    columns = [*group.figures, *others]
    lines = [
        f"| config | seeds | {' | '.join(columns)} | updates | minutes of a processor |",
        f"|---|---|{'---|' * len(columns)}---:|---:|",
    ]
    for entry, runs in found.items():
        if not runs:
            continue
        cells = values_of(group, runs) + [column[entry] for column in others.values()]
        minutes = mean(run["processor_seconds"] for run in runs.values()) / 60
        seeds = ", ".join(map(str, runs))
        name = f"`{entry.config}`" + (f": {entry.what}" if entry.what else "")
        steps = sorted({row["steps"] for row in runs.values() if row["steps"] is not None})
        updates = " to ".join(f"{step:,}" for step in dict.fromkeys([*steps[:1], *steps[-1:]]))
        row = [name, seeds, *cells, updates, f"{minutes:.1f}"]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def measured(group: Group, raw: Path) -> Results:
    """Return the raw results of all entries of a group with their present settings."""
    return {entry: rows_of(entry, raw) for entry in group.entries}


def plot(name: str, group: Group, found: Results) -> list[str]:
    """Draw the first figure of a group, and return the lines that show the drawing.

    There is no drawing if fewer than two entries have the figure.
    """
    figure, key = next(iter(group.figures.items()))
    shares = {
        entry: [run["scores"][key] for run in runs.values() if key in run["scores"]]
        for entry, runs in found.items()
    }
    rows = {entry.name: values for entry, values in shares.items() if values}
    controls = {entry.name for entry in found if entry.is_control and entry.name in rows}
    if len(rows) < 2:
        return []
    tasks = {entry.name: task_of(entry) for entry in found}
    return [write_drawing(f"learning_{name}", group.title, figure, rows, controls, tasks), ""]


def heading(found: Results) -> str:
    rows = [row for runs in found.values() for row in runs.values()]
    dates = sorted({row["date"] for row in rows})
    when = f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)
    made = [", ".join(sorted({row[name] for row in rows})) for name in ("torch", "spacy")]
    on = " and ".join(sorted({row.get("device", "one thread") for row in rows}))
    return f"{when}, torch {made[0]}, spaCy {made[1]}, {on}. Figures in percent."


# Exit status of a program that leaves runs for another time.
LEFT = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`trained`."""
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--runs", type=Path, default=RUNS, help="where what is under way is kept")
    parser.add_argument("--raw", type=Path, default=RAW, help="where results are kept")
    parser.add_argument("--gpu", action="store_true", help="train on the first GPU")
    parser.add_argument("--minutes", type=float, default=math.inf, help="leave off after so long")
    add_encoder_option(parser)


def add_encoder_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for configs that have :data:`ENCODER` among their paths."""
    parser.add_argument(
        f"--{ENCODER}",
        type=directory,
        help="where the pre-trained encoder lies that configs name; else it is fetched by its name",
    )


def directory(path: str) -> Path:
    found = Path(path).expanduser().resolve()
    if not found.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is no directory")
    return found


def trained(
    wanted: Sequence[tuple[Group, Sequence[Entry]]], given: argparse.Namespace
) -> str | int | None:
    """Make the missing corpora, and train all entries without results, seed after seed.

    Returns:
        The argument of ``sys.exit`` for the program, once it has written its tables.
    """
    folder, end = given.runs.resolve(), time.monotonic() + 60 * given.minutes
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        Run(entry, seed, folder, given.raw, given.gpu, end, given.encoder)
        for seed in given.seeds
        for _, entries in wanted
        for entry in entries
    ]
    missing = {run.entry for run in runs if run.row() is None}
    corpora = [
        command for group, entries in wanted if missing & set(entries) for command in group.corpora
    ]
    # The lock keeps two workers from making the same corpora.
    with locked(folder / "corpora.lock"):
        for command in dict.fromkeys(corpora):
            project = [sys.executable, "-m", "spacy", "project", "run", command, str(ROOT)]
            subprocess.run(project, check=True)
    try:
        failed = work(runs)
    except TimeIsUp:
        print("Time is up. The same line goes on with what is left.", file=sys.stderr)
        return LEFT
    return "\n".join(failed) or None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--only", nargs="+", help="configs, without their ending")
    add_options(parser)
    given = parser.parse_args()
    group = GROUPS[given.group]
    entries = [entry for entry in group.entries if given.only is None or entry.config in given.only]
    ended = trained([(group, entries)], given)
    found = measured(group, given.raw)
    if not any(found.values()):
        sys.exit(ended or f"There are no results of {given.group} with the configs as they are.")
    lines = [heading(found), "", *plot(given.group, group, found), *table(group, found)]
    write_section(f"learning_{given.group}", group.title, lines)
    print("\n".join(lines))
    sys.exit(ended)


if __name__ == "__main__":
    main()
