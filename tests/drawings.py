"""The pictures of docs/drawing.md, from the code of that page.

python -m tests.drawings
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "drawing.md"
# By the file's name: the variable of the page that holds the picture.
PICTURES = {
    "drawing_weighted_trees": "weighted",
    "drawing_gold": "beside_gold",
    "drawing_alignment": "lines",
    "drawing_heat_map": "heat_map",
    "drawing_brackets": "spans",
    "drawing_tags": "tag_rows",
    "drawing_rationale": "highlights",
}


def run_page() -> dict[str, object]:
    """What the names of the page stand for after its code has run."""
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S):
        exec(block, scope)
    return scope


def pictures() -> dict[Path, str]:
    scope = run_page()
    return {
        DOCS / "images" / f"{name}.svg": f"{str(scope[variable]).strip()}\n"
        for name, variable in PICTURES.items()
    }


if __name__ == "__main__":
    for path, picture in pictures().items():
        path.write_text(picture, encoding="utf8")
