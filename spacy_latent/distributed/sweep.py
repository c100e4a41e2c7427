"""Training of a config with each setting of a grid and several seeds, by any number of workers.

Workers share one file, the journal of an Optuna study, and nothing else. Each worker takes a cell
that no other worker has, trains it and records the scores. Workers may therefore be started at any
time, on any number of machines.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import srsly

from spacy_latent.distributed.directories import replace_file
from spacy_latent.distributed.sweep_study import (
    BEAT,
    claim,
    close,
    heartbeat,
    import_optuna,
    is_alive,
    keeps_cell,
    note,
    open_study,
)
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from optuna import Study

SEED = "training.seed"
Scores = dict[str, float]


@dataclass(frozen=True)
class Cell:
    """One training of a sweep.

    Attributes:
        settings: Values by the names of the grid.
    """

    settings: dict[str, str]
    seed: int
    overrides: dict[str, Any]

    @property
    def name(self) -> str:
        """Settings and seed as JSON, which identifies the cell in the journal."""
        return json.dumps([self.settings, self.seed], sort_keys=True)


def read_grid(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the overrides of the config, by setting and by the name of each of its values.

    Args:
        path: A file of JSON or YAML: an object of settings. A setting that is a list has values of
            the config's setting of that name. A setting that is an object has names, each with
            overrides that belong together.

    Raises:
        LatentError: If the file has no such object or has seeds, or if two settings of the grid
            change the same setting of the config.
    """
    expected = (
        'Expected an object such as {"training.dropout": [0.1, 0.2], "trees": {"all": '
        '{"components.textcat.model.x": 1}, "none": {}}}.'
    )
    try:
        read = srsly.read_yaml(path)
    except Exception as error:
        raise LatentError(f"The grid {path} cannot be read: {error}. {expected}") from error
    if not isinstance(read, dict) or not read:
        raise LatentError(f"The grid {path} is {read!r}. {expected}")
    grid: dict[str, dict[str, dict[str, Any]]] = {}
    for setting, values in read.items():
        _check_plain(path, values)
        if isinstance(setting, str) and isinstance(values, list) and values:
            names = [_as_text(value) for value in values]
            if len(set(names)) < len(names):
                raise LatentError(
                    f"{path}: {setting!r} is {values!r}, in which two values are equal in a "
                    "config. Give each value once."
                )
            grid[setting] = {name: {setting: value} for name, value in zip(names, values)}
        elif isinstance(setting, str) and _are_named(values):
            grid[setting] = values
        else:
            raise LatentError(f"{path}: {setting!r} is {values!r}. {expected}")
    _check_changes(path, grid)
    return grid


def _as_text(value: Any) -> str:
    """Return a value as it is written on the command line of ``spacy train``."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_plain(path: Path, values: Any) -> None:
    """Raise LatentError for a value that no config has: YAML reads 2024-01-01 as a date."""
    try:
        json.dumps(values)
    except TypeError as error:
        raise LatentError(
            f"{path}: {values!r} has a value that a config cannot hold ({error}). Put it into "
            "quotation marks."
        ) from error


def _are_named(values: Any) -> bool:
    """Return whether the values are names, each with overrides of the config."""
    return (
        isinstance(values, dict)
        and bool(values)
        and all(isinstance(v, dict) and all(isinstance(n, str) for n in v) for v in values.values())
    )


def _check_changes(path: Path, grid: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Raise LatentError if two settings of the grid change the same setting of the config.

    One of them would be a column of the table without any effect.
    """
    changed_by: dict[str, str] = {}
    for setting, values in grid.items():
        for name in dict.fromkeys(name for each in values.values() for name in each):
            if name == SEED:
                raise LatentError(
                    f"{path}: {setting!r} sets {SEED}, which the sweep sets to 0, 1, ... for "
                    "each combination. Remove it from the grid, and give --seeds, the number of "
                    "trainings."
                )
            if name in changed_by:
                raise LatentError(
                    f"{path}: {changed_by[name]!r} and {setting!r} both set {name}. Remove it "
                    "from one of them."
                )
            changed_by[name] = setting


def cells_of(grid: Mapping[str, Mapping[str, Mapping[str, Any]]], seeds: int) -> list[Cell]:
    """Return all combinations of the grid, with the first seed of all before the second of any."""
    found = []
    for seed in range(seeds):
        for names in product(*grid.values()):
            overrides: dict[str, Any] = {SEED: seed}
            for values, name in zip(grid.values(), names):
                overrides.update(values[name])
            found.append(Cell(dict(zip(grid, names)), seed, overrides))
    return found


def sweep(
    cells: Sequence[Cell],
    study: Path,
    train: Callable[[Cell, int], Scores],
    *,
    identity: str = "",
    beat: float = BEAT,
    wait: bool = True,
    progress: Callable[[str], object] = lambda message: None,
) -> None:
    """Run a worker: train cells until all are done.

    Several workers may run at the same time with the same study. The cell of a worker that ends or
    dies is left to the other workers, including workers that are started later.

    Args:
        cells: Cells of the whole grid; the same for all workers.
        study: The journal.
        train: Function from a cell and the number of its trial to its scores, with "score" first.
            If it raises an error, the cell is recorded as failed, and is not tried again.
        identity: Digest of the training; a study with another one is refused.
        beat: Seconds between heartbeats. A worker without a heartbeat for six of these intervals
            counts as dead.
        wait: Whether to wait for cells of other workers, which are trained here if a worker dies.
    """
    optuna = import_optuna()
    state = optuna.trial.TrialState
    journal = open_study(study, identity, cells)
    alive = study.with_name(f"{study.name}.alive")
    alive.mkdir(exist_ok=True)
    with heartbeat(alive, beat) as worker:
        while True:
            trials = journal.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == state.RUNNING and not is_alive(alive, trial, worker, beat):
                    progress(f"Trial {trial.number} was left by its worker: it is run again")
                    close(journal, trial, state.FAIL)
            taken = {trial.user_attrs["cell"] for trial in trials if keeps_cell(trial)}
            free = [cell for cell in cells if cell.name not in taken]
            if not free:
                if not wait or not any(trial.state == state.RUNNING for trial in trials):
                    return
                time.sleep(min(beat, 1.0))
                continue
            mine = claim(journal, free[0], worker)
            if mine is None:
                continue
            progress(f"Trial {mine.number}: {free[0].name}")
            try:
                scores = train(free[0], mine.number)
            except Exception as error:
                progress(f"Trial {mine.number} failed: {error}")
                note(journal, mine, "error", f"{type(error).__name__}: {error}")
                close(journal, mine, state.FAIL)
                continue
            note(journal, mine, "scores", scores)
            close(journal, mine, state.COMPLETE, [scores["score"]])


