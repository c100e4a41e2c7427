"""Messages, errors and tables in the terminal, for all characters in names and labels."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NoReturn

from wasabi import Printer

from spacy_latent.characters import columns, escaped, escaped_lines
from spacy_latent.errors import LatentError

# The defaults of wasabi.
WIDEST, SPACING = 30, 3


class Messages(Printer):
    """Printer of wasabi that escapes control characters.

    Columns are as wide as the terminal displays their cells. Without colours if the environment has
    NO_COLOR, which wasabi does not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.show_color = self.show_color and not os.environ.get("NO_COLOR")

    def text(self, title: Any = "", text: Any = "", *more: Any, **options: Any) -> Any:
        shown = escaped_lines(str(title)), escaped_lines(str(text))
        return super().text(*shown, *more, **options)

    def divider(self, text: str = "", *more: Any, **options: Any) -> Any:
        return super().divider(escaped(text), *more, **options)

    def table(self, data: Any, **settings: Any) -> None:
        """Print rows of texts as a table.

        Args:
            settings: ``header``, a row above the others, with a line below it. ``aligns``, "l" or
                "r" for each column; by default, only the first is "l". ``max_col``, the greatest
                width of a column; wider cells exceed it. ``spacing``, the space between columns.
        """
        rows = [[escaped(str(cell)) for cell in row] for row in data]
        header = [escaped(str(cell)) for cell in settings.get("header") or ()]
        every = [header, *rows] if header else rows
        widest = settings.get("max_col", WIDEST)
        widths = [min(max(map(columns, column)), widest) for column in zip(*every)]
        if header:
            every.insert(1, ["-" * width for width in widths])
        aligns = settings.get("aligns") or "l" + "r" * (len(widths) - 1)
        space = " " * settings.get("spacing", SPACING)
        shown = (space.join(map(_padded, row, widths, aligns)) for row in every)
        print("", *shown, "", sep="\n")


def _padded(cell: str, width: int, align: str) -> str:
    gap = " " * (width - columns(cell))
    return gap + cell if align == "r" else cell + gap


msg = Messages()


def fail(title: str, text: str = "") -> NoReturn:
    """Print an error on standard error, with advice as text, and exit with code 1."""
    with redirect_stdout(sys.stderr):
        msg.fail(title, text, spaced=True)
    raise SystemExit(1)


def warn(title: str, text: str = "") -> None:
    """Print a warning on standard error, with advice as text."""
    with redirect_stdout(sys.stderr):
        msg.warn(title, text)


@contextmanager
def failing(title: str, *others: type[Exception]) -> Iterator[None]:
    """Exit with the message of a LatentError, or of one of the other errors."""
    refused: tuple[type[Exception], ...] = (LatentError, *others)
    try:
        yield
    except refused as error:
        fail(title, str(error))
