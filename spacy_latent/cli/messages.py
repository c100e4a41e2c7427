"""Messages and tables in the terminal, whatever characters names and labels have."""

from __future__ import annotations

from typing import Any

from wasabi import Printer

from spacy_latent.characters import columns, escaped, escaped_lines

# As wasabi has them.
WIDEST, SPACING = 30, 3


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
        not given. divider: whether there is a line below the header. max_col: cells that are wider
        stand out of their column. spacing: between columns."""
        rows = [[escaped(str(cell)) for cell in row] for row in data]
        header = [escaped(str(cell)) for cell in settings.get("header") or ()]
        every = [header, *rows] if header else rows
        widest = settings.get("max_col", WIDEST)
        widths = [min(max(map(columns, column)), widest) for column in zip(*every)]
        if header and settings.get("divider"):
            every.insert(1, ["-" * width for width in widths])
        aligns = settings.get("aligns") or "l" * len(widths)
        space = " " * settings.get("spacing", SPACING)
        shown = (space.join(map(_padded, row, widths, aligns)) for row in every)
        print("", *shown, "", sep="\n")


def _padded(cell: str, width: int, align: str) -> str:
    gap = " " * (width - columns(cell))
    return gap + cell if align == "r" else cell + gap


msg = Messages()

__all__ = ["Messages", "msg"]
