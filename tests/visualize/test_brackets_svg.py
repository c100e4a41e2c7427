"""Spans and segments are drawn as brackets below the words."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from spacy_latent.visualize import render
from spacy_latent.visualize.legend import legend
from tests.visualize.structures import annotated
from tests.visualize.test_tree_svg import SVG, word_places

WORDS = ["a", "b", "c", "d"]
PARTS = {(0, 3): 1.0, (1, 2): 0.8, (2, 3): 0.2, (0, 0): 1.0}


def brackets(svg: str) -> dict[str, dict[str, object]]:
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if group.get("class") == "sl-bracket":
            left, _, low, right, _ = map(float, re.findall(r"[\d.]+", group[1].get("d", "")))
            found[group[0].text] = {
                "ends": (left, right),
                "low": low,
                "width": float(group[1].get("stroke-width", 0)),
                "dashed": group[1].get("stroke-dasharray") is not None,
                "color": group[1].get("stroke"),
            }
    return found


def test_brackets_span_their_words_and_larger_ones_lie_below():
    doc = annotated("spans", [[0, 3], [1, 2], [0, 0]], PARTS, WORDS)
    svg = render(doc, jupyter=False, options={"threshold": 0.1})
    found, places = brackets(svg), word_places(ElementTree.fromstring(svg))
    assert set(found) == {"a b c d (1.00)", "b c (0.80)", "c d (0.20)"}
    left, right = found["b c (0.80)"]["ends"]
    assert places["a"] < left < places["b"] and places["c"] < right < places["d"]
    lows = [found[title]["low"] for title in ("b c (0.80)", "c d (0.20)", "a b c d (1.00)")]
    assert len(set(lows)) == 3 and max(lows) == lows[2]
    widths = [found[title]["width"] for title in ("c d (0.20)", "b c (0.80)", "a b c d (1.00)")]
    assert widths == sorted(set(widths))
    assert [title for title, bracket in found.items() if bracket["dashed"]] == ["c d (0.20)"]


def test_brackets_run_from_right_to_left():
    svg = render(annotated("spans", [[0, 1]], words=WORDS, lang="he"), jupyter=False)
    places = word_places(ElementTree.fromstring(svg))
    left, right = brackets(svg)["a b"]["ends"]
    assert places["a"] > places["b"] > places["c"]
    assert places["c"] < left < places["b"] < places["a"] < right


def test_segments_have_labels_and_a_color_for_each():
    doc = annotated("segments", [[0, 1, 0], [1, 3, 1], [3, 4, 0]], words=WORDS)
    found = brackets(render(doc, jupyter=False))
    assert set(found) == {"a (0)", "b c (1)", "d (0)"}
    assert found["a (0)"]["color"] == found["d (0)"]["color"] != found["b c (1)"]["color"]
    found = brackets(render(doc, jupyter=False, options={"colors": {"1": "#123456"}}))
    assert found["b c (1)"]["color"] == "#123456"


def test_a_given_color_is_used_beside_probabilities():
    parts = {(0, 2, 0): 0.9, (2, 4, 1): 0.8}
    doc = annotated("segments", list(parts), parts, WORDS, labels=("NP", "VP"))
    found = brackets(render(doc, jupyter=False, options={"colors": {"VP": "#123456"}}))
    assert found["c d (VP 0.80)"]["color"] == "#123456" != found["a b (NP 0.90)"]["color"]


def test_the_legend_explains_probabilities_only_where_there_are_some():
    best, explained = [[0, 2, 0], [2, 4, 1]], legend({"number"})
    meaning = re.findall(r"</span>(.*?)</li>", explained)[0]
    parts = {tuple(part): 0.9 for part in best}
    for known, shown in ((parts, True), (parts, False), (None, False)):
        doc = annotated("segments", best, known, WORDS, labels=("NP", "VP"))
        page = render(doc, page=True, jupyter=False, options={"probabilities": shown})
        assert (meaning in page) == bool(known and shown)


def test_deep_trees_of_spans_stay_low():
    n = 100
    doc = annotated("spans", [[0, i] for i in range(1, n)], words=["w"] * n)
    one_row = {"fold": 10_000}
    svg = render(doc, jupyter=False, options=one_row)
    height = float(re.findall(r' height="([\d.]+)"', svg)[0])
    assert height < 700
