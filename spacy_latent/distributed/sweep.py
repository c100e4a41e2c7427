"""Training of a config with each setting of a grid and several seeds, by any number of workers.

Workers share one file, the journal of an Optuna study, and nothing else. Each worker takes a cell
that no other worker has, trains it and records the scores. Workers may therefore be started at any
time, on any number of machines. Journals have no heartbeat. The heartbeat of a worker is the
modification time of a file next to the journal.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import srsly

from spacy_latent.distributed.directories import replace_file
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

STUDY = "sweep"
# Seconds between heartbeats, and the number of heartbeats that may be missed.
BEAT = 10.0
MISSED = 6
SEED = "training.seed"
# Attributes of a trial in the journal that are not settings.
NOTES = ("cell", "worker", "token", "error", "scores")
Scores = dict[str, float]


@dataclass(frozen=True)
class Cell:
    """One training of a sweep.

    Attributes:
        settings: Values by the names of the grid.
        overrides: Overrides of the config.
    """

    settings: dict[str, str]
    seed: int
    overrides: dict[str, Any]

    @property
    def name(self) -> str:
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
        if isinstance(setting, str) and isinstance(values, list) and values:
            grid[setting] = {
                value if isinstance(value, str) else json.dumps(value): {setting: value}
                for value in values
            }
        elif isinstance(setting, str) and _are_named(values):
            grid[setting] = values
        else:
            raise LatentError(f"{path}: {setting!r} is {values!r}. {expected}")
    _check_changes(path, grid)
    return grid


def _are_named(values: Any) -> bool:
    """Return whether the values are names, each with overrides of the config."""
    return (
        isinstance(values, dict)
        and bool(values)
        and all(isinstance(v, dict) and all(isinstance(n, str) for n in v) for v in values.values())
    )


def _check_changes(path: Path, grid: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Raise LatentError if two settings of the grid change the same setting of the config.

    One of them would otherwise be a column of the table without any effect.
    """
    changed_by: dict[str, str] = {}
    for setting, values in grid.items():
        for name in dict.fromkeys(name for each in values.values() for name in each):
            if name == SEED:
                raise LatentError(
                    f"{path}: {setting!r} sets {SEED}, which is 0, 1, ... for the trainings of "
                    "each setting. Take it out of the grid, and give --seeds, their number."
                )
            if name in changed_by:
                raise LatentError(
                    f"{path}: {changed_by[name]!r} and {setting!r} both set {name}. Leave it to "
                    "one of them."
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

    Several workers may run at the same time with the same study.

    Args:
        cells: Cells of the whole grid; the same for all workers.
        study: The journal. A worker that ends, is killed, or whose machine is lost, leaves its cell
            to the other workers, including workers that are started later.
        train: Function from a cell and the number of its trial to its scores, with "score" first.
            If it raises an error, the cell is recorded as failed, with the error, and is not tried
            again.
        identity: Identity of the training; a study with another identity is refused.
        beat: Seconds between heartbeats. A worker without a heartbeat for six of these intervals
            counts as dead.
        wait: Wait for cells of other workers, which may die.
        progress: Called with messages.
    """
    optuna = _optuna()
    state = optuna.trial.TrialState
    journal = open_study(study, identity, cells)
    alive = study.with_name(f"{study.name}.alive")
    alive.mkdir(exist_ok=True)
    with _heartbeat(alive, beat) as worker:
        while True:
            trials = journal.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == state.RUNNING and not _is_alive(alive, trial, worker, beat):
                    progress(f"Trial {trial.number} was left by its worker: it is run again")
                    _close(journal, trial, state.FAIL)
            taken = {trial.user_attrs["cell"] for trial in trials if _keeps_cell(trial)}
            free = [cell for cell in cells if cell.name not in taken]
            if not free:
                if not wait or not any(trial.state == state.RUNNING for trial in trials):
                    return
                time.sleep(min(beat, 1.0))
                continue
            mine = _claim(journal, free[0], worker)
            if mine is None:
                continue
            progress(f"Trial {mine.number}: {free[0].name}")
            try:
                scores = train(free[0], mine.number)
            except Exception as error:
                progress(f"Trial {mine.number} failed: {error}")
                _note(journal, mine, "error", f"{type(error).__name__}: {error}")
                _close(journal, mine, state.FAIL)
                continue
            _note(journal, mine, "scores", scores)
            _close(journal, mine, state.COMPLETE, [scores["score"]])


def open_study(path: Path, identity: str, cells: Sequence[Cell]) -> Study:
    """Return the study in a journal, which is created if it does not exist.

    Raises:
        LatentError: If the study is a study of something else, or the file is not a journal.
    """
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Optuna would append to any existing file.
        with path.open("ab+") as file:
            file.seek(0)
            first = file.readline()
    except OSError as error:
        raise LatentError(
            f"The study {path} cannot be written: {error.strerror}. Give another file."
        ) from error
    if first and not _is_of_journal(first):
        raise LatentError(f"{path} is no study of a sweep. Give another file as --study.")
    journal = optuna.storages.journal
    # The default lock creates a symbolic link, which needs a privilege on Windows.
    lock = journal.JournalFileOpenLock(str(path)) if os.name == "nt" else None
    backend = journal.JournalFileBackend(str(path), lock_obj=lock)
    study: Study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name=STUDY,
        direction="maximize",
        load_if_exists=True,
    )
    names = hashlib.sha256("".join(cell.name for cell in cells).encode()).hexdigest()[:16]
    ours = f"{identity} {names}"
    if study.user_attrs.get("of", ours) != ours:
        raise LatentError(
            f"The study {path} is of another config, grid or number of seeds. Give what it was "
            "begun with, to go on, or another file."
        )
    study.set_user_attr("of", ours)
    return study


def _is_of_journal(line: bytes) -> bool:
    try:
        return "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False


def _optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise LatentError(
            "A sweep needs Optuna, which is not installed. Install it with pip install "
            "'spacy-latent[sweep]'."
        ) from error
    return optuna


def _keeps_cell(trial: FrozenTrial) -> bool:
    """Return whether the cell of a trial is done, failed, or being trained."""
    if trial.state.is_finished():
        return trial.state.name == "COMPLETE" or "error" in trial.user_attrs
    return True


def _claim(study: Study, cell: Cell, worker: str) -> FrozenTrial | None:
    """Record that this worker takes a cell.

    All workers read the records in the same order, and the first record wins.

    Returns:
        The trial, or None if another worker was first.
    """
    optuna = _optuna()
    running = optuna.trial.TrialState.RUNNING
    token = uuid4().hex
    # In one line of the journal, so that no other worker reads an incomplete trial.
    attributes = {"cell": cell.name, "worker": worker, "token": token}
    for name, value in cell.settings.items():
        attributes[f"setting {name}" if name in NOTES else name] = value
    study.add_trial(optuna.trial.create_trial(state=running, user_attrs=attributes))
    at_it = [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs["cell"] == cell.name and _keeps_cell(trial)
    ]
    if at_it[0].user_attrs["token"] == token:
        return at_it[0]
    mine = next(trial for trial in at_it if trial.user_attrs["token"] == token)
    _close(study, mine, optuna.trial.TrialState.FAIL)
    return None


def _close(study: Study, trial: FrozenTrial, state: Any, values: list[float] | None = None) -> None:
    """Set the state of a trial, unless another worker that considered this one dead has set it."""
    with _unless_closed():
        study._storage.set_trial_state_values(trial._trial_id, state=state, values=values)


def _note(study: Study, trial: FrozenTrial, name: str, value: Any) -> None:
    with _unless_closed():
        study._storage.set_trial_user_attr(trial._trial_id, name, value)


@contextmanager
def _unless_closed() -> Iterator[None]:
    # Optuna's error is a subclass of this one, but older versions do not have it.
    with suppress(RuntimeError):
        yield


@contextmanager
def _heartbeat(folder: Path, beat: float) -> Iterator[str]:
    """Yield the name of this worker, whose file is touched regularly inside the context."""
    name = uuid4().hex
    path, stop = folder / name, threading.Event()
    path.touch()

    def touch() -> None:
        while not stop.wait(beat):
            # On a network disk a heartbeat may fail; the next one is enough.
            with suppress(OSError):
                path.touch()

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield name
    finally:
        stop.set()
        thread.join()
        path.unlink(missing_ok=True)


def _is_alive(folder: Path, trial: FrozenTrial, worker: str, beat: float) -> bool:
    """Return whether the worker of a trial is alive, by the clock of the file server.

    The clocks of machines differ.
    """
    if trial.user_attrs["worker"] == worker:
        return True
    ours = folder / worker
    ours.touch()
    try:
        last = (folder / trial.user_attrs["worker"]).stat().st_mtime
    except FileNotFoundError:
        return False
    return ours.stat().st_mtime - last < MISSED * beat


# ---------------------------------------------------------------- trainings


def spacy_train(
    config: Path, output: Path, overrides: Mapping[str, Any], arguments: Sequence[str] = ()
) -> Callable[[Cell, int], Scores]:
    """Return a function that trains a cell with ``spacy train`` in a separate process.

    The output directory has the number of the trial as its name. ``log.txt`` in it has the output
    of the process.

    Args:
        output: Parent of the output directories.
        overrides: Overrides of the config for all cells.
        arguments: Further arguments of ``spacy train``.
    """

    def train(cell: Cell, number: int) -> Scores:
        folder = output / f"{number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        settings: list[str] = []
        for name, value in {**overrides, **cell.overrides}.items():
            shown = value if isinstance(value, str) else json.dumps(value)
            settings += [f"--{name}", shown]
        command = [sys.executable, "-m", "spacy_latent.distributed.trial", str(os.getpid())]
        command += ["train", str(config), "--output", str(folder), *arguments, *settings]
        with (folder / "log.txt").open("w", encoding="utf8") as log:
            # This also sets the encoding of the output, which on Windows depends on the locale.
            environment = {**os.environ, "PYTHONIOENCODING": "utf8"}
            done = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, check=False, env=environment
            )
        if done.returncode:
            said = (
                (folder / "log.txt")
                .read_text(encoding="utf8", errors="replace")
                .strip()
                .splitlines()[-3:]
            )
            raise LatentError(
                f"spacy train ended with {done.returncode}: {' / '.join(said)}; see "
                f"{folder / 'log.txt'}"
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

    Returns:
        Dicts with these keys: "settings"; "seeds", the number of seeds that are done; "failed" and
        "left", the numbers of seeds that have failed and that remain; and "scores", by name the
        "mean" and the "deviation" over the seeds. The deviation is the sample standard deviation,
        and None for one seed.
    """
    trials = {t.user_attrs["cell"]: t for t in study.get_trials() if _keeps_cell(t)}
    rows: dict[str, dict[str, Any]] = {}
    measured: dict[str, list[Scores]] = {}
    for cell in cells:
        key = json.dumps(cell.settings)
        row = rows.setdefault(key, {"settings": cell.settings, "seeds": 0, "failed": 0, "left": 0})
        found = measured.setdefault(key, [])
        trial = trials.get(cell.name)
        if trial is None or not trial.state.is_finished():
            row["left"] += 1
        elif "error" in trial.user_attrs:
            row["failed"] += 1
        else:
            row["seeds"] += 1
            found.append(trial.user_attrs["scores"])
    for key, row in rows.items():
        found = measured[key]
        row["scores"] = {
            name: {
                "mean": statistics.fmean(scores[name] for scores in found),
                "deviation": (
                    statistics.stdev(scores[name] for scores in found) if len(found) > 1 else None
                ),
            }
            for name in (found[0] if found else {})
            if all(name in scores for scores in found)
        }
    return list(rows.values())


def write_table(rows: Sequence[Mapping[str, Any]], study: Path) -> tuple[Path, Path]:
    """Write the table as JSON and as Markdown next to the study, and return the paths."""
    as_json, as_markdown = study.with_suffix(".json"), study.with_suffix(".md")
    replace_file(as_json, json.dumps(list(rows), indent=2) + "\n")
    replace_file(as_markdown, markdown(rows))
    return as_json, as_markdown


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
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
