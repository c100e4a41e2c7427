"""Messages and tables in the terminal, whatever characters names and labels have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wasabi import Printer

from spacy_latent.characters import columns, escaped, escaped_lines

# Wider cells stand out of their column.
WIDEST = 30
SPACING = "   "


class Messages(Printer):
    """wasabi's, with escapes for characters that would steer a terminal, and columns that are as
    wide as a terminal draws what is in them."""

    def text(self, title: Any = "", text: Any = "", *more: Any, **options: Any) -> Any:
        shown = escaped_lines(str(title)), escaped_lines(str(text))
        return super().text(*shown, *more, **options)

    def divider(self, text: str = "", *more: Any, **options: Any) -> Any:
        return super().divider(escaped(text), *more, **options)

    def table(self, data: Any, **settings: Any) -> None:
        """Rows of texts. header: above them. aligns: "l" or "r" for each column; to the left if
        not given. divider: whether there is a line below the header."""
        rows = [[escaped(str(cell)) for cell in row] for row in data]
        header = [escaped(str(cell)) for cell in settings.get("header") or ()]
        every = [header, *rows] if header else rows
        widths = [min(max(map(columns, column)), WIDEST) for column in zip(*every)]
        if header and settings.get("divider"):
            every.insert(1, ["-" * width for width in widths])
        aligns = settings.get("aligns") or "l" * len(widths)
        print("", *(_row(row, widths, aligns) for row in every), "", sep="\n")


def _row(cells: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> str:
    padded = []
    for cell, width, align in zip(cells, widths, aligns):
        gap = " " * (width - columns(cell))
        padded.append(gap + cell if align == "r" else cell + gap)
    return SPACING.join(padded)


msg = Messages()

__all__ = ["Messages", "msg"]
