"""Run the notebooks of the documentation, and read their stored outputs.

python -m tests.repository.notebooks

runs all notebooks in a Jupyter kernel and writes them with their outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    return notebook


def run_cells(path: Path, replaced: Mapping[str, str]) -> dict[str, Any]:
    """Run the code cells in this process, without a kernel, and return their namespace.

    Args:
        path: The notebook.
        replaced: Pieces of its code, and the code that runs in their place.
    """
    scope: dict[str, Any] = {"__name__": path.stem}
    for number, cell in enumerate(read(path)["cells"], 1):
        if cell["cell_type"] == "code":
            code = with_replaced("".join(cell["source"]), replaced)
            exec(compile(code, f"{path.name}, cell {number}", "exec"), scope)
    return scope


def with_replaced(code: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        code = code.replace(old, new)
    return code


def run_in_kernel(path: Path, replaced: Mapping[str, str] = MappingProxyType({})) -> Any | None:
    """Run a notebook in a kernel; return it with its outputs, or None if there is no kernel."""
    try:
        import nbformat
        from jupyter_client.kernelspec import NoSuchKernel
        from nbclient import NotebookClient
    except ImportError:
        return None
    notebook: Any = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = with_replaced(cell.source, replaced)
    try:
        NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    except NoSuchKernel:
        return None
    return notebook


def printed(notebook: Any) -> str:
    """Return everything that the cells print."""
    return "".join(
        "".join(output["text"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if output["output_type"] == "stream"
    )


def shown(notebook: Any) -> str:
    """Return all HTML that the cells display."""
    return "".join(
        "".join(output.get("data", {}).get("text/html", ""))
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    )


def joined(outputs: list[Any]) -> list[Any]:
    """Join consecutive pieces of printed text.

    The number of pieces that a kernel sends depends on timing.
    """
    found: list[Any] = []
    for output in outputs:
        if found and output["output_type"] == found[-1]["output_type"] == "stream":
            found[-1] = {**found[-1], "text": found[-1]["text"] + output["text"]}
        else:
            found.append(output)
    return found


def keep(notebook: Any) -> dict[str, Any]:
    """Return the notebook as it is stored: without times, versions and warnings."""
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        kept = {key: cell[key] for key in ("cell_type", "source")}
        kept |= {"id": f"cell-{number}", "metadata": {}}
        if cell["cell_type"] == "code":
            # Warnings depend on the machine.
            outputs = [one for one in cell["outputs"] if one.get("name") != "stderr"]
            kept |= {"execution_count": cell["execution_count"], "outputs": joined(outputs)}
        cells.append(kept)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    for path in NOTEBOOKS:
        found = run_in_kernel(path)
        if found is None:
            raise SystemExit("There is no kernel; pip install ipykernel nbclient.")
        text = json.dumps(keep(found), indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(f"{text}\n", encoding="utf8")
