"""Figures of several seeds on pages agree with the measured rows."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean, stdev

import pytest

from benchmarks.learning import rows_of
from benchmarks.learning_groups import GROUPS
from benchmarks.pages import PAGES as RESULTS
from tests.repository.pages import ROOT

SPREAD = re.compile(r"\d+\.\d ± \d+\.\d|\d+\.\d \(\d+\.\d to \d+\.\d\)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Figures with no source in the repository: measurements on a crowdsourced corpus whose text is not
# free and on a removed setting, and published values.
ELSEWHERE = {
    "incomplete_annotation.md": {
        *("72.8 ± 0.6", "67.2 ± 1.3", "75.1 ± 0.8", "67.6 ± 1.2"),
        *("66.4 ± 2.2", "64.6 ± 1.1"),
    },
    "README.md": {"72.8 ± 0.6", "75.1 ± 0.8"},
    "parsers.md": {"61.2 ± 1.0", "57.6 ± 2.9"},
}

# Pages of results with figures of a page that links to them through another page.
LINKED = {"README.md": ("incomplete_annotation",)}


def spreads(values: list[float]) -> set[str]:
    """Format the mean of percentages with two standard deviations, and with its range."""
    center = f"{mean(values):.1f}"
    between = f"{center} ({min(values):.1f} to {max(values):.1f})"
    return {f"{center} ± {2 * stdev(values):.1f}", between}


def results_of(group: str) -> str:
    """Return the page of results that a group of trainings is written to."""
    section = f"learning_{group}"
    return next(
        page
        for page, (_, sections) in RESULTS.items()
        if any(fnmatch(section, known) for known in sections)
    )


@pytest.fixture(scope="module")
def measured() -> dict[str, set[str]]:
    """The spreads of each page of results: of its rows, over the first 2, 3, ... seeds.

    Spreads that stand on the page are added.
    """
    found: dict[str, set[str]] = {page: set() for page in RESULTS}
    for name, group in GROUPS.items():
        for entry in set(group.entries):
            rows = list(rows_of(entry).values())
            for score in {score for row in rows for score in row["scores"]}:
                values = [100 * row["scores"][score] for row in rows if score in row["scores"]]
                for count in range(2, len(values) + 1):
                    found[results_of(name)] |= spreads(values[:count])
    for page, spreads_there in found.items():
        path = ROOT / "benchmarks" / "results" / f"{page}.md"
        spreads_there.update(SPREAD.findall(path.read_text(encoding="utf8")))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_figures_of_seeds_on_a_page_were_measured(
    path: Path, measured: dict[str, set[str]]
) -> None:
    """They stand in the results that the page links to, or that have its name."""
    text = path.read_text(encoding="utf8")
    sources = {path.stem, *re.findall(r"results/(\w+)\.md", text), *LINKED.get(path.name, ())}
    known = set().union(*(measured.get(source, set()) for source in sources))
    assert not set(SPREAD.findall(text)) - known - ELSEWHERE.get(path.name, set())


# Tables with a row for each corpus: the page, the heading above the table, the page of results with
# the figures, and the beginnings of its sections' titles.
TABLES = (
    ("crf_ner.md", "### Where it ends", "entities", ("Entities", "Learning: entities")),
    ("crf_ner.md", "### What calibration brings", "calibration", ("Calibration of entities",)),
    ("crf_ner.md", "### How often the promise held", "calibration", ("Promised precision",)),
)
FIGURE = re.compile(r"(?<![\d.])\d+\.\d+(?![\d.])")


def figures_of(results: str, titles: tuple[str, ...], corpus: str) -> set[str]:
    """Return the figures of all sections of a page of results whose titles name the corpus."""
    sections = (ROOT / "benchmarks" / "results" / f"{results}.md").read_text(encoding="utf8")
    found: set[str] = set()
    for section in sections.split("\n## "):
        title = section.partition("\n")[0]
        if title.startswith(titles) and corpus in title:
            found.update(FIGURE.findall(section))
    return found


@pytest.mark.parametrize("page, heading, results, titles", TABLES, ids=lambda own: str(own)[:30])
def test_figures_of_a_table_stand_in_the_results(
    page: str, heading: str, results: str, titles: tuple[str, ...]
) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf8").partition(f"{heading}\n")[2]
    rows = re.search(r"(?<=\n)\|(?:.*\n\|)*.*", text)
    assert rows and "### " not in text[: rows.start()]
    for row in rows[0].split("\n")[2:]:
        corpus = re.split("[,|]", row.strip("| "))[0].strip()
        assert not set(FIGURE.findall(row)) - figures_of(results, titles, corpus), row
