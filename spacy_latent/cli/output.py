"""Files that commands write completely, even if they are interrupted."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from spacy_latent.cli.messages import fail


@contextmanager
def finished_first() -> Iterator[None]:
    """Delay an interrupt (Ctrl+C) inside the context until the end of it."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread receives interrupts.
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(None))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGINT)


def check_output(path: Path | None, *read: str | Path) -> None:
    """Exit with an error if this file cannot be written; directories may be missing.

    Args:
        read: files that the command reads, and so may not replace.
    """
    if path is None:
        return
    if str(path) == "-":
        fail("The output is -, and this command writes only to files", "Give the name of a file.")
    if any(path.is_file() and Path(one).is_file() and path.samefile(one) for one in read):
        fail(f"{path} is read, and would be overwritten", "Give another name.")
    if path.is_dir():
        fail(f"{path} is a folder", "Give a file, which may be in this folder.")
    above = next((one for one in path.parents if one.exists()), path)
    if not above.is_dir():
        fail(f"{path} cannot be written: {above} is a file", "Give another place.")
    if not os.access(path if path.exists() else above, os.W_OK):
        fail(f"{path} cannot be written: permission denied", "Give another place.")


def write_page(path: Path, page: str | bytes) -> None:
    """Write a file, or exit with an error and leave it as it was; missing directories are made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with finished_first():
            _write(path, page)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", "Give another place.")


def _write(path: Path, content: str | bytes) -> None:
    from spacy_latent.distributed.directories import replace_file

    # Pipes and devices, such as /dev/stdout, cannot be replaced.
    if not path.exists() or path.is_file():
        # A directory may not be writable although the file is.
        with suppress(PermissionError):
            # A link stays a link.
            replace_file(Path(os.path.realpath(path)), content)
            return
    if isinstance(content, str):
        path.write_text(content, encoding="utf8")
    else:
        path.write_bytes(content)


def write_json(path: Path, figures: object) -> None:
    """Write figures as JSON, as :func:`write_page` does; NaN and infinity become null."""
    import srsly

    from spacy_latent.analysis.figures import plain

    write_page(path, srsly.json_dumps(plain(figures), indent=2))


def print_document(text: str) -> None:
    """Write a document to standard output in UTF-8, whatever the encoding of the terminal is.

    Files are written in UTF-8 as well, so that redirected output is the same.
    """
    typer.echo(text.encode("utf8"), nl=False)


def end_quickly() -> None:
    """Let Python exit without a last collection of spaCy's and torch's objects, a second."""
    atexit.register(gc.freeze)
