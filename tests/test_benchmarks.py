"""The benchmark programs run; what they measure is not tested."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import inference

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("row", inference.ROWS, ids=lambda row: row.work)
def test_rows_run_and_agree_with_their_peer_where_it_is_installed(row):
    cells = inference.measure_row(row, 4, quick=True).split("|")
    assert cells[1].strip() == row.work and float(cells[4]) > 0


def test_results_keep_other_sections(tmp_path):
    path = tmp_path / "RESULTS.md"
    for text in ("one", "two"):
        inference.write_section(path, f"{inference.BEGIN}\n{text}\n{inference.END}")
        if text == "one":
            path.write_text(path.read_text() + "\nother section\n")
    assert "two" in path.read_text() and "one" not in path.read_text()
    assert "other section" in path.read_text()


def test_without_a_gpu_there_is_nothing_to_run():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "benchmarks", "gpu"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0 and "No GPU" in done.stdout
