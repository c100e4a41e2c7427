"""Further columns in the table that a logger of ``spacy train`` prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO, Any

HEADER = re.compile(r"\s*E\s+#\s")
RULE = re.compile(r"-+(\s+-+)+\s*$")
SPACING = "  "
NARROWEST = 6


class WidenedTable:
    """Stream that appends cells to the rows of spaCy's table, and passes on all other text.

    The wrapped logger prints to it. Rows are recognised by their form: the header begins with "E"
    and "#", the row of an evaluation with its epoch and step. If a logger prints no table, nothing
    is added.

    Args:
        columns: titles, at most 13 characters each, as in spaCy's table.
    """

    def __init__(self, stream: IO[str], columns: Sequence[str]) -> None:
        self.stream = stream
        self.columns = [column.upper() for column in columns]
        self._row: re.Pattern[str] | None = None
        self._cells: list[str] = []
        self._rule_follows = False
        self._line = ""

    def expect_row(self, epoch: int, step: int, values: Sequence[float | None]) -> None:
        """Set the values for the next row, with None for missing values."""
        self._row = re.compile(rf"\s*{epoch}\s+{step}(\s|$)")
        self._cells = ["-" if value is None else f"{value:.2f}" for value in values]

    def write(self, text: str) -> int:
        """Write the complete lines with their cells, and hold back the rest."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self.stream.write(self._widened(line) + "\n")
        return len(text)

    def flush(self) -> None:
        """Write the line that was held back, without cells."""
        if self._line:
            self.stream.write(self._line)
            self._line = ""
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _widened(self, line: str) -> str:
        widths = [max(NARROWEST, len(column)) for column in self.columns]
        if self._rule_follows and RULE.match(line):
            self._rule_follows = False
            return _join(line, ["-" * width for width in widths])
        self._rule_follows = bool(HEADER.match(line))
        if self._rule_follows:
            return _join(line, [f"{c:<{width}}" for c, width in zip(self.columns, widths)])
        if self._row is not None and self._row.match(line):
            self._row = None
            return _join(line, [f"{c:>{width}}" for c, width in zip(self._cells, widths)])
        return line


def _join(line: str, cells: Sequence[str]) -> str:
    return SPACING.join([line, *cells])
