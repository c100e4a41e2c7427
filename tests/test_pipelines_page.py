"""The code of docs/pipelines.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "pipelines.md"


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S)
    assert len(blocks) == 5
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    assert "<svg" in str(scope["html"])
    assert "<mark" in str(scope["marked"])
