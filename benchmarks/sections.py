"""Write sections of the results: one for each program, or each program and corpus."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.headlines import write_headlines
from benchmarks.pages import FOLDER, PAGES, markers, page_of

INTRODUCTION = (
    "Written by `python -m benchmarks NAME`. "
    "[Headlines](../RESULTS.md) says how to read the tables."
)


def write_section(name: str, title: str, lines: list[str], folder: Path = FOLDER) -> Path:
    """Replace a section on its page, or append it, and write RESULTS.md again.

    Args:
        name: The name of the section. :data:`benchmarks.pages.PAGES` has its page.
        title: Its heading.
        lines: The lines below the heading.
        folder: Folder of the pages. RESULTS.md is only written for the pages of this repository.

    Returns:
        The path of the page.
    """
    page = page_of(name)
    path = folder / f"{page}.md"
    begin, end = markers(name)
    section = "\n".join([begin, f"## {title}", "", *lines, end])
    text = f"# {PAGES[page][0]}\n\n{INTRODUCTION}\n"
    text = path.read_text(encoding="utf8") if path.exists() else text
    if begin in text:
        before, after = text.split(begin)[0], text.split(end)[1]
        text = before + section + after
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    if folder == FOLDER:
        try:
            write_headlines()
        except LookupError as error:
            # The section stays written, because it may have taken hours to measure.
            print(f"RESULTS.md is as it was. {error}", file=sys.stderr)
    return path
