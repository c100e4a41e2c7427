"""The code of docs/supervision.md runs, and its configs are there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "supervision.md"


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S)
    assert len(blocks) == 4
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)


def test_the_configs_of_the_page_are_there():
    names = set(re.findall(r"`(tree_\w+)`", PAGE.read_text(encoding="utf8")))
    assert len(names) >= 2
    for name in names:
        assert (PAGE.parents[1] / "configs" / f"{name}.cfg").is_file(), name
