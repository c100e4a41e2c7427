"""The benchmark programs run. The figures that they measure are not tested."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import attention, cases, footprint, headlines, inference, pages, scaling, sections
from benchmarks.gpu.structures import results

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", inference.ROWS, ids=lambda row: row.work)
def test_rows_run_and_agree_with_their_peer_where_it_is_installed(row):
    for setting in (
        inference.Setting(4),
        inference.Setting(7, scale=5.0, batch=3, ragged=True),
        inference.Setting(4, scale=20.0, batch=1),
    ):
        cells = inference.measure_row(row, setting, quick=True).split("|")
        assert cells[1].strip() == row.work and float(cells[6]) > 0


def test_each_row_is_measured_where_trained_scorers_are():
    for row in inference.ROWS:
        settings = list(row.settings())
        assert {setting.scale for setting in settings} == {1.0, 5.0, 20.0}
        assert {setting.batch for setting in settings} == {1, 32, 256}
        assert sum(setting.ragged for setting in settings) == 3
        targets = [row.target_at(setting) for setting in settings]
        assert sum(target is not None for target in targets) == 3
    ragged = inference.Setting(60, ragged=True).lengths()
    assert ragged[0] == 60 and ragged.min() >= 5 and len(ragged.unique()) > 10


def test_each_kind_of_attention_is_timed(monkeypatch):
    monkeypatch.setattr(attention, "SIZES", (3,))
    rows = attention.table(repeats=1)[2:]
    assert len(rows) == len(attention.ESTIMATORS)
    assert all(float(row.split("|")[2]) > 0 for row in rows)


def test_results_keep_other_sections(tmp_path):
    for name, text in [("inference", "one"), ("scaling", "other"), ("inference", "two")]:
        path = sections.write_section(name, "Title", [text], tmp_path)
    assert pages.read_section("inference", tmp_path) == "## Title\n\ntwo"
    assert pages.read_section("scaling", tmp_path) == "## Title\n\nother"
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text().startswith("# ") and path.read_text().count("\n## Title") == 2


def test_a_section_of_a_corpus_of_ones_own_has_a_page(tmp_path):
    path = sections.write_section("calibration_letters", "Letters", ["text"], tmp_path)
    assert path == tmp_path / "calibration.md"
    assert pages.read_section("calibration_letters", tmp_path).endswith("text")


@pytest.mark.parametrize("section", ["learning_unknown", "unknown"])
def test_a_section_that_no_page_has_is_refused(section, tmp_path):
    with pytest.raises(LookupError, match=section):
        sections.write_section(section, "Title", [], tmp_path)


def test_each_page_has_its_sections_alone():
    assert {path.stem for path in pages.FOLDER.iterdir()} == set(pages.PAGES)
    for name in pages.PAGES:
        text = (pages.FOLDER / f"{name}.md").read_text(encoding="utf8")
        written = re.findall(r"<!-- (\w+): begin -->", text)
        assert written and {pages.page_of(section) for section in written} == {name}


def test_the_headlines_are_what_the_pages_say():
    """RESULTS.md is up to date; `python -m benchmarks headlines` writes it again."""
    assert headlines.PATH.read_text(encoding="utf8") == headlines.page()


LEARNED = [
    "| config | F1 | updates |",
    "|---|---|---:|",
    "| `a`: one | 1.0, 3.0; mean 2.0 (1.0 to 3.0) | 5 |",
    "| `a`: other | 4.0 |  |",
    "",
    "| K | F1 |",
    "|---|---|",
    "| 1 | 7 |",
]


@pytest.mark.parametrize(
    "row, column, figure",
    [
        ("| `a`: one |", "F1", "2.0 (1.0 to 3.0)"),
        ("| `a`: one |", "updates", "5"),
        ("| `a`: other", "F1", "4.0"),
        ("| `a`: other", "updates", ""),
        ("| 1 |", "F1", "7"),
    ],
)
def test_a_headline_is_looked_up_by_its_row_and_column(row, column, figure, tmp_path):
    sections.write_section("learning_spans", "Title", LEARNED, tmp_path)
    assert headlines.look_up(headlines.Cell("learning_spans", row, column), tmp_path) == figure


@pytest.mark.parametrize(
    "section, row, column",
    [
        ("learning_spans", "| `a`", "F1"),
        ("learning_spans", "| `b`", "F1"),
        ("learning_spans", "| `a`: one", "recall"),
        ("learning_spans", "| 1 |", "updates"),
        ("spans_labels", "| 1 |", "F1"),
    ],
)
def test_a_headline_without_its_figure_is_an_error(section, row, column, tmp_path):
    sections.write_section("learning_spans", "Title", LEARNED, tmp_path)
    with pytest.raises(LookupError, match=section):
        headlines.look_up(headlines.Cell(section, row, column), tmp_path)


def test_a_section_stays_written_where_a_headline_misses_its_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sections, "FOLDER", tmp_path)
    monkeypatch.setattr(sections, "write_headlines", lambda: headlines.page(tmp_path))
    sections.write_section("inference", "Title", ["text"], tmp_path)
    assert pages.read_section("inference", tmp_path).endswith("text")
    assert "inference" in capsys.readouterr().err


def test_every_structure_has_scores_and_finite_results():
    """The operations that ``benchmarks gpu`` compares run for every structure on the CPU."""
    for structure in cases.structures():
        for operation in ("map", *sorted({"log_partition", "marginals"} & structure.tractable)):
            for result in results(structure, operation, *cases.scores_for(structure, 7, 2)):
                assert result.isfinite().all(), (structure.name, operation)


def test_exponents_and_their_plot(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    assert scaling.exponent([(8, 1.0), (16, 4.0), (32, 32.0), (64, 256.0)]) == pytest.approx(3.0)
    monkeypatch.setattr(scaling, "IMAGES", tmp_path)
    scaling.plot({"a": {"Tree": [(8, 1.0), (16, 2.0)]}, "b": {"Tree": [(8, 1.0), (16, 2.0)]}})
    assert (tmp_path / "scaling.svg").read_text().startswith("<?xml")


def test_peak_memory_is_seen():
    grown = footprint.run(footprint.MEMORY, "SpanningTree", "marginals, forward + backward", "300")
    # The scores and their gradient, in float32, are a lower bound.
    assert grown[0] > 2 * 4 * 301**2


def test_without_a_gpu_there_is_nothing_to_run():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "benchmarks", "gpu"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0 and "No GPU" in done.stdout
