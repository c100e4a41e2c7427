"""Learning curves from the output of ``spacy train``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypedDict

import srsly

from spacy_latent.corpora.text_files import forgiving_lines
from spacy_latent.errors import LatentError

_NUMBER = r"-?\d+(?:\.\d+)?"


class Evaluation(TypedDict):
    """One evaluation of a training, with losses and scores by name, as printed."""

    step: int
    losses: dict[str, float]
    scores: dict[str, float]


def read_training_log(path: Path) -> list[Evaluation]:
    """Read the evaluations of a training, in order.

    Args:
        path: JSON lines of ``spacy.ConsoleLogger.v3`` (``output_file``), or a file with the table
            that ``spacy train`` prints. Names in the table may be truncated.

    Raises:
        LatentError: if the file does not exist or has no evaluations.
    """
    lines = forgiving_lines(path) if path.is_file() else []
    rows = _from_json(lines) or _from_table(lines)
    if not rows:
        problem = "holds no evaluations" if path.is_file() else "does not exist"
        raise LatentError(
            f"{path} {problem}. Give a file that 'spacy train' printed to, or the output_file of "
            "spacy.ConsoleLogger.v3."
        )
    return rows


def _from_json(lines: list[str]) -> list[Evaluation]:
    rows: list[Evaluation] = []
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            row = srsly.json_loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            losses = _numbers(row.get("losses") or {})
            scores = _numbers({**(row.get("scores") or {}), "score": row.get("score")})
            rows.append({"step": row["step"], "losses": losses, "scores": scores})
    return rows


def _numbers(values: dict[str, object]) -> dict[str, float]:
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _from_table(lines: list[str]) -> list[Evaluation]:
    rows: list[Evaluation] = []
    names: list[str] = []
    for line in lines:
        header = re.match(r"\s*E\s+#\s+(\S.*)$", line)
        if header:
            # Names contain single spaces only. Between columns there are at least two.
            names = [name.lower() for name in re.split(r"\s{2,}", header[1].strip())]
            rows = []
        cells = line.split()
        are_numbers = all(re.fullmatch(_NUMBER, cell) for cell in cells)
        if names and len(cells) == len(names) + 2 and are_numbers:
            row: Evaluation = {"step": int(float(cells[1])), "losses": {}, "scores": {}}
            for name, cell in zip(names, cells[2:]):
                group = row["losses"] if name.startswith("loss ") else row["scores"]
                group[name.removeprefix("loss ")] = float(cell)
            rows.append(row)
    return rows
