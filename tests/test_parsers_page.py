"""The code of docs/parsers.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "parsers.md"


def test_the_code_of_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S)
    assert len(blocks) == 4
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    printed = capsys.readouterr().out.splitlines()
    assert all("They saw the tree" in line for line in printed[:3])
    assert len(printed) == 4 and float(printed[3]) < 0.3


def test_the_configs_of_the_page_are_there():
    names = re.findall(r"^\| `(\w+)`", PAGE.read_text(encoding="utf8"), re.M)
    assert len(set(names)) == 5
    for name in names:
        assert (PAGE.parents[1] / "configs" / f"listops_{name}.cfg").is_file(), name
