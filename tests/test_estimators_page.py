"""The code of docs/estimators.md runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "estimators.md"


def test_the_code_of_the_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.S)
    exec(block, {})
