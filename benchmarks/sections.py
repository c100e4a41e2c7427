"""RESULTS.md: one section for each program, between markers of its own."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


def write_section(name: str, title: str, lines: list[str], path: Path = RESULTS) -> None:
    """Replace the section of program ``name``, or append it."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = "\n".join([begin, f"## {title}", "", *lines, end])
    text = path.read_text(encoding="utf8") if path.exists() else "# Results\n\n"
    if begin in text:
        before, after = text.split(begin)[0], text.split(end)[1]
        text = before + section + after
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    path.write_text(text, encoding="utf8")
