"""Tables of the figures of ListOps, and their form on a page.

The figures come from :func:`spacy_latent.listops.assessment.assess_listops`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spacy_latent.errors import number_of
from spacy_latent.listops.assessment import ALL, MEASURES
from spacy_latent.visualize.elements import Markup, join, tag
from spacy_latent.visualize.figure_table import FigureRow, figure_table
from spacy_latent.visualize.page import heading

# Least number of expressions of a depth with a column of its own.
ENOUGH = 50
WHOLE = "whole trees"
DEPTH = "depth"
Share = Sequence[float] | None


@dataclass(frozen=True)
class Row:
    """Row of a table.

    Attributes:
        shares: [share, low, high] for each column, None for an empty cell.
        own: True for the row of a model.
        below: True if the row belongs to the row above it.
    """

    name: str
    shares: tuple[Share, ...] = ()
    own: bool = False
    below: bool = False


@dataclass(frozen=True)
class Table:
    """Table of shares.

    Attributes:
        above: Header rows of text, with their names, that describe the columns.
        meaning: Description of the shares if all of them have the same measure.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    above: Sequence[tuple[str, tuple[str, ...]]] = ()
    meaning: str = ""


def overview(figures: dict[str, Any], corpus: str) -> Table:
    """Return a table of all measures on all expressions of a corpus."""
    part = figures["corpora"][corpus]
    measures = _measures(figures)
    rows = [
        replace(row, shares=tuple(map(found.get, measures)))
        for row, found in _rows(part["by_depth"][ALL], measures)
    ]
    low, high = part["tokens"]
    depths = part["depths"]
    deep = f"depth {depths[0]}" + (f" to {depths[-1]}" if len(depths) > 1 else "")
    size, long = number_of(part["expressions"], "expression", ","), number_of(high, "token")
    return Table(f"{corpus}: {size}, {low} to {long}, {deep}", measures, rows)


def by_depth(figures: dict[str, Any]) -> list[Table]:
    """Return a table for each measure, with a column for each corpus and depth.

    A corpus with several depths has a column for each depth with at least :data:`ENOUGH`
    expressions. There are no tables if there is only one column.
    """
    columns, groups, notes = [], [], []
    for corpus, part in figures["corpora"].items():
        depths = part["depths"]
        listed = [str(depth) for depth in depths] if len(depths) > 1 else []
        for name in (ALL, *listed):
            group = part["by_depth"][name]
            if name != ALL and group["expressions"] < ENOUGH:
                continue
            span = f"{depths[0]}–{depths[-1]}" if len(depths) > 1 else str(depths[0])
            columns.append(corpus)
            groups.append(group)
            notes.append((span if name == ALL else name, f"{group['expressions']:,}"))
    if len(columns) < 2:
        return []
    above = (
        (DEPTH, tuple(depth for depth, _ in notes)),
        ("expressions", tuple(count for _, count in notes)),
    )
    tables = []
    for measure in _measures(figures):
        rows, meaning = _rows_of_groups(groups, measure), figures["meanings"][measure]
        tables.append(Table(f"{measure}, by depth", columns, rows, above, meaning))
    return tables


def by_operator(figures: dict[str, Any], corpus: str) -> list[Table]:
    """Return tables of accuracy by the outermost operator, and with and without sums.

    There are no tables if all expressions have the same outermost operator, or no pipeline predicts
    values.
    """
    groups = figures["corpora"][corpus]["by_operator"]
    if len(groups) < 3 or "accuracy" not in _measures(figures):
        return []
    rows = _rows_of_groups(list(groups.values()), "accuracy")
    counts = tuple(f"{group['expressions']:,}" for group in groups.values())
    caption = f"{corpus}: accuracy, by the outermost operator, and with and without sums"
    return [Table(caption, list(groups), rows, (("expressions", counts),))]


def _rows_of_groups(groups: Sequence[dict[str, Any]], measure: str) -> list[Row]:
    """Return the rows of a measure that some group has, with a column for each group."""
    rows: dict[tuple[str, Row], list[Share]] = {}
    for place, group in enumerate(groups):
        model = ""
        for row, found in _rows(group, [measure]):
            model = model if row.below else row.name
            rows.setdefault((model, row), [None] * len(groups))[place] = found.get(measure)
    return [replace(row, shares=tuple(cells)) for (_, row), cells in rows.items() if any(cells)]


