"""Directories and files that are written completely or not at all, even if a process is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from uuid import uuid4

NEW, OLD = ".new", ".old"


def replace_directory(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary directory next to ``path``, then replace ``path`` by it.

    If that fails, for example on a full disk, the old directory stays. A reader between the two
    renames finds no directory for an instant.
    """
    made, before = _sibling(path, NEW), _sibling(path, OLD)
    finish_replacing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(made)
        _synchronize(made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    if path.exists():
        os.replace(path, before)
    os.replace(made, path)
    shutil.rmtree(before, ignore_errors=True)
    _synchronize_entries(path.parent)


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file by one with this content; of several concurrent writers, the last one wins.

    If that fails, for example on a full disk, the old file stays.
    """
    made = path.with_name(f".{uuid4().hex}.tmp")
    try:
        if isinstance(content, str):
            made.write_text(content, encoding="utf8")
        else:
            made.write_bytes(content)
        if path.exists():
            shutil.copymode(path, made)
        os.replace(made, path)
    except BaseException:
        with suppress(OSError):
            made.unlink(missing_ok=True)
        raise


def replace_entries(
    path: Path,
    write: Callable[[Path], object],
    during: AbstractContextManager[object] | None = None,
) -> None:
    """Let ``write`` fill a temporary directory in ``path``, then move its entries up one by one.

    Entries with the same names are replaced, and others stay. If ``write`` fails, for example on a
    full disk, all old entries stay. Concurrent writers wait for each other, and the last one wins.

    Args:
        during: context of the writing, which begins after the wait for another writer.
    """
    made = path / NEW
    path.mkdir(parents=True, exist_ok=True)
    with _locked_directory(path), during or nullcontext():
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        try:
            write(made)
            for entry in made.iterdir():
                before = path / entry.name
                if before.is_dir() and not before.is_symlink():
                    shutil.rmtree(before)
                os.replace(entry, before)
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file, which is created.

    Some network disks and Windows have no such locks; several processes may then hold it. The lock
    of a process that is killed is released.
    """
    with path.open("ab") as file:
        _lock(file.fileno())
        yield


@contextmanager
def _locked_directory(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a directory, unless this process may only write to it."""
    handle = None
    # Windows cannot open directories.
    if hasattr(os, "O_DIRECTORY"):
        with suppress(PermissionError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if handle is not None:
            _lock(handle)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int) -> None:
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)


def finish_replacing(path: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote ``path``."""
    made, before = _sibling(path, NEW), _sibling(path, OLD)
    if before.exists() and not path.exists():
        os.replace(before, path)
    for rest in (made, before):
        shutil.rmtree(rest, ignore_errors=True)


def _sibling(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}{ending}")


def _synchronize(folder: Path) -> None:
    """Write the files to the disk, before a directory is renamed."""
    if not hasattr(os, "O_DIRECTORY"):
        # Windows cannot synchronize files that are open for reading.
        return
    for place, _, files in os.walk(folder):
        for file in files:
            with open(os.path.join(place, file), "rb") as opened:
                os.fsync(opened.fileno())
        _synchronize_entries(Path(place))


def _synchronize_entries(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
