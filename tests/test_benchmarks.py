"""The benchmark programs run; what they measure is not tested."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cases, footprint, inference, scaling, sections
from benchmarks.gpu.structures import results

ROOT = Path(__file__).parents[1]


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


def test_results_keep_other_sections(tmp_path):
    path = tmp_path / "RESULTS.md"
    for name, text in [("a", "one"), ("b", "other"), ("a", "two")]:
        sections.write_section(name, "Title", [text], path)
    assert path.read_text().count("## Title") == 2
    assert "two" in path.read_text() and "one" not in path.read_text()
    assert "other" in path.read_text()


def test_every_structure_has_scores_and_agrees_with_itself():
    """What the plan for a GPU does, on the CPU."""
    for structure in cases.structures():
        for operation in ("map", *sorted({"log_partition", "marginals"} & structure.tractable)):
            results(structure, operation, *cases.scores_for(structure, 7, 2))


def test_exponents_and_their_plot(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    assert scaling.exponent([(8, 1.0), (16, 4.0), (32, 32.0), (64, 256.0)]) == pytest.approx(3.0)
    monkeypatch.setattr(scaling, "IMAGES", tmp_path)
    scaling.plot({"a": {"Tree": [(8, 1.0), (16, 2.0)]}, "b": {"Tree": [(8, 1.0), (16, 2.0)]}})
    assert (tmp_path / "scaling.svg").read_text().startswith("<?xml")


def test_peak_memory_is_seen():
    grown = footprint.run(footprint.MEMORY, "SpanningTree", "marginals, forward + backward", "300")
    # At least the scores and their gradient.
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
