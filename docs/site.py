"""What mkdocs does beyond the pages here: what lies elsewhere in a checkout is on the site, too."""

from __future__ import annotations

import json
import posixpath
import re
import sys
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Where links in a checkout find them, and the names of their pages.
ELSEWHERE = {
    "benchmarks/RESULTS.md": "results.md",
    **{
        f"benchmarks/results/{path.name}": f"results_{path.name}"
        for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    },
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "notebooks/quickstart.ipynb": "notebook_listops.md",
    "notebooks/structured_attention.ipynb": "notebook_tensors.md",
    "notebooks/incomplete_annotation.ipynb": "notebook_incomplete.md",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
PICTURE = re.compile(r"!\[([^\]]*)\]\((images/\w+)\.png\)")
SHOWN = re.compile(r'(<img [^>]*src="(images/[^"#]+)(?:#[\w-]+)?"[^>]*>)')
TABLE = re.compile(r"<table>.*?</table>", re.S)
CELL = re.compile(r"<th[^>]*>(.*?)</th>", re.S)
TAG = re.compile(r"<[^>]+>")
SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)(pt)?"')
LABEL = re.compile(r'<text[^>]* font-size="([\d.]+)"|<svg [^>]*font-size="([\d.]+)"')
# Pixels of the smallest labels of a picture; below this size of them the picture scrolls.
READABLE = 9.0
# Scale for pictures without such labels.
LEAST_SCALE = 0.7
# Greatest number of characters of a cell that may become as narrow as its longest word.
SHORT_CELL = 24
ENTRIES = re.compile(r"<!-- entries:.*?<!-- end of entries -->", re.S)


def on_files(files: Files, config: Any) -> Files:
    for place, name in ELSEWHERE.items():
        text = (ROOT / place).read_text(encoding="utf8")
        text = as_markdown(json.loads(text)) if place.endswith(".ipynb") else text
        files.append(File.generated(config, name, content=with_links_of_the_site(text, place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    # A generated page has its links from on_files.
    if page.file.generated_by is None:
        markdown = ENTRIES.sub(lambda _: entries_of_the_reference(), markdown)
        markdown = with_links_of_the_site(markdown, f"docs/{page.file.src_uri}")
    return PICTURE.sub(for_both_schemes, markdown)


@cache
def entries_of_the_reference() -> str:
    """Return the entries of all registered names; a checkout only says how to get them."""
    # The script mkdocs, other than python -m mkdocs, does not look in the directory where it runs.
    sys.path.insert(0, str(ROOT))
    from tests.repository.reference import entries

    return entries()


def with_links_of_the_site(markdown: str, place: str) -> str:
    """Return a page with its links as they are on the site.

    Args:
        markdown: The page.
        place: Its path in a checkout, from which its links lead.
    """

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), found[1]))
        if target in ELSEWHERE:
            return ELSEWHERE[target]
        return target.removeprefix("docs/") if target.startswith("docs/") else found[1]

    return LINK.sub(link, markdown)


def for_both_schemes(picture: re.Match[str]) -> str:
    """A picture of pixels has no colours of its own for a dark page: there may be another one."""
    alternative, name = picture.groups()
    if not (ROOT / "docs" / f"{name}_dark.png").exists():
        return picture[0]
    return f"![{alternative}]({name}.png#only-light)![{alternative}]({name}_dark.png#only-dark)"


def on_page_content(html: str, **_: Any) -> str:
    """Every cell of a table knows its column, which narrow screens show beside it.

    A picture leads to itself at its full size. In the text it becomes smaller only as long as its
    labels can be read, and scrolls beyond that.
    """
    html = SHOWN.sub(scrolling, html)
    return TABLE.sub(with_columns, html)


def scrolling(picture: re.Match[str]) -> str:
    image, place = picture.groups()
    width = least_width(place)
    style = f' style="min-width:{width}px"' if width else ""
    return f'<span class="picture"><a href="{place}">{image[:-1].rstrip("/")}{style}></a></span>'


@cache
def least_width(place: str) -> int:
    """Return the pixels below which the labels of a picture cannot be read, or 0 for none.

    Args:
        place: Path of the picture in the directory of the pages.
    """
    path = ROOT / "docs" / place
    if path.suffix == ".png":
        # The width is the first number of the first block of such a file.
        return round(int.from_bytes(path.read_bytes()[16:20], "big") * LEAST_SCALE)
    drawn = path.read_text(encoding="utf8") if path.is_file() else ""
    size = SIZE.search(drawn)
    if size is None:
        return 0
    width = float(size[1]) * (4 / 3 if size[2] else 1)
    labels = [float(own or common) for own, common in LABEL.findall(drawn)]
    return round(width * (min(1.0, READABLE / min(labels)) if labels else LEAST_SCALE))


def with_units(cells: str) -> str:
    """A figure is not divided from its unit or its deviation, not even in a narrow column."""
    return re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)", "&nbsp;", cells)


def with_columns(table: re.Match[str]) -> str:
    head, body = table[0].split("</thead>", 1)
    names = [unescape(TAG.sub("", name)).strip() for name in CELL.findall(head)]
    rows, above = [], ""
    for row in body.split("</tr>"):
        first, *cells = re.split(r"<td(?=[ >])", row)
        texts = [unescape(TAG.sub("", f"<td{cell}")).strip() for cell in cells]
        given = zip(cells, texts, [*names, *[""] * len(cells)])
        named = [
            f'<td data-column="{escape(name)}"{long(text)}{cell}' for cell, text, name in given
        ]
        # An empty first cell stands for the one above it, which a card does not have.
        if texts and texts[0]:
            above = texts[0]
        elif texts and above:
            named[0] = f'<td data-above="{escape(above)}"{named[0].removeprefix("<td")}'
        rows.append("".join([first, *named]))
    return f"{head}</thead>{with_units('</tr>'.join(rows))}"


def long(text: str) -> str:
    """Return the attribute of a cell with so much text that it needs some width."""
    return " data-long" if len(text) > SHORT_CELL else ""


def as_markdown(notebook: dict[str, Any]) -> str:
    """The cells of a notebook with the outputs that are kept with it."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            for html in ["".join(output.get("data", {}).get("text/html", ""))]:
                # A blank line would end it.
                lines = [line for line in html.splitlines() if line.strip()]
                if lines:
                    parts.append("\n".join(["<div>", *lines, "</div>"]))
    return "\n\n".join(parts) + "\n"
