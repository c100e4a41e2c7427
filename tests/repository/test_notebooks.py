"""The notebooks run from top to bottom, and are stored with their outputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.repository.notebooks import (
    NOTEBOOKS,
    keep,
    printed,
    read,
    run_cells,
    run_in_kernel,
    shown,
)

ANY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
SHOWCASE = "quickstart"
# Bytes. Larger notebooks are slow in a browser, and stay in the history of the repository.
LARGEST = 400_000
# The printed scores of this notebook are not tested, so that its twelve trainings may be short.
SHORTER = {
    "incomplete_annotation": {
        "epochs=12,": "epochs=1,",
        "epochs=192)": "epochs=2)",
        "epochs=24,": "epochs=1,",
    }
}


@ANY
def test_what_it_shows_is_kept(path: Path) -> None:
    notebook = read(path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    # Each notebook draws trees or charts as SVG, or entities by displaCy.
    assert re.search("<svg|<mark", shown(notebook)) and printed(notebook)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    # No times, versions, warnings or paths of a machine are stored.
    assert keep(notebook) == notebook and "/home/" not in str(outputs)
    assert path.stat().st_size < LARGEST


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem == SHOWCASE])
def test_the_showcase_prints_its_controls(path: Path) -> None:
    check_showcase(printed(read(path)))


@pytest.mark.slow
@ANY
def test_the_cells_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The notebook runs in a Jupyter kernel, or in this process if no kernel is installed.

    Only a kernel displays drawings.
    """
    monkeypatch.chdir(tmp_path)
    replaced = SHORTER.get(path.stem, {})
    assert all(piece in path.read_text(encoding="utf8") for piece in replaced)
    found: Any = run_in_kernel(path, replaced)
    if found is None:
        run_cells(path, replaced)
        told = capsys.readouterr().out
    else:
        assert shown(found).count("<svg") == shown(read(path)).count("<svg")
        told = printed(found)
    if path.stem == SHOWCASE:
        check_showcase(told)


def check_showcase(told: str) -> None:
    """Check the two tables of scores that the showcase prints.

    The pipeline has 90 % of the heads in both. Its share of whole trees is at least 50 points above
    each of the three controls.
    """
    tables = re.findall(r"^(this pipeline|[a-z ]+?) +([\d.]+)% +([\d.]+)%$", told, re.MULTILINE)
    assert [name for name, *_ in tables[:4]] == [name for name, *_ in tables[4:]]
    for (name, heads, whole), *others in (tables[:4], tables[4:]):
        assert name == "this pipeline" and float(heads) >= 90 and len(others) == 3
        assert all(float(whole) > 50 + float(theirs) for _, _, theirs in others)
