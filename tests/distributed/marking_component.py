"""A component for tests of annotation. It writes a structure, and fails or dies at some words."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc

from spacy_latent.annotations import SpanStructure, write

# The variable of the directory that records each death, so that it happens only once.
DEATHS = "DEATHS_OF_TESTS"


@Language.component("marking")
def marking(doc: Doc) -> Doc:
    if "bad" in doc.text:
        raise ValueError("a bad text")
    if "kill" in doc.text:
        die("while it predicts")
    decoded = np.arange(0, len(doc), 2, dtype="int32")
    write(doc, "marking", [SpanStructure(0, len(doc), "Even", "items", decoded)] if doc else [])
    doc.cats = {"long": float(len(doc) > 3)}
    return doc


def die(when: str) -> None:
    """Kill this process, as the system does if memory runs out. A second call does nothing."""
    note = Path(os.environ[DEATHS], when)
    if not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def die_while_writing(half: bool) -> None:
    """Have this process die while it writes a file.

    Args:
        half: Die in the middle of the file. If False, die just before the file gets its name.
    """
    import pyarrow.parquet as pq

    if half:
        write_table = pq.ParquetWriter.write_table

        def dying(writer: Any, *arguments: Any, **options: Any) -> None:
            write_table(writer, *arguments, **options)
            die("while it writes")

        pq.ParquetWriter.write_table = dying  # type: ignore[method-assign]
        return
    replace = os.replace

    def dying_late(source: Any, target: Any) -> None:
        die("before the name")
        replace(source, target)

    os.replace = dying_late  # type: ignore[assignment]
