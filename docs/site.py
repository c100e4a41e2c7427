"""What mkdocs does beyond the pages here: the benchmarks' results become a page of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "benchmarks" / "RESULTS.md"


def on_files(files: Files, config: Any) -> Files:
    """The results lie beside the programs that write them, where links in a checkout find them."""
    text = RESULTS.read_text(encoding="utf8").replace("../docs/images/", "images/")
    files.append(File.generated(config, "results.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace("(../benchmarks/RESULTS.md", "(results.md")
