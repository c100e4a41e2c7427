"""The site of the documentation is built without a warning and fetches nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a browser loads by itself, as opposed to links that a reader may follow.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*rel=\"?(?:canonical|next|prev)))[^>]*"
    r"(?:src|href)=\"?(?:https?:)?//[^\">\s]+"
)


@pytest.mark.slow
def test_the_site_is_whole_and_needs_no_other(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is in the extra 'docs'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        assert not LOADED.findall(page.read_text(encoding="utf8")), page.name
    for sheet in tmp_path.rglob("*.css"):
        found = re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')]+", sheet.read_text())
        assert not found, sheet.name
    assert not list(tmp_path.rglob("*.py"))
