"""Tables of figures above the drawings of a page, and their content for ListOps."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
import spacy

from spacy_latent.annotations import write
from spacy_latent.cli.listops_terminal import print_tables
from spacy_latent.listops.assessment import MEANINGS
from spacy_latent.listops.tables import (
    by_depth,
    by_operator,
    make_closing,
    make_opening,
    overview,
)
from spacy_latent.visualize import render
from spacy_latent.visualize.figure_table import FigureRow, figure_table

NAME = "<b>&\u202eit"


def group(expressions: int, share: float) -> dict[str, Any]:
    row = [share, share - 0.01, share + 0.01]
    model = {"accuracy": row, "attachment": row, "accuracy_with": {"gold": row}}
    nothing = [float("nan")] * 3
    return {
        "expressions": expressions,
        "models": {NAME: model, "mixed": {"accuracy": row, "accuracy_as_predicted": row}},
        "controls": {"flat": {"attachment": nothing}},
    }


def figures(*corpora: str, few: int = 100) -> dict[str, Any]:
    part = {
        "expressions": 200 + few,
        "tokens": [8, 25],
        "depths": [2, 3, 4],
        "by_depth": {
            "all": group(200 + few, 0.7),
            **{"2": group(100, 0.9), "3": group(few, 0.5), "4": group(100, 0.4)},
        },
        "by_operator": {"MAX": group(100, 0.8), "SM": group(50, 0.2), "with SM": group(60, 0.3)},
    }
    models = {NAME: {"component": "x", "kind": "heads"}}
    return {"meanings": MEANINGS, "models": models, "corpora": dict.fromkeys(corpora, part)}


def test_an_overview_has_models_what_is_below_them_and_controls() -> None:
    table = overview(figures("test"), "test")
    assert table.caption == "test: 300 expressions, 8 to 25 tokens, depth 2 to 4"
    assert table.columns == ["accuracy", "attachment"]
    names = [(row.name, row.own, row.below) for row in table.rows]
    assert names == [
        (NAME, True, False),
        ("with gold trees", False, True),
        ("mixed", True, False),
        ("with its mixture of trees", False, True),
        ("flat", False, False),
    ]
    assert table.rows[0].shares == ([0.7, 0.69, 0.71],) * 2
    assert table.rows[2].shares == ([0.7, 0.69, 0.71], None)


def test_columns_are_depths_with_enough_expressions() -> None:
    accuracy, attachment = by_depth(figures("test"))
    assert accuracy.above == (
        ("depth", ("2–4", "2", "3", "4")),
        ("expressions", ("300", "100", "100", "100")),
    )
    assert [share[0] for share in accuracy.rows[0].shares if share] == [0.7, 0.9, 0.5, 0.4]
    # A table has no row for a control without accuracy, or for a pipeline without attachment.
    assert "flat" not in [row.name for row in accuracy.rows]
    assert [row.name for row in attachment.rows] == [NAME, "flat"]
    assert by_depth(figures("test", few=3))[0].above[0] == ("depth", ("2–4", "2", "4"))
    single = figures("deep")
    single["corpora"]["deep"]["depths"] = [4]
    assert by_depth(single) == []


def test_accuracy_is_split_by_operator() -> None:
    (table,) = by_operator(figures("test", "other"), "other")
    assert table.caption.startswith("other: accuracy")
    assert table.columns == ["MAX", "SM", "with SM"]
    assert table.above == (("expressions", ("100", "50", "60")),)
    assert [row.name for row in table.rows] == [
        NAME,
        "with gold trees",
        "mixed",
        "with its mixture of trees",
    ]
    for row in table.rows:
        assert [share[0] for share in row.shares if share] == [0.8, 0.2, 0.3]
    single = figures("test")
    del single["corpora"]["test"]["by_operator"]["SM"]
    assert by_operator(single, "test") == []


def test_the_terminal_needs_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(figures(*(f"corpus-{i}" for i in range(6))))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert printed.count("corpus-5") >= 8 and "69–71" in printed and "–" in printed


def test_a_page_opens_with_its_tables_and_nothing_in_them_is_markup() -> None:
    doc = spacy.blank("xx")("a b")
    opening, closing = make_opening(figures("test"), "<b>"), make_closing(figures("test"))
    page = render([doc], page=True, jupyter=False, opening=opening, closing=closing)
    assert page.count("<table") == 4 and "&lt;b&gt;&amp;" in page
    assert "<b>" not in page and "\u202e" not in page
    assert page.index("<h1") < page.index("<table")
    body = page[page.index("<body") : page.index("</body>") + len("</body>")]
    ElementTree.fromstring(body)
    # An empty annotation suffices for a page. Docs without any are refused.
    write(doc, "x", [])
    assert 'class="sl-figures"' not in render([doc], page=True, jupyter=False)


def test_cells_have_a_second_line_where_there_is_one() -> None:
    row = FigureRow("r", [("1.0", "0–2"), ("", "")], own=True, below=True)
    table = ElementTree.fromstring(figure_table("c", ["x", "y"], [row]))
    assert table.find(".//caption").text == "c"  # type: ignore[union-attr]
    assert [cell.text for cell in table.iter("td")] == ["1.0", None]
    assert [small.text for small in table.iter("small")] == ["0–2"]
    assert [line.get("class") for line in table.iter("tr")] == [None, "sl-own sl-below"]


def test_cells_have_all_names_of_their_column() -> None:
    rows = [
        FigureRow("depth", [("2", ""), ("3", "")], names_columns=True),
        FigureRow("r", [("1.0", ""), ("", "")]),
    ]
    table = ElementTree.fromstring(figure_table("c", ["x", "x"], rows))
    cells = [[cell.get("data-column") for cell in row.iter("td")] for row in table.iter("tr")]
    assert cells[1:] == [["x, depth 2", "x, depth 3"]] * 2


def test_each_depth_of_a_corpus_has_its_name_beside_its_figures() -> None:
    page = make_closing(figures("test"))
    for depth in ("2–4", "2", "3", "4"):
        assert f'data-column="test, depth {depth}"' in page
