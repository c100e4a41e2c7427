"""Texts run no code in a browser, and words do not overlap. Skipped if there is no Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from typing import Any

import pytest
from spacy.tokens import Doc

from spacy_latent.visualize import render, render_svg
from tests.visualize.browser import FLAGS, chromium
from tests.visualize.structures import INJECTIONS, annotated, every_kind

CHROMIUM = shutil.which("chromium")
# BEFORE precedes the page and counts calls of alert(). AFTER follows it and measures the drawings.
BEFORE = "<script>var ran=0;window.alert=function(){ran+=1}</script>"
# Two texts overlap if their boxes intersect in width, and by half of the lower box in height.
AFTER = """<script>
function overlaps(svg, kind) {
  var boxes = [], found = [];
  svg.querySelectorAll(kind).forEach(function (text) {
    boxes.push([text.textContent, text.getBoundingClientRect()]);
  });
  boxes.forEach(function (a, i) {
    boxes.slice(i + 1).forEach(function (b) {
      var across = Math.min(a[1].right, b[1].right) - Math.max(a[1].left, b[1].left);
      var down = Math.min(a[1].bottom, b[1].bottom) - Math.max(a[1].top, b[1].top);
      if (across > 0.5 && 2 * down > Math.min(a[1].height, b[1].height))
        found.push(a[0] + " | " + b[0]);
    });
  });
  return found;
}
var words = [], labels = [], svgs = document.querySelectorAll("svg.displacy");
svgs.forEach(function (svg) {
  words = words.concat(overlaps(svg, "text.displacy-word, text.displacy-token"));
  labels = labels.concat(overlaps(svg, ".displacy-label, .displacy-tag"));
});
var found = JSON.stringify({
  ran: ran, words: words, labels: labels, pictures: svgs.length,
  across: document.documentElement.scrollWidth,
  background: getComputedStyle(document.body).backgroundColor
});
document.body.innerHTML = "";
document.title = found;
</script>"""
SENTENCES = {
    "en": "WWWW MMMM illicit winter swimming is a minimal will , I fill it".split(),
    "de": "Die Donaudampfschifffahrtsgesellschaft und Rindfleischetikettierung im WWW".split(),
    "el": "Η γλώσσα των μωρών ψηφίζω".split(),
    "hi": "मैं कल विश्वविद्यालय में हिन्दी पढ़ता था".split(),
    "ru": "Общественность широко обсуждает предложенное".split(),
    "ar": "ذهب الولد إلى المدرسة في London صباحا".split(),
    "he": "הילד הלך לבית הספר אתמול".split(),
    "xx": "我 昨天 在 图书馆 借 了 三 本 关于 语言学 的 书".split(),
    "th": "ฉัน ไป โรงเรียน เมื่อวาน นี้".split(),
}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_nothing_runs_and_words_do_not_overlap(tmp_path):
    words = [word for word in INJECTIONS if word != "\ud800"]
    docs = list(every_kind(words).values())
    for lang, sentence in SENTENCES.items():
        heads = list(range(len(sentence)))
        docs.append(annotated("heads", heads, words=sentence, lang=lang if lang != "th" else "xx"))
        docs.append(annotated("spans", [[0, len(sentence) - 1]], words=sentence))
    docs += [annotated("heads", [0, *[1] * (n - 1)], words=["word"] * n) for n in (60, 80)]
    found = opened(render(docs, page=True, jupyter=False), tmp_path)
    assert found["ran"] == 0 and found["words"] == []
    assert found["pictures"] == 6 + 2 * len(SENTENCES) + 2
    # Long sentences scroll inside of their boxes, and longer ones are folded. The page itself does
    # not scroll sideways.
    assert found["across"] <= 1200
    assert found["background"] == "rgb(255, 255, 255)"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("compact", [False, True])
def test_neither_words_nor_labels_overlap_in_any_drawing(tmp_path, compact):
    """This holds with any installed fonts, and for characters without a font, drawn as boxes."""
    drawn = []
    for lang, words in SENTENCES.items():
        n = len(words)
        lang = lang if lang not in ("th", "xx") else "xx"
        flat = {"words": words, "lang": lang, "labels": ("O", "B-PER", "I-ORGANISATION")}
        roots = annotated("heads", [0] * n, {(0, m): 0.5 for m in range(1, n + 1)}, words, lang)
        heads = list(range(n))
        chain = annotated("heads", heads, {(m - 1, m): 0.5 for m in range(1, n + 1)}, words, lang)
        deps = ["ROOT"] + [f"compound:{'prt' if i % 2 else 'lvc'}" for i in range(1, n)]
        gold = Doc(chain.vocab, words=words, heads=[max(0, i - 1) for i in range(n)], deps=deps)
        parts = [[i, i + 1, i % 3] for i in range(n)]
        segments = annotated("segments", parts, {tuple(part): 0.5 for part in parts}, **flat)
        tags = annotated(
            "tags", [i % 3 for i in range(n)], {(i, i % 3): 0.5 for i in range(n)}, **flat
        )
        kinds = every_kind(words, lang)
        options = {"compact": compact}
        drawn += [
            render_svg(roots, options=options),
            render_svg(chain, options=options, gold=gold),
            render_svg(segments, options=options),
            render_svg(tags, style="tags", options=options),
            render_svg(tags, style="heatmap", options=options),
            *(render_svg(doc, options={**options, "alternatives": 2}) for doc in kinds.values()),
            render(chain, style="dep", jupyter=False, options=options),
        ]
    page = f"<html><head></head><body>{''.join(drawn)}</body></html>"
    found = opened(page, tmp_path)
    assert found["pictures"] == len(drawn)
    assert found["words"] == [] and found["labels"] == []


LEAST_TEXT = """
return Math.min(...[...document.querySelectorAll('svg.displacy text')].map(text => {
  const scale = text.getScreenCTM();
  return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(scale.b, scale.d);
}));
"""


def test_a_narrow_page_is_no_longer_than_the_screen_and_its_labels_can_be_read(tmp_path):
    chain = list(range(20))
    probable = {(max(0, m - 1), m): 0.5 for m in range(1, 21)}
    doc = annotated("heads", chain, probable, words=["word"] * 20, lang="en")
    path = tmp_path / "page.html"
    path.write_text(render(doc, page=True, jupyter=False), encoding="utf8")
    with chromium(tmp_path / "profile") as driver:
        size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(path.as_uri())
        assert driver.execute_script("return document.documentElement.scrollHeight") == 800
        assert driver.execute_script("return document.documentElement.scrollWidth") == 400
        assert driver.execute_script(LEAST_TEXT) >= 8.9


def opened(page: str, folder: Any) -> dict[str, Any]:
    path = folder / "page.html"
    page = page.replace("<head>", f"<head>{BEFORE}").replace("</body>", f"{AFTER}</body>")
    path.write_text(page, encoding="utf8")
    command = [
        CHROMIUM,
        *FLAGS,
        "--dump-dom",
        f"--user-data-dir={folder / 'profile'}",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    (title,) = re.findall(r"<title>(\{.*?\})</title>", done.stdout)
    return json.loads(unescape(title))


def test_a_long_word_does_not_make_a_page_wider_than_the_screen(tmp_path):
    doc = annotated("heads", [0], {(0, 1): 1.0}, words=["x" * 1000], lang="en")
    path = tmp_path / "page.html"
    path.write_text(render(doc, page=True, jupyter=False), encoding="utf8")
    with chromium(tmp_path / "profile") as driver:
        size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(path.as_uri())
        assert driver.execute_script("return document.documentElement.scrollWidth") == 400


# The places of the first character of each sentence and of its last two.
ORDER = """
const place = (node, i) => {
  const range = document.createRange();
  range.setStart(node, i);
  range.setEnd(node, i + 1);
  return range.getBoundingClientRect().x;
};
const read = '.sl-seen, figcaption, .sl-panel > header > span:last-child, ' +
  'svg > g > .sl-muted, svg > g > .sl-ink';
