"""What mkdocs does beyond the pages here: what lies elsewhere in a checkout is on the site, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Where links in a checkout find them, and the names of their pages.
ELSEWHERE = {
    "benchmarks/RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def on_files(files: Files, config: Any) -> Files:
    for place, name in ELSEWHERE.items():
        text = (ROOT / place).read_text(encoding="utf8")
        text = text.replace("../docs/images/", "images/").replace("](docs/", "](")
        for other, page in ELSEWHERE.items():
            text = text.replace(f"]({other}", f"]({page}")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    for place, name in ELSEWHERE.items():
        markdown = markdown.replace(f"(../{place}", f"({name}")
    return markdown
