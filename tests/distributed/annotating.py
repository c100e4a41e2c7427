"""A small pipeline and small corpora for tests of annotation, with or without Ray."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import spacy

from spacy_latent.distributed.parquet import Row, read_rows
from tests.distributed import marking_component
from tests.distributed.marking_component import DEATHS, die_while_writing

CODE = Path(marking_component.__file__)


def save_model(path: Path) -> Path:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("marking")
    nlp.to_disk(path)
    return path


def save_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def texts(count: int = 40) -> list[str]:
    return [f"This is text {number}. It is short." for number in range(count)]


def rows_of(output: Path) -> list[Row]:
    return list(read_rows(output, spacy.blank("en").vocab))


def check_whole(output: Path, given: list[str]) -> list[Row]:
    """Check that the output has each text once and in order, and no temporary files."""
    rows = rows_of(output)
    assert [row.text for row in rows] == given
    assert max(Counter(row.id for row in rows).values()) == 1
    assert [path.name for path in output.iterdir() if path.name.startswith(".")] == []
    return rows


def prepare(deaths: Path | None = None, when: str = "") -> None:
    """Prepare a process that annotates.

    Args:
        deaths: Directory that records deaths, so that only one process dies. If None, each process
            has its own directory, so that all of them die.
        when: The moment of the death.
    """
    if deaths is None:
        deaths = Path(tempfile.mkdtemp())
    os.environ[DEATHS] = str(deaths)
    if when not in ("", "while it predicts"):
        die_while_writing(when == "while it writes")
