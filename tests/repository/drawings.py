"""Draw the pictures that the code of pages in docs/ makes, and the pictures of the gallery.

python -m tests.repository.drawings
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.repository import gallery
from tests.repository.pages import ROOT, run_python

DOCS = ROOT / "docs"
# For each page: the names of its picture files, and the variables of its code that hold them.
PICTURES = {
    "concepts.md": {"three_answers": "picture"},
    "drawing.md": {
        "drawing_weighted_trees": "weighted",
        "drawing_gold": "beside_gold",
        "drawing_counters": "curves",
        "drawing_alignment": "lines",
        "drawing_heat_map": "heat_map",
        "drawing_brackets": "spans",
        "drawing_tags": "tag_rows",
        "drawing_rationale": "highlights",
    },
}


def pictures(page: str, scope: dict[str, Any]) -> dict[Path, str]:
    """Return the expected content of each picture file of a page.

    Args:
        page: name of the page's file.
        scope: the namespace of the page after its code has run.
    """
    return {
        DOCS / "images" / f"{name}.svg": f"{str(scope[variable]).strip()}\n"
        for name, variable in PICTURES.get(page, {}).items()
    }


if __name__ == "__main__":
    for page in PICTURES:
        for path, picture in pictures(page, run_python(DOCS / page)).items():
            path.write_text(picture, encoding="utf8")
    for path, picture in gallery.pictures().items():
        path.write_text(picture, encoding="utf8")
