"""The code of docs/crf_ner.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "crf_ner.md"


def test_the_code_of_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S)
    assert len(blocks) == 4
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "[('London', 'GPE')]"
