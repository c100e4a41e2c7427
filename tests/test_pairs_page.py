"""The code of docs/pairs.md runs, and what it names is there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "pairs.md"


def test_the_code_of_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S)
    assert len(blocks) == 4
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "[A man sleeps.] [He is asleep.]"
    assert printed[1] == "same"
    aligned = [line.split()[:2] for line in printed[2:-1]]
    assert aligned == [[word, word] for word in "he reads a book".split()]
    assert float(printed[-1]) == 1.0


def test_the_configs_of_the_page_are_there():
    names = set(re.findall(r"`(pairs_\w+)`", PAGE.read_text(encoding="utf8")))
    assert len(names) >= 4
    for name in names:
        assert (PAGE.parents[1] / "configs" / f"{name}.cfg").is_file(), name
