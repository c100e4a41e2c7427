"""Files that commands write: whole, also where somebody interrupts them."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from spacy_latent.cli.failure import fail


@contextmanager
def finished_first() -> Iterator[None]:
    """What is written inside is written to its end: an interrupt (Ctrl+C) counts afterwards."""
    if threading.current_thread() is not threading.main_thread():
        # Interrupts reach the main thread alone.
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


def check_output(path: Path | None) -> None:
    """End the command where no file of this name can be written, before the work that it is for.
    None: nothing is asked for. Folders that are missing are made later."""
    if path is None:
        return
    if path.is_dir():
        fail(f"{path} is a folder", "Give the name of a file in it, or of another one.")
    above = next((one for one in path.parents if one.exists()), path)
    if not above.is_dir():
        fail(f"{path} cannot be written: {above} is a file", "Give another place.")
    if not os.access(path if path.exists() else above, os.W_OK):
        fail(f"{path} cannot be written: there is no permission to", "Give another place.")


def write_page(path: Path, page: str) -> None:
    """page: HTML, SVG or other text. Directories that are missing are made. What cannot be written
    ends the command."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with finished_first():
            path.write_text(page, encoding="utf8")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", "Give another place.")


def write_json(path: Path, figures: object) -> None:
    """As :func:`write_page`."""
    import srsly

    write_page(path, srsly.json_dumps(figures, indent=2))


def print_document(text: str) -> None:
    """Write to standard output what is a file where that is redirected, as files are written: in
    UTF-8, whatever the encoding of a terminal is."""
    typer.echo(text.encode("utf8"), nl=False)


def end_quickly() -> None:
    """Let Python end without looking once more at each of the half a million objects of spaCy and
    torch, in search of circles: that takes a second, with the terminal waiting."""
    atexit.register(gc.freeze)