return [...document.querySelectorAll(read)].map(node => node.firstChild)
  .filter(node => node && node.length > 1)
  .map(node => [node.data, ...[0, node.length - 2, node.length - 1].map(i => place(node, i))]);
"""


def test_english_sentences_keep_their_order_on_a_page_from_right_to_left(tmp_path):
    words = SENTENCES["ar"]
    best, other = [0, *[1] * (len(words) - 1)], [2, 0, *[1] * (len(words) - 2)]
    weighted = [(best, 0.75), (other, 0.25)]
    doc = annotated("heads", best, {(0, 1): 0.5}, words, "ar", alternatives=weighted)
    doc.cats = {"good": 0.9}
    look = {"alternatives": 2}
    page = tmp_path / "page.html"
    whole = render(doc, page=True, jupyter=False, options=look)
    page.write_text(whole.replace("</body>", f"{render_svg(doc, options=look)}</body>"), "utf8")
    with chromium(tmp_path / "profile") as driver:
        driver.get(page.as_uri())
        found = [row for row in driver.execute_script(ORDER) if " " in row[0]]
    assert len(found) >= 5
    assert [text for text, _, before, last in found if last <= before] == []
    # A paragraph has several lines.
    assert [text for text, first, _, last in found if last <= first and len(text) < 90] == []
