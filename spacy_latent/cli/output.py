"""Files that commands write: whole, also where somebody interrupts them."""

from __future__ import annotations

import atexit
import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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


def write_page(path: Path, page: str) -> None:
    """page: HTML, SVG or other text. Directories that are missing are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with finished_first():
        path.write_text(page, encoding="utf8")


def write_json(path: Path, figures: object) -> None:
    """As :func:`write_page`."""
    import srsly

    write_page(path, srsly.json_dumps(figures, indent=2))


def end_quickly() -> None:
    """Let Python end without looking once more at each of the half a million objects of spaCy and
    torch, in search of circles: that takes a second, with the terminal waiting."""
    atexit.register(gc.freeze)
