"""Tables of the figures of ListOps in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spacy_latent.characters import columns
from spacy_latent.cli.messages import msg
from spacy_latent.listops.tables import Row, by_depth, by_operator, interval, overview, shown

# Width of a terminal in characters, and space between two columns of a table.
WIDTH = 100
SPACING = 2


def print_tables(figures: dict[str, Any]) -> None:
    """Print tables in percent: the first corpus with intervals and by operator, all by depth."""
    corpus = next(iter(figures["corpora"]))
    first = overview(figures, corpus)
    msg.divider(first.caption)
    lines = []
    for row in first.rows:
        lines.append(_cells(row))
        if row.own:
            ends = ("" if share is None else interval(share) for share in row.shares)
            lines.append(("  95 %", *ends))
    _print(("percent, of the best tree", *first.columns), lines)
    for measure in first.columns:
        msg.text(f"{measure}: {figures['meanings'][measure]}")
    for table in [*by_depth(figures), *by_operator(figures, corpus)]:
        msg.divider(table.caption)
        above = [(name, *cells) for name, cells in table.above]
        _print(("percent", *table.columns), [*above, *map(_cells, table.rows)])


def _cells(row: Row) -> tuple[str, ...]:
    shares = ("" if share is None else shown(share[0]) for share in row.shares)
    return f"  {row.name}" if row.below else row.name, *shares


def _print(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in pieces that fit into a terminal, each with the names of the rows."""
    widths = [max(map(columns, column)) for column in zip(header, *rows)]
    pieces: list[list[int]] = [[]]
    for place in range(1, len(header)):
        taken = widths[0] + sum(SPACING + widths[i] for i in (*pieces[-1], place))
        if pieces[-1] and taken > WIDTH:
            pieces.append([])
        pieces[-1].append(place)
    for piece in pieces:
        chosen = [[row[0], *(row[i] for i in piece)] for row in rows]
        msg.table(
            chosen,
            header=[header[0], *(header[i] for i in piece)],
            spacing=SPACING,
            max_col=WIDTH,
        )