def _measures(figures: dict[str, Any]) -> list[str]:
    """Return the measures that any model has, in their order."""
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
    """Yield the rows with their shares by measure."""
    for name, found in group["models"].items():
        yield Row(name, own=True), found
        if "accuracy" not in measures:
            continue
        if "accuracy_as_predicted" in found:
            mixed = {"accuracy": found["accuracy_as_predicted"]}
            yield Row("with its mixture of trees", below=True), mixed
        for trees, share in found.get("accuracy_with", {}).items():
            yield Row(f"with {_of_trees(trees)}", below=True), {"accuracy": share}
    for name, found in (*group.get("recorded", {}).items(), *group["controls"].items()):
        yield Row(name), found


def _of_trees(name: str) -> str:
    """Return the name of trees that replace the trees under the composer."""
    return {"random tree": "random trees", "gold": "gold trees", "flat": "flat trees"}.get(
        name, name
    )


def shown(share: float) -> str:
    """Write a share in percent without the sign; a dash stands for NaN."""
    return f"{100 * share:.1f}" if math.isfinite(share) else "–"


def interval(share: Sequence[float]) -> str:
    """Return the interval for :func:`overview` in short form, or ""."""
    ends = [f"{100 * end:.1f}".removesuffix(".0") for end in share[1:] if math.isfinite(end)]
    return "–".join(ends)


def conclusion(figures: dict[str, Any]) -> list[str]:
    """Return a line for each corpus on the share of whole trees.

    The line compares the first pipeline with the best control. Corpora without such trees have no
    line.
    """
    lines = []
    for corpus, found in figures["corpora"].items():
        everything = found["by_depth"][ALL]
        own = next(iter(everything["models"].values())).get(WHOLE)
        controls = {
            name: shares[WHOLE][0]
            for name, shares in everything["controls"].items()
            if WHOLE in shares
        }
        if own is None or not controls:
            continue
        best = max(controls, key=lambda name: controls[name])
        lines.append(
            f"{corpus}: {shown(own[0])} % of the trees are whole; by {best}, the best control, "
            f"{shown(controls[best])} %"
        )
    return lines


def make_opening(figures: dict[str, Any], about: str = "") -> Markup:
    """Return the beginning of a page: title, description and overview.

    Args:
        about: Sentence on the pipeline.
    """
    table = overview(figures, next(iter(figures["corpora"])))
    seen = (
        "The table says, in percent, how often values and trees are right, beside trees that "
        "simple rules make without a model. Below it are the trees of the first expressions. "
        "Neither the table nor the numbers above the trees count the heads of ]."
    )
    said = figures["meanings"]
    meanings = [f"{measure.capitalize()}: {said[measure]}." for measure in table.columns]
    notes = (
        "Each expression counts with its best tree. Small numbers are 95 % intervals from 1,000 "
        f"resamples of the expressions. {' '.join(meanings)}"
    )
    return join(
        heading(f"ListOps: {', '.join(figures['models'])}", about, seen),
        _side_by_side([table]),
        tag("p", notes, class_="sl-note"),
    )


def make_closing(figures: dict[str, Any]) -> Markup:
    """Return the end of a page: each measure by depth, and accuracy by operator."""
    tables = [*by_depth(figures), *by_operator(figures, next(iter(figures["corpora"])))]
    if not tables:
        return Markup("")
    note = f"Depth: levels of lists within each other, where {ENOUGH} expressions have as many."
    return join(
        tag("h2", "By depth and by operator"),
        tag("p", note, class_="sl-note"),
        _side_by_side(tables),
    )


def _side_by_side(tables: Sequence[Table]) -> Markup:
    """Return the markup of the tables side by side, with all intervals."""
    made = []
    for table in tables:
        rows = [
            FigureRow(name, [(cell, "") for cell in cells], names_columns=name == DEPTH)
            for name, cells in table.above
        ]
        rows += [
            FigureRow(
                row.name,
                [("", "") if s is None else (shown(s[0]), interval(s)) for s in row.shares],
                row.own,
                row.below,
            )
            for row in table.rows
        ]
        made.append(figure_table(table.caption, table.columns, rows))
    return tag("div", made, class_="sl-side")
