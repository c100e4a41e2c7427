"""Scores of several evaluations side by side.

python -m spacy_latent.cli.compare metrics/latent.json metrics/baseline.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import srsly
import typer
from wasabi import msg

SPEED = "speed"


def comparison_rows(metrics: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each plain score that every evaluation has: in percent, and words per second."""
    shared = [key for key in metrics[0] if all(_is_number(m.get(key)) for m in metrics)]
    rows = []
    for key in sorted(shared, key=lambda key: (key == SPEED, key)):
        if key == SPEED:
            row = ("words/s", *(f"{m[key]:,.0f}" for m in metrics))
        else:
            row = (key, *(f"{100 * m[key]:.1f}" for m in metrics))
        rows.append(row)
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def main(files: list[Path]) -> None:
    """Print the scores in FILES, as 'spacy evaluate --output' writes them, side by side."""
    for path in files:
        if not path.is_file():
            msg.fail(f"{path} does not exist. Make it with 'spacy evaluate --output'.", exits=1)
    metrics = [srsly.read_json(path) for path in files]
    header = ("", *(path.stem for path in files))
    aligns = ("l", *("r" for _ in files))
    msg.table(comparison_rows(metrics), header=header, aligns=aligns, divider=True)


if __name__ == "__main__":
    typer.run(main)
