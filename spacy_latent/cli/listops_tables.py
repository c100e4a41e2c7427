"""The figures of :func:`spacy_latent.pipeline.listops_assessment.assess_listops` as tables, in the
terminal and on a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wasabi import msg

if TYPE_CHECKING:
    from spacy_latent.visualize.elements import Markup

# Columns of a terminal, and between two columns of a table.
WIDTH = 100
SPACING = 2


@dataclass(frozen=True)
class Row:
    """shares: of each column [share, low, high], None for an empty cell. own: of a model. below: it
    says more of the row above."""

    name: str
    shares: Sequence[Sequence[float] | None]
    own: bool = False
    below: bool = False


@dataclass(frozen=True)
class Table:
    """meaning: what its shares are, in words, where all of them are the same."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    meaning: str = ""


def overview(figures: dict[str, Any], corpus: str) -> Table:
    """All measures on all of a corpus."""
    from spacy_latent.pipeline.listops_assessment import ALL

    part = figures["corpora"][corpus]
    measures = _measures(figures)
    rows = []
    for row, found in _rows(part["by_depth"][ALL], measures):
        rows.append(Row(row.name, [found.get(m) for m in measures], row.own, row.below))
    low, high = part["tokens"]
    depths = part["depths"]
    deep = f"depth {depths[0]}" + (f" to {depths[-1]}" if len(depths) > 1 else "")
    told = f"{part['expressions']:,} expressions, {low} to {high} tokens, {deep}"
    return Table(f"{corpus}: {told}", measures, rows)


def by_depth(figures: dict[str, Any]) -> list[Table]:
    """A table for each measure, with a column for each corpus and each depth in it."""
    from spacy_latent.pipeline.listops_assessment import ALL

    columns, groups = [], []
    for corpus, part in figures["corpora"].items():
        depths = part["depths"]
        columns.append(corpus if len(depths) > 1 else f"{corpus} ({depths[0]})")
        groups.append(part["by_depth"][ALL])
        if len(depths) > 1:
            columns += [f"· {depth}" for depth in depths]
            groups += [part["by_depth"][str(depth)] for depth in depths]
    tables = []
    for measure in _measures(figures):
        listed: dict[tuple[str, bool, bool, str], list[Sequence[float] | None]] = {}
        for place, group in enumerate(groups):
            above = ""
            for row, found in _rows(group, [measure]):
                above = above if row.below else row.name
                cells = listed.setdefault(
                    (above, row.own, row.below, row.name), [None] * len(groups)
                )
                cells[place] = found.get(measure)
        rows = [
            Row(name, cells, own, below)
            for (_, own, below, name), cells in listed.items()
            if any(cell is not None for cell in cells)
        ]
        tables.append(Table(f"{measure}, by depth", columns, rows, figures["meanings"][measure]))
    return tables


def _measures(figures: dict[str, Any]) -> list[str]:
    """Those that there are of any model, in their order."""
    from spacy_latent.pipeline.listops_assessment import ALL, MEASURES

    there = {
        measure
        for part in figures["corpora"].values()
        for row in part["by_depth"][ALL]["models"].values()
        for measure in row
    }
    return [measure for measure in MEASURES if measure in there]


def _rows(
    group: dict[str, Any], measures: Sequence[str]
) -> Iterator[tuple[Row, dict[str, Sequence[float]]]]:
    """Names of the rows, with their shares by measure."""
    for name, found in group["models"].items():
        yield Row(name, (), own=True), found
        if "accuracy" not in measures:
            continue
        if "accuracy_as_predicted" in found:
            mixed = {"accuracy": found["accuracy_as_predicted"]}
            yield Row("with its mixture of trees", (), below=True), mixed
        for trees, share in found.get("accuracy_with", {}).items():
            yield Row(f"with {_of_trees(trees)}", (), below=True), {"accuracy": share}
    for name, found in group["controls"].items():
        yield Row(name, ()), found


def _of_trees(name: str) -> str:
    """What trees that are put under the composer are called."""
    return {"random tree": "random trees", "gold": "gold trees", "flat": "flat trees"}.get(
        name, name
    )


def shown(share: float) -> str:
    return f"{100 * share:.1f}" if math.isfinite(share) else "–"


def interval(share: Sequence[float]) -> str:
    """Of :func:`overview`, in little room; nothing where there is none."""
    ends = [f"{100 * end:.1f}".removesuffix(".0") for end in share[1:] if math.isfinite(end)]
    return "–".join(ends)


def print_tables(figures: dict[str, Any]) -> None:
    """In percent: the first corpus with intervals, and all of them by depth."""
    first = overview(figures, next(iter(figures["corpora"])))
    msg.divider(first.caption)
    lines = []
    for row in first.rows:
        lines.append((_indented(row), *(_cell(share) for share in row.shares)))
        if row.own:
            ends = ("" if share is None else interval(share) for share in row.shares)
            lines.append(("  95 %", *ends))
    _print(("percent, of the best tree", *first.columns), lines)
    for measure in first.columns:
        msg.text(f"{measure}: {figures['meanings'][measure]}")
    if sum(len(part["depths"]) for part in figures["corpora"].values()) < 2:
        return
    counts = [
        part["by_depth"][group]["expressions"]
        for part in figures["corpora"].values()
        for group in part["by_depth"]
        if group == "all" or len(part["depths"]) > 1
    ]
    for table in by_depth(figures):
        msg.divider(table.caption)
        lines = [(_indented(row), *(_cell(share) for share in row.shares)) for row in table.rows]
        lines.insert(0, ("expressions", *(f"{count:,}" for count in counts)))
        _print(("percent", *table.columns), lines)


def _cell(share: Sequence[float] | None) -> str:
    return "" if share is None else shown(share[0])


def _indented(row: Row) -> str:
    return f"  {row.name}" if row.below else row.name


def _print(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In as many pieces as the width of a terminal takes, each with the names of the rows."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
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
            aligns=("l", *("r" for _ in piece)),
            divider=True,
            spacing=SPACING,
            max_col=WIDTH,
        )


def make_opening(figures: dict[str, Any]) -> Markup:
    """The tables as what a page opens with, with all intervals."""
    from spacy_latent.visualize.elements import join, tag
    from spacy_latent.visualize.figure_table import FigureRow, figure_table

    tables = [overview(figures, corpus) for corpus in figures["corpora"]]
    tables += by_depth(figures)
    notes = [f"{measure}: {figures['meanings'][measure]}" for measure in tables[0].columns]
    parts = []
    for table in tables:
        rows = [
            FigureRow(
                row.name,
                [("", "") if s is None else (shown(s[0]), interval(s)) for s in row.shares],
                row.own,
                row.below,
            )
            for row in table.rows
        ]
        parts.append(figure_table(table.caption, table.columns, rows))
    about = tag(
        "p",
        "In percent, of the single best tree of each expression, with 95 % intervals of 1,000 "
        "resamples of the expressions. Depth: levels of lists within each other. ",
        "; ".join(notes),
        ".",
        class_="sl-note",
    )
    return join(parts[: len(figures["corpora"])], about, parts[len(figures["corpora"]) :])


__all__ = ["Row", "Table", "by_depth", "make_opening", "overview", "print_tables"]
