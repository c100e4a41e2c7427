"""Pages in a browser: nothing runs, words do not overlap. Skipped where there is no Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from typing import Any

import pytest

from spacy_latent.visualize import render
from tests.visualize.browser import FLAGS
from tests.visualize.structures import INJECTIONS, annotated, every_kind

CHROMIUM = shutil.which("chromium")
# Before the page: what would run is noted. After it: what is there is measured.
BEFORE = "<script>var ran=0;window.alert=function(){ran+=1}</script>"
AFTER = """<script>
var overlaps = [], svgs = document.querySelectorAll("svg.displacy");
svgs.forEach(function (svg) {
  var words = svg.querySelectorAll(".displacy-token"), boxes = [];
  words.forEach(function (word) { boxes.push(word.getBoundingClientRect()); });
  boxes.sort(function (a, b) { return a.left - b.left; });
  for (var i = 1; i < boxes.length; i++)
    if (boxes[i].left < boxes[i - 1].right) overlaps.push(words[i].textContent);
});
var found = JSON.stringify({
  ran: ran, overlaps: overlaps, pictures: svgs.length,
  across: document.documentElement.scrollWidth,
  background: getComputedStyle(document.body).backgroundColor
});
document.body.innerHTML = "";
document.title = found;
</script>"""
SENTENCES = {
    "en": "WWWW MMMM illicit winter swimming is a minimal will , I fill it".split(),
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
    assert found["ran"] == 0 and found["overlaps"] == []
    assert found["pictures"] == 5 + 2 * len(SENTENCES) + 2
    # Long sentences scroll in their boxes, and longer ones go on below; the page does not scroll.
    assert found["across"] <= 1200
    assert found["background"] == "rgb(255, 255, 255)"


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (title,) = re.findall(r"<title>(\{.*?\})</title>", done.stdout)
    return json.loads(unescape(title))
