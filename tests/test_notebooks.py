"""The notebooks run from top to bottom, and are kept without what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import read, run_cells

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
ANY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@ANY
def test_no_output_is_kept(path: Path) -> None:
    for cell in read(path)["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.slow
@ANY
def test_the_cells_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of Jupyter where there is one, which shows the drawings, too; in this process
    otherwise."""
    monkeypatch.chdir(tmp_path)
    shown = run_in_kernel(path)
    if shown is None:
        run_cells(path)
    else:
        assert "<svg" in shown


def run_in_kernel(path: Path) -> str | None:
    """The HTML that the notebook shows, or None where no kernel is installed."""
    try:
        import nbformat
        from jupyter_client.kernelspec import NoSuchKernel
        from nbclient import NotebookClient
    except ImportError:
        return None
    notebook: Any = nbformat.read(path, as_version=4)
    try:
        NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    except NoSuchKernel:
        return None
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("data", {}).get("text/html", "") for output in outputs)
