"""The site of the documentation is built without a warning, and loads nothing from other hosts."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.visualize.browser import chromium

ROOT = Path(__file__).parents[2]
# Resources of other hosts that a browser loads, as opposed to links that a reader may follow.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*rel=\"?(?:canonical|next|prev)))[^>]*"
    r"(?:src|href)=\"?(?:https?:)?//[^\">\s]+"
)
# The pages with the widest tables and pictures.
NARROW = (
    "index.html",
    "choosing.html",
    "crf_ner.html",
    "results.html",
    "results_listops.html",
    "notebook_listops.html",
    "gallery.html",
    "reports.html",
)
BEYOND = """
return [...document.querySelectorAll('.md-content :is(td, img, h1, h2, p)')]
  .filter(node => !node.closest('.picture') && node.getBoundingClientRect().right > 401)
  .map(node => node.textContent);
"""
BROKEN = """
return [...document.querySelectorAll('.md-content td code')]
  .filter(node => !/[\\s.,=:()-]/.test(node.textContent) && node.getClientRects().length > 1)
  .map(node => node.textContent);
"""
# Pictures that are scaled down until their labels cannot be read, and boxes wider than the page.
SMALL = """
return [...document.querySelectorAll('.picture')].filter(box => {
  const image = box.querySelector('img'), shown = image.getBoundingClientRect().width;
  return shown && (shown < 0.59 * image.naturalWidth || box.getBoundingClientRect().right > 401);
}).map(box => box.innerHTML);
"""
TWICE = """
return [...document.querySelectorAll('img[src$="#only-dark"]')]
  .filter(image => image.getBoundingClientRect().width).map(image => image.src);
"""
MARK = """
const style = getComputedStyle(document.querySelector('mark.entity'));
return [style.color, style.backgroundColor];
"""
SCHEME = "return document.body.getAttribute('data-md-color-scheme')"


@pytest.mark.slow
def test_the_site_is_whole_and_needs_no_other(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is in the extra 'docs'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        assert not LOADED.findall(page.read_text(encoding="utf8")), page.name
    for sheet in tmp_path.rglob("*.css"):
        found = re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')]+", sheet.read_text())
        assert not found, sheet.name
    assert not list(tmp_path.rglob("*.py"))
    # On a narrow screen a row of a table becomes a card, for which each cell needs its column.
    for page in pages:
        cells = re.findall(r"<td[^>]*>", page.read_text(encoding="utf8").split("<article", 1)[-1])
        assert all("data-column=" in cell for cell in cells), page.name
    assert 'id="crf_ner"' in (tmp_path / "reference.html").read_text(encoding="utf8")
    assert "<svg" in (tmp_path / "notebook_listops.html").read_text(encoding="utf8")
    # Labels of a picture are small on a narrow screen, so it links to its own file.
    drawn = (tmp_path / "results_parsing.html").read_text(encoding="utf8")
    assert '<a href="images/learning_parsers.svg"><img' in drawn
    # A code block inside of a list does not restart its numbers.
    for page in ("english.html", "releasing.html"):
        assert (tmp_path / page).read_text(encoding="utf8").count("<ol>") == 1, page
    check_narrow(tmp_path)


def check_narrow(site: Path) -> None:
    """Check pages in a browser of 400 pixels width, if one is installed.

    Nothing except code is cut off, no name in a table is broken across lines, and labels of
    pictures can be read. Colours follow the scheme of the system.
    """
    binary = shutil.which("chromium"), shutil.which("chromedriver")
    if None in binary or importlib.util.find_spec("selenium") is None:
        return
    with chromium(site / "profile") as driver:
        size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for page in NARROW:
            driver.get((site / page).as_uri())
            assert driver.execute_script("return document.documentElement.scrollWidth") <= 400
            assert driver.execute_script(BEYOND) == [], page
            assert driver.execute_script(BROKEN) == [], page
            assert driver.execute_script(SMALL) == [], page
            assert driver.execute_script(TWICE) == [], page
        # A later visit follows the system as well, since the reader has not chosen a scheme.
        for scheme, name in (("light", "default"), ("dark", "slate"), ("light", "default")):
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            driver.get((site / "index.html").as_uri())
            assert driver.execute_script(SCHEME) == name
            driver.get((site / "notebook_incomplete.html").as_uri())
            ink, ground = (
                [int(number) for number in re.findall(r"\d+", color)[:3]]
                for color in driver.execute_script(MARK)
            )
            assert min(ground) - max(ink) > 128, scheme


def test_names_of_columns_are_those_of_the_head() -> None:
    site = runpy.run_path(str(ROOT / "docs" / "site.py"))
    table = (
        '<table><thead><tr><th>a <code>b</code></th><th>"c" &lt; d</th></tr></thead>'
        "<tbody><tr><td>1</td><td>2</td></tr><tr><td>3</td><td>4</td></tr></tbody></table>"
    )
    named = site["on_page_content"](f"<p>1</p>{table}")
    columns = re.findall(r'<td data-column="([^"]*)">(\d)</td>', named)
    second = "&quot;c&quot; &lt; d"
    assert columns == [("a b", "1"), (second, "2"), ("a b", "3"), (second, "4")]
    assert re.sub(r' data-column="[^"]*"', "", named) == f"<p>1</p>{table}"
    # An empty first cell stands for the cell above it. A card needs that text in an attribute.
    below = site["on_page_content"](table.replace("<td>3</td>", "<td></td>"))
    assert '<td data-above="1" data-column="a b"></td>' in below
    assert "data-above" not in site["on_page_content"](table.replace("<td>4</td>", "<td></td>"))
    # In a table, a percentage or a deviation stays on one line.
    of_percent = site["on_page_content"](f"<p>4 %</p>{table.replace('>1<', '>4.1 %<')}")
    assert ">4.1&nbsp;%</td>" in of_percent and "<p>4 %</p>" in of_percent
    deviating = site["on_page_content"](table.replace(">1<", ">4 ± 1<"))
    assert ">4&nbsp;±&nbsp;1</td>" in deviating


def test_a_picture_shrinks_as_long_as_its_labels_can_be_read() -> None:
    site = runpy.run_path(str(ROOT / "docs" / "site.py"))
    markup = '<p><img alt="a" src="images/drawing_weighted_trees.svg" /></p>'
    shown = site["on_page_content"](markup)
    drawn = (ROOT / "docs" / "images" / "drawing_weighted_trees.svg").read_text(encoding="utf8")
    found = re.search(r'width="([\d.]+)"', drawn)
    assert found is not None
    width, least = float(found[1]), re.findall(r"min-width:(\d+)px", shown)
    smallest = min(float(size) for size in re.findall(r' font-size="([\d.]+)"', drawn))
    assert len(least) == 1 and smallest * float(least[0]) / width == pytest.approx(9, abs=0.05)
    # Pictures of each colour scheme have a least width, but a missing file has none.
    for place in ("images/report.png#only-light", "images/report_dark.png#only-dark"):
        assert "min-width:700px" in site["on_page_content"](f'<img alt="a" src="{place}">')
    assert "min-width" not in site["on_page_content"]('<img alt="a" src="images/none.svg">')
