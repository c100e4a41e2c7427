"""The code of docs/rationales.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "rationales.md"


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S)
    assert len(blocks) == 2
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    assert "rationale" in str(scope["html"])
