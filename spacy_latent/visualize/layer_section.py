"""Section of a report on the structures of one layer, and its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spacy_latent.analysis import structures
from spacy_latent.analysis.agreement import RANDOM
from spacy_latent.analysis.figures import (
    Interval,
    LayerFigures,
    RandomStructures,
    Relation,
    Statistic,
)
from spacy_latent.analysis.verdicts import percent, points
from spacy_latent.errors import number_of
from spacy_latent.visualize.charts import bar, histogram
from spacy_latent.visualize.elements import Markup, join, tag

MOST_RELATIONS = 60
# Measures of agreement with references in words.
MEASURES = {
    "directed": "same head",
    "whole trees": "texts with all heads equal to the reference",
    "undirected": "same arc in either direction",
    "yields": "F1 of the sets of words under each head",
    "one arc": "share of the reference's sets that one arc separates from all other words",
    "brackets": "brackets of the reference's subtrees that are in the tree",
    "links": "F1 of the sure links",
    "parts": "F1 of the annotated parts",
}


def table(header: Sequence[str | Sequence[str]], rows: Sequence[Markup]) -> Markup:
    """Return a table; the header has titles, or titles with the classes of their cells."""
    cells = [
        tag("th", entry) if isinstance(entry, str) else tag("th", entry[0], class_=entry[1])
        for entry in header
    ]
    return tag("table", tag("thead", tag("tr", cells)), tag("tbody", rows))


def percent_or_dash(value: float) -> str:
    """Write a share as verdicts do; a dash stands for NaN."""
    return percent(value) if math.isfinite(value) else "–"


def bar_row(
    label: str, share: float, low: float = math.nan, high: float = math.nan, other: bool = False
) -> Markup:
    """Return a row of a table with a share and its bar, with an interval if it is finite."""
    return tag(
        "tr",
        tag("td", label),
        tag("td", percent_or_dash(share), class_="number"),
        tag("td", bar(share, low, high, other)),
        class_=None if other else "own",
    )


def layer_section(name: str, part: LayerFigures) -> Markup:
    """Return the section on a layer: use, controls, statistics, reference, others."""
    spans = number_of(part.spans, "span", ",")
    return tag(
        "section",
        tag("h2", "Structures of ", tag("code", name)),
        tag(
            "p",
            tag("code", part.structure),
            f", {part.estimator}, {part.scorer}, {part.composer}; {part.plural} of {spans}",
            class_="soft",
        ),
        _use(part),
        _controls(part),
        _statistics(part),
        _reference(part),
        _others(part),
    )


def _use(part: LayerFigures) -> Markup | None:
    if not part.random:
        return None
    tables = []
    for measure, row in part.random.items():
        lines = []
        if row.mixture is not None:
            lines.append(("as the pipeline predicts, with a mixture", row.mixture, "own", True))
            lines.append(("with the single best structures", row.before, "", True))
        else:
            lines.append(("as the pipeline predicts", row.before, "own", True))
        lines.append(("with random structures", row.after, "", False))
        if row.chance is not None:
            lines.append((f"always answering “{row.chance.label}”", row.chance.share, "", False))
        rows = [
            tag(
                "tr",
                tag("td", label),
                tag("td", percent_or_dash(value), class_="number"),
                tag("td", bar(value, other=not own)),
                class_=kind or None,
            )
            for label, value, kind, own in lines
        ]
        tables.append(tag("div", table(["", (measure, "number"), ""], rows), tag("p", _drop(row))))
    return join(
        tag("h3", "Do predictions depend on them?"),
        tag(
            "p",
            f"Random {part.plural} replace the learned ones at prediction only. A drop shows "
            f"that the composer is adapted to its own {part.plural} (co-adaptation), not that "
            "they help.",
            class_="soft",
        ),
        tag("div", tables, class_="columns wide"),
    )


def _drop(row: RandomStructures) -> str:
    interval = f"95 % interval {points(row.low)} to {points(row.high)}"
    if row.low <= 0 <= row.high:
        said = f"{points(row.drop)} points, {interval}"
        return f"No certain drop, since the interval includes 0: {said}."
    return f"Drop: {points(row.drop)} points ({interval})"


def _controls(part: LayerFigures) -> Markup | None:
    share, tokens = part.by_length
    rows = [
        bar_row(f"{name} {part.plural}", value, other=True)
        for name, value in sorted(part.controls.items(), key=lambda entry: -entry[1])
    ]
    if tokens:
        rows.append(
            bar_row("most frequent part in other texts of the same length", share, other=True)
        )
    if part.flat_share is not None and math.isfinite(part.flat_share):
        rows.append(
            bar_row("tokens that are roots or have a root as head", part.flat_share, other=True)
        )
    rows += [
        bar_row(f"tag {label}", value, other=True)
        for label, value in (part.tag_shares or {}).items()
    ]
    if not rows:
        return None
    return join(
        tag("h3", "How much of them follows a simple pattern?"),
        tag("p", "Share of parts in common with structures that need no learning.", class_="soft"),
        tag("div", table(["", ("share", "number"), ""], rows), class_="wide"),
    )


def _statistics(part: LayerFigures) -> Markup | None:
    rows = []
    for name, row in part.statistics.items():
        is_share = structures.is_share(name, part.kind)
        mean = math.nan if name in structures.SKEWED else row.mean
        first, middle, third = (_number(value, is_share) for value in row.quartiles)
        meaning = structures.meaning(name, part.kind)
        rows.append(
            tag(
                "tr",
                tag("td", tag("b", name), tag("div", meaning, class_="soft")),
                tag("td", middle, class_="number", data_name="median"),
                tag("td", f"{first} to {third}", class_="number", data_name="middle half"),
                tag("td", _number(mean, is_share), class_="number", data_name="mean"),
                tag("td", None if name in structures.SKEWED else _histogram(row, is_share)),
            )
        )
    if not rows:
        return None
    header = ["", ("median", "number"), ("middle half", "number"), ("mean", "number"), "all"]
    return join(tag("h3", "Statistics"), tag("div", table(header, rows), class_="wide looks"))


def _histogram(row: Statistic, is_share: bool) -> Markup:
    return histogram(row.histogram, _number(row.low, is_share), _number(row.high, is_share))


def _number(value: float, is_share: bool = False) -> str:
    if is_share or not math.isfinite(value):
        return percent_or_dash(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if value >= structures.LARGE:
        return structures.power_of_ten(value)
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _reference(part: LayerFigures) -> Markup | None:
    reference = part.reference
    if reference is None:
        return None
    tables = []
    for measure in next(iter(reference.rows.values())):
        shares = {name: row[measure] for name, row in reference.rows.items()}
        ranked = sorted(shares, key=lambda name: (name != part.component, -_or_zero(shares[name])))
        rows = [
            bar_row(_row_name(part, name), *shares[name], name != part.component) for name in ranked
        ]
        header = [MEASURES.get(measure, measure), ("share", "number"), "with 95 % interval"]
        tables.append(table(header, rows))
    return join(
        tag("h3", f"Agreement with the {reference.of} of the references"),
        tag(
            "p",
            f"{number_of(reference.tokens, 'token', ',')} in "
            f"{number_of(reference.docs, 'doc', ',')}. Controls need no model.",
            class_="soft",
        ),
        tag("div", tables, class_="columns wide"),
        _relations(reference.relations or ()),
    )


def _row_name(part: LayerFigures, name: str) -> str:
    if name == part.component:
        return name
    if name != RANDOM:
        return f"{name} control"
    constraint = f" ({part.constraint})" if part.constraint else ""
    return f"random {part.plural} of the same set{constraint}"


def _or_zero(share: Interval) -> float:
    return share[0] if math.isfinite(share[0]) else 0.0


def _relations(relations: Sequence[Relation]) -> Markup | None:
    if not relations:
        return None

    def number(shown: str, value: float) -> Markup:
        return tag("td", shown, class_="number", data_value=value)

    rows = [
        tag(
            "tr",
            tag("td", row.relation, data_value=row.relation),
            number(f"{row.tokens:,}", row.tokens),
            number(percent(row.directed), row.directed),
            number(percent(row.undirected), row.undirected) if row.arcs else number("–", -1),
            number(f"{percent(row.control_directed)} ({row.control})", row.control_directed),
        )
        for row in relations[:MOST_RELATIONS]
    ]
    titles = ("relation", "tokens", "same head", "same arc", "best control, same head")
    header = [
        tag("th", tag("button", title, type="button"), class_="number" if i else None)
        for i, title in enumerate(titles)
    ]
    sorted_ = tag("table", tag("thead", tag("tr", header)), tag("tbody", rows))
    return join(tag("h3", "By relation"), tag("div", sorted_, class_="wide"))


def _others(part: LayerFigures) -> Markup | None:
    others = part.others
    if others is None:
        return None
    names = ["this", *others.names]
    rows = [
        tag(
            "tr",
            tag("th", name),
            [tag("td", percent_or_dash(value), class_="number") for value in row],
        )
        for name, row in zip(names, others.matrix)
    ]
    chance = others.chance
    return join(
        tag("h3", "Agreement between models"),
        tag(
            "p",
            f"Mean of the pairs: {percent(others.mean)}."
            if math.isfinite(others.mean)
            else "Nothing could be compared.",
            f" With random {part.plural}: {percent(chance)}." if math.isfinite(chance) else None,
        ),
        tag("div", table(["", *[(name, "number") for name in names]], rows), class_="wide"),
    )