# ---------------------------------------------------------------- trainings


def spacy_train(
    config: Path, output: Path, overrides: Mapping[str, Any], arguments: Sequence[str] = ()
) -> Callable[[Cell, int], Scores]:
    """Return a function that trains a cell with ``spacy train`` in a separate process.

    Args:
        output: Parent of the output directories, which have the numbers of the trials as names.
            Their ``log.txt`` has the output of the process.
        overrides: Overrides of the config for all cells.
        arguments: Further arguments of ``spacy train``.
    """

    def train(cell: Cell, number: int) -> Scores:
        folder = output / f"{number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "log.txt"
        command = [sys.executable, "-m", "spacy_latent.distributed.trial", str(os.getpid())]
        command += ["train", str(config), "--output", str(folder), *arguments]
        for name, value in {**overrides, **cell.overrides}.items():
            command += [f"--{name}", _as_text(value)]
        # The encoding of the output would depend on the locale on Windows.
        environment = {**os.environ, "PYTHONIOENCODING": "utf8"}
        with log.open("w", encoding="utf8") as file:
            done = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, check=False, env=environment
            )
        if done.returncode:
            said = log.read_text(encoding="utf8", errors="replace").strip().splitlines()[-3:]
            raise LatentError(
                f"spacy train ended with {done.returncode}: {' / '.join(said)}; see {log}"
            )
        return read_scores(folder / "model-best")

    return train


def read_scores(model: Path) -> Scores:
    """Return the numbers in a pipeline's meta.json, and "score", by which training selected it."""
    from spacy.util import load_config

    measured = srsly.read_json(model / "meta.json")["performance"]
    numbers = {k: float(v) for k, v in measured.items() if isinstance(v, (int, float))}
    weights = load_config(model / "config.cfg")["training"]["score_weights"]
    score = sum(numbers.get(name, 0.0) * (weight or 0.0) for name, weight in weights.items())
    return {"score": score, **numbers}


# ---------------------------------------------------------------- the table


def table(study: Study, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return a row for each setting.

    A row has "settings" and "scores", with the "mean" and the "deviation" of each score that all
    seeds have. Its "seeds", "failed" and "left" are the numbers of seeds that are done, have failed
    and remain. The deviation is the sample standard deviation, and None for one seed.
    """
    trials = {t.user_attrs["cell"]: t for t in study.get_trials() if keeps_cell(t)}
    rows: dict[str, dict[str, Any]] = {}
    measured: dict[str, list[Scores]] = {}
    for cell in cells:
        key = json.dumps(cell.settings)
        row = rows.setdefault(key, {"settings": cell.settings, "seeds": 0, "failed": 0, "left": 0})
        measured.setdefault(key, [])
        trial = trials.get(cell.name)
        if trial is None or not trial.state.is_finished():
            row["left"] += 1
        elif "error" in trial.user_attrs:
            row["failed"] += 1
        else:
            row["seeds"] += 1
            measured[key].append(trial.user_attrs["scores"])
    for key, row in rows.items():
        row["scores"] = {}
        for name in measured[key][0] if measured[key] else ():
            values = [scores[name] for scores in measured[key] if name in scores]
            if len(values) == row["seeds"]:
                deviation = statistics.stdev(values) if len(values) > 1 else None
                row["scores"][name] = {"mean": statistics.fmean(values), "deviation": deviation}
    return list(rows.values())


def tables_of(study: Path) -> tuple[Path, Path]:
    """Return the paths of a study's table, as JSON and as Markdown."""
    return study.with_suffix(".json"), study.with_suffix(".md")


def write_table(rows: Sequence[Mapping[str, Any]], study: Path) -> tuple[Path, Path]:
    """Write the table as JSON and as Markdown next to the study, and return the paths."""
    as_json, as_markdown = tables_of(study)
    replace_file(as_json, json.dumps(list(rows), indent=2) + "\n")
    replace_file(as_markdown, markdown(rows))
    return as_json, as_markdown


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of :func:`table` as a table in Markdown, without the speed."""
    settings = list(rows[0]["settings"])
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    names = [name for name in names if name != "speed"]
    header = [*settings, "seeds", *names]
    lines = [header, [":--"] * len(settings) + ["--:"] * (len(names) + 1)]
    for row in rows:
        count = str(row["seeds"])
        count += f", {row['failed']} failed" if row["failed"] else ""
        count += f", {row['left']} left" if row["left"] else ""
        shown = [_shown(row["scores"].get(name)) for name in names]
        values = [str(row["settings"][name]).replace("|", "\\|") for name in settings]
        lines.append([*values, count, *shown])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(score: Mapping[str, float | None] | None) -> str:
    if score is None:
        return ""
    deviation = score["deviation"]
    return f"{score['mean']:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")
