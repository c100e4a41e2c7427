"""Study of a sweep: the journal that its workers share, and their heartbeats.

Journals have no heartbeat. The heartbeat of a worker is the modification time of a file next to the
journal.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from spacy_latent.distributed.sweep import Cell

STUDY = "sweep"
# Seconds between heartbeats, and the number of heartbeats that may be missed.
BEAT = 10.0
MISSED = 6
# Attributes of a trial in the journal that are not settings.
NOTES = ("cell", "worker", "token", "error", "scores")
# Base of the error that newer versions of Optuna have for a change of a trial that was closed.
CLOSED = RuntimeError


def open_study(path: Path, identity: str, cells: Sequence[Cell]) -> Study:
    """Return the study in a journal, which is created if it does not exist.

    Raises:
        LatentError: If the study belongs to another sweep, or the file is not a journal.
    """
    optuna = import_optuna()
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
        raise LatentError(f"{path} is not the journal of a sweep. Give another file as --study.")
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
            f"The study {path} has another config, grid or number of seeds. Give the same ones "
            "to continue it, or another file as --study."
        )
    study.set_user_attr("of", ours)
    return study


def _is_of_journal(line: bytes) -> bool:
    try:
        return "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False


def import_optuna() -> Any:
    """Return the module ``optuna``, or raise an error that says how to install it."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise LatentError(
            "A sweep needs Optuna, which is not installed. Install it with pip install "
            "'spacy-latent[sweep]'."
        ) from error
    return optuna


def keeps_cell(trial: FrozenTrial) -> bool:
    """Return whether the cell of a trial is done, failed, or being trained."""
    if trial.state.is_finished():
        return trial.state.name == "COMPLETE" or "error" in trial.user_attrs
    return True


def claim(study: Study, cell: Cell, worker: str) -> FrozenTrial | None:
    """Record that this worker takes a cell.

    All workers read the records in the same order, and the first record wins.

    Returns:
        The trial, or None if another worker was first.
    """
    optuna = import_optuna()
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
        if trial.user_attrs["cell"] == cell.name and keeps_cell(trial)
    ]
    if at_it[0].user_attrs["token"] == token:
        return at_it[0]
    mine = next(trial for trial in at_it if trial.user_attrs["token"] == token)
    close(study, mine, optuna.trial.TrialState.FAIL)
    return None


def close(study: Study, trial: FrozenTrial, state: Any, values: list[float] | None = None) -> None:
    """Set the state of a trial, unless another worker that considered this one dead has set it."""
    with suppress(CLOSED):
        study._storage.set_trial_state_values(trial._trial_id, state=state, values=values)


def note(study: Study, trial: FrozenTrial, name: str, value: Any) -> None:
    """Store an attribute of a trial, unless the trial has been closed."""
    with suppress(CLOSED):
        study._storage.set_trial_user_attr(trial._trial_id, name, value)


@contextmanager
def heartbeat(folder: Path, beat: float) -> Iterator[str]:
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


def is_alive(folder: Path, trial: FrozenTrial, worker: str, beat: float) -> bool:
    """Return whether the worker of a trial is alive.

    Both files have the time of the file server, because the clocks of machines differ.
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
