"""Tables of figures at the top of a page of drawings, in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spacy_latent.visualize.elements import Markup, tag

RULES = """
.spacy-latent h1{font-size:1.3rem;margin:.3rem 0}
.spacy-latent h2{font-size:1.1rem;margin:1rem 0 .3rem}
.sl-side{display:flex;flex-wrap:wrap;gap:0 2.5rem;align-items:flex-start}
.sl-figures{margin:0 0 1.2rem;max-width:100%;overflow-x:auto}
.sl-figures table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.sl-figures caption{text-align:start;font-weight:600;padding:.3rem 0}
.sl-figures th,.sl-figures td{padding:.2rem .9rem .2rem 0;text-align:end;white-space:nowrap;
border-bottom:1px solid var(--sl-line);font-weight:400;vertical-align:top}
.sl-figures th:first-child{text-align:start}
.sl-figures thead th{color:var(--sl-muted);font-size:.85rem}
.sl-figures tr.sl-own th,.sl-figures tr.sl-own td{font-weight:600}
.sl-figures tr.sl-below th:first-child{padding-inline-start:1.2rem}
.sl-figures small{display:block;color:var(--sl-muted);font-weight:400;font-size:.75rem}
@media (max-width:40rem){
.sl-figures :is(table,caption,tbody){display:block}
.sl-figures tr{display:flex;flex-wrap:wrap;gap:0 .9rem;padding:.2rem 0;
border-bottom:1px solid var(--sl-line)}
.sl-figures tr>*{border-bottom:0;padding:.1rem 0}
.sl-figures td{white-space:normal}
.sl-figures th[scope=row]{flex:1 0 100%;box-sizing:border-box;white-space:normal}
.sl-figures thead,.sl-figures tr.sl-names,.sl-figures td:empty{display:none}
.sl-figures td::before{content:attr(data-column) " ";color:var(--sl-muted);font-weight:400;
font-size:.8rem}
}
.sl-note{color:var(--sl-muted);font-size:.85rem;max-width:60rem}
"""


@dataclass(frozen=True)
class FigureRow:
    """Row of a table of figures.

    Attributes:
        cells: Text of each column, and a small line below it, which may be "".
        own: True for the row of a model, false for a control.
        below: True if the row belongs to the row above it.
        names_columns: True if the cells are further names of the columns.
    """

    name: str
    cells: Sequence[tuple[str, str]]
    own: bool = False
    below: bool = False
    names_columns: bool = False


def figure_table(caption: str, columns: Sequence[str], rows: Sequence[FigureRow]) -> Markup:
    """Return a table whose first column has the names of the rows.

    On narrow screens there is no header, and each cell has the names of its column next to it.
    """
    titles = list(columns)
    for row in rows:
        if row.names_columns:
            titles = [f"{name}, {row.name} {cell}" for name, (cell, _) in zip(titles, row.cells)]
    head = [tag("th", None), *(tag("th", column, scope="col") for column in columns)]
    body = [
        tag(
            "tr",
            tag("th", row.name, scope="row"),
            [
                tag("td", value, tag("small", note) if note else None, data_column=column)
                for column, (value, note) in zip(titles, row.cells)
            ],
            class_=_classes(row),
        )
        for row in rows
    ]
    table = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body))
    # A region that scrolls has to be reachable with the keyboard.
    return tag("div", table, class_="sl-figures", tabindex=0, role="region", aria_label=caption)


def _classes(row: FigureRow) -> str | None:
    names = {"sl-own": row.own, "sl-below": row.below, "sl-names": row.names_columns}
    return " ".join(name for name, given in names.items() if given) or None
