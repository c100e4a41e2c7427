"""Arcs of drawn trees have the right ends, and a width and darkness by their probability."""

from __future__ import annotations

import itertools
import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_latent.errors import LatentError
from spacy_latent.visualize import render, render_svg
from spacy_latent.visualize.arcs_svg import DrawnArc
from spacy_latent.visualize.displacy_drawing import make_drawings
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.nesting import crossing, levels
from spacy_latent.visualize.text_size import text_width
from spacy_latent.visualize.tree_svg import draw_tree
from tests.visualize.structures import annotated

SVG = "{http://www.w3.org/2000/svg}"


def parsed(content: str) -> ElementTree.Element:
    return ElementTree.fromstring(f'<svg xmlns="{SVG[1:-1]}">{content}</svg>')


def arrows(root: ElementTree.Element) -> list[dict[str, object]]:
    """Return the ends, the height and the appearance of each arc."""
    found = []
    for group in root.iter(f"{SVG}g"):
        if "displacy-arrow" not in group.get("class", ""):
            continue
        title, line, head = group
        numbers = [float(x) for x in re.findall(r"-?[\d.]+", line.get("d", ""))]
        if len(numbers) == 3:
            left, turn, base = numbers
            right = left
        else:
            left, base, turn, right = (numbers[i] for i in (0, 1, 4, 8))
        found.append(
            {
                "title": title.text,
                "left": left,
                "base": base,
                "turn": turn,
                "right": right,
                "width": float(line.get("stroke-width", 0)),
                "opacity": float(group.get("opacity", 0)),
                "dashed": line.get("stroke-dasharray") is not None,
                "tip": float(re.findall(r"-?[\d.]+", head.get("d", ""))[0]),
                "crossing": "sl-crossing" in group.get("class", ""),
            }
        )
    return found


def word_places(root: ElementTree.Element) -> dict[str, float]:
    return {
        node.text or "": float(node.get("x", 0))
        for node in root.iter(f"{SVG}text")
        if "displacy-word" in node.get("class", "")
    }


def tree(heads, words="abcdefgh", look=None, **options):
    look = look or DrawingOptions()
    arcs = [DrawnArc(None if h == 0 else h - 1, m, 1.0) for m, h in enumerate(heads)]
    return draw_tree(list(words[: len(heads)]), arcs, look, "title", **options)


def test_arcs_lead_from_heads_to_modifiers():
    root = parsed(tree([2, 0, 2]).content)
    places = word_places(root)
    by_title = {arrow["title"]: arrow for arrow in arrows(root)}
    assert set(by_title) == {"b → a", "b → c", "root → b"}
    for title, arrow in by_title.items():
        head, modifier = title.split(" → ")
        assert abs(arrow["tip"] - places[modifier]) < 15
        other = {arrow["left"], arrow["right"]} - {arrow["tip"]}
        if head != "root":
            assert all(abs(end - places[head]) < 15 for end in other)


def test_width_and_opacity_rise_with_probability():
    probabilities = [0.0, 0.1, 0.3, 0.6, 0.95, 1.0]
    arcs = [DrawnArc(0, i + 1, p) for i, p in enumerate(probabilities)]
    picture = draw_tree([*"abcdefg"], arcs, DrawingOptions(), "title")
    found = sorted(arrows(parsed(picture.content)), key=lambda arrow: arrow["right"])
    for name in ("width", "opacity"):
        values = [arrow[name] for arrow in found]
        assert all(a < b for a, b in itertools.pairwise(values)) and values[0] > 0
    assert max(arrow["width"] for arrow in found) == DrawingOptions().arrow_stroke
    (nan,) = arrows(
        parsed(draw_tree(["a", "b"], [DrawnArc(0, 1, np.nan)], DrawingOptions(), "").content)
    )
    assert nan["width"] == found[0]["width"]


intervals = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] < pair[1]),
    max_size=14,
    unique=True,
)


@settings(max_examples=80, deadline=None)
@given(intervals)
def test_overlapping_arcs_have_different_levels(pairs):
    found = levels(pairs)
    by_definition = [any(a < c < b < d or c < a < d < b for c, d in pairs) for a, b in pairs]
    assert crossing(pairs) == by_definition
    for (i, (a, b)), (j, (c, d)) in itertools.combinations(enumerate(pairs), 2):
        if max(a, c) < min(b, d):
            assert found[i] != found[j]
            if c <= a and b <= d:
                assert found[i] < found[j]
    # No level is left empty.
    assert set(found) == set(range(1, max(found, default=0) + 1))


def test_non_projective_arcs_cross_and_are_marked():
    found = {arrow["title"]: arrow for arrow in arrows(parsed(tree([0, 4, 1, 1]).content))}
    assert found["d → b"]["crossing"] and found["a → c"]["crossing"]
    assert not found["a → d"]["crossing"]
    assert found["d → b"]["turn"] != found["a → c"]["turn"]


def test_deep_and_flat_trees_stay_low():
    for heads in ([0, *range(1, 60)], [0, *[1] * 59]):
        picture = tree(heads, words=["w"] * 60)
        assert picture.size[1] < 450
    # The limit also holds with up to four arcs for each word.
    arcs = [DrawnArc(h, m, 0.1) for h in range(60) for m in range(60) if 0 < abs(h - m) < 3]
    assert draw_tree(["w"] * 60, arcs, DrawingOptions(), "title").size[1] < 450


def test_right_to_left_is_the_mirror_image():
    heads = [2, 0, 2, 3]
    places = word_places(parsed(tree(heads).content))
    root = parsed(tree(heads, look=DrawingOptions(direction="rtl")).content)
    mirrored = word_places(root)
    across = tree(heads).size[0]
    assert all(mirrored[word] == pytest.approx(across - x, abs=0.02) for word, x in places.items())
    assert [node.get("direction") for node in root.iter(f"{SVG}text")][-1] == "rtl"
    tips = {arrow["title"]: arrow["tip"] for arrow in arrows(root)}
    for title, tip in tips.items():
        assert abs(tip - mirrored[title.split(" → ")[1]]) < 15
    doc = annotated("heads", [2, 0], words=["ذهب", "الولد"], lang="ar")
    page = render(doc, page=True, jupyter=False)
    assert 'dir="rtl"' in page and 'lang="ar"' in page
    # English sentences end at the right on this page, too.
    assert page.index('<p class="sl-seen"><bdi>') < page.index("</bdi></p>")
    first, second = word_places(ElementTree.fromstring(render(doc, jupyter=False))).values()
    assert first > second


@pytest.mark.parametrize(
    ("words", "lang", "direction"),
    [
        (["שלום", "עולם"], "xx", "rtl"),
        (["ذهب", "ل", "OK"], "xx", "rtl"),
        (["12", "hello", "עולם"], "xx", "ltr"),
        (["1", "."], "xx", "ltr"),
        (["שלום", "עולם"], "en", "ltr"),
        (["hello"], "he", "rtl"),
    ],
)
def test_of_no_particular_language_the_letters_tell_the_direction(words, lang, direction):
    heads = list(range(len(words)))
    doc = annotated("heads", heads, words=words, lang=lang)
    svg = ElementTree.fromstring(render(doc, jupyter=False))
    assert svg.get("direction") == direction
    places = list(word_places(svg).values())
    assert places == sorted(places, reverse=direction == "rtl")
    page = render(doc, page=True, jupyter=False)
    assert f'<html lang="{lang}" dir="{direction}">' in page
    (drawing,) = make_drawings(doc)
    assert drawing["settings"] == {"lang": lang, "direction": direction}


PARTS = {(2, 1): 0.9, (0, 1): 0.1, (0, 2): 0.7, (1, 2): 0.3, (2, 3): 1.0}


def test_a_threshold_draws_all_probable_arcs_and_dashes_those_outside_of_the_tree():
    doc = annotated("heads", [2, 0, 2], PARTS, words=["a", "b", "c"])

    def drawn(threshold):
        svg = render(doc, jupyter=False, options={"threshold": threshold})
        return {a["title"]: a["dashed"] for a in arrows(ElementTree.fromstring(svg))}

    best = {"b → a (0.90)": False, "root → b (0.70)": False, "b → c (1.00)": False}
    assert drawn(None) == drawn(0.5) == best
    assert drawn(0.8) == {"b → a (0.90)": False, "b → c (1.00)": False}
    assert drawn(0.2) == {**best, "a → b (0.30)": True}
    assert drawn(0.05) == {**best, "a → b (0.30)": True, "root → a (0.10)": True}
    with pytest.raises(LatentError, match="annotate"):
        render(annotated("heads", [0]), jupyter=False, options={"threshold": 0.5})


def test_weighted_trees_stand_side_by_side_on_one_line():
    alternatives = [(np.array([2, 0, 2]), 0.75), (np.array([2, 3, 0]), 0.25)]
    doc = annotated("heads", [2, 0, 2], PARTS, words=["a", "b", "c"], alternatives=alternatives)
    html = render(doc, jupyter=False, options={"alternatives": 5})
    assert html.count("<svg") == 2
    assert html.index("structure 0.75<") < html.index("<svg") < html.index("structure 0.25<")
    svg = render_svg(doc, options={"alternatives": 2})
    assert svg.count("<svg") == 1 and svg.index("structure 0.75") < svg.index("structure 0.25")
    places = []
    for group in ElementTree.fromstring(svg).findall(f"{SVG}g"):
        word = next((n for n in group.iter() if "displacy-word" in n.get("class", "")), None)
        if word is not None:
            x, y = map(float, re.findall(r"[\d.]+", group.get("transform", "")))
            places.append((x, y + float(word.get("y", 0))))
    (left, first), (right, second) = places
    assert left < right and abs(first - second) <= 1
    assert render(doc, jupyter=False, options={"alternatives": 0}).count("<svg") == 1


def test_gold_hangs_below_and_differences_are_set_apart():
    doc = annotated("heads", [2, 0, 2], words=["a", "b", "c"])
    gold = Doc(doc.vocab, words=["a", "b", "c"], heads=[1, 1, 0], deps=["x", "ROOT", "y"])
    root = ElementTree.fromstring(render(doc, gold=gold, jupyter=False))
    found = arrows(root)
    above = [arrow for arrow in found if arrow["turn"] < arrow["base"]]
    below = [arrow for arrow in found if arrow["turn"] > arrow["base"]]
    titles = {arrow["title"]: arrow["dashed"] for arrow in above if arrow["title"][0] != "r"}
    assert titles == {"b → a": False, "b → c": True}
    titles = {arrow["title"]: arrow["dashed"] for arrow in below if arrow["title"][0] != "r"}
    assert titles == {"b → a (x)": False, "a → c (y)": True}
    assert "2 of 3 arcs as in gold" in render(doc, gold=gold, page=True, jupyter=False)
    ignored = {"ignore": ["c"]}
    assert "2 of 2 arcs as in gold" in render(
        doc, gold=gold, page=True, jupyter=False, options=ignored
    )
    with pytest.raises(LatentError, match="tokenised"):
        render(doc, gold=[Doc(doc.vocab, words=["a"])], jupyter=False)


SENTENCE = (
    "When the committee met on Tuesday , an old chairman quietly told several angry members that "
    "nothing had changed ."
).split()
SENTENCE_HEADS = [4, 3, 4, 12, 4, 5, 12, 10, 10, 12, 12, 0, 15, 15, 12, 19, 19, 19, 12, 12]


def test_a_sentence_of_20_words_with_probabilities_fits_a_screen():
    parts = {(head, m): 0.99 for m, head in enumerate(SENTENCE_HEADS, 1)}
    doc = annotated("heads", SENTENCE_HEADS, parts, words=SENTENCE)
    assert len(SENTENCE) == 20
    svg = ElementTree.fromstring(render(doc, jupyter=False))
    assert float(svg.get("width", 0)) < 1280 - 64


@pytest.mark.parametrize("below", [False, True])
def test_no_line_runs_through_a_label_where_there_is_room(below):
    # Vertical lines of crossing arcs, and of a root below other arcs, cut through horizontal lines.
    ends = [(0, 7), (5, 11), (2, 9), (None, 4), (1, 3), (None, 10), (8, 6)]
    arcs = [DrawnArc(h, m, 0.5, "0.50") for h, m in ends]
    words = ["word"] * 12
    picture = draw_tree(words, [] if below else arcs, DrawingOptions(), "", arcs if below else [])
    root = parsed(picture.content)
    labels = [node for node in root.iter(f"{SVG}text") if "label" in node.get("class", "")]
    assert len(labels) == len(arcs)
    # Later elements are drawn on top: labels come after all lines.
    order = list(root.iter())
    last = max(order.index(node) for node in root.iter(f"{SVG}path"))
    assert all(order.index(label) > last for label in labels)
    lines = [
        (a[x], sorted((a["base"], a["turn"]))) for a in arrows(root) for x in ("left", "right")
    ]
    for label in labels:
        x, y = float(label.get("x", 0)), float(label.get("y", 0))
        half = text_width(label.text or "", 10) / 2
        for place, (top, bottom) in lines:
            assert abs(place - x) >= half or not top < y - 4 < bottom
        # No horizontal line runs through the label either.
        assert not any(y - 8 < arrow["turn"] < y for arrow in arrows(root))


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
@pytest.mark.parametrize("below", [False, True])
def test_labels_of_roots_that_are_neighbours_stand_beside_each_other(direction, below):
    # The many arcs at word 1 move the line of its root arc to the side.
    arcs = [DrawnArc(None, 0, 0.09, "0.09"), DrawnArc(None, 1, 0.09, "0.09")]
    arcs += [DrawnArc(1, m, 0.09, "0.09") for m in range(2, 11)]
    arcs += [DrawnArc(None, 11, 0.9, "0.90")]
    words = "is an in your face family drama and black comedy with me".split()
    both = ([], arcs) if below else (arcs, [])
    picture = draw_tree(words, both[0], DrawingOptions(direction=direction), "", both[1])
    labels = sorted(
        (float(node.get("x", 0)), text_width(node.text or "", 10) / 2)
        for node in parsed(picture.content).iter(f"{SVG}text")
        if (node.text or "").startswith("root")
    )
    assert len(labels) == 3 and labels[0][0] >= labels[0][1]
    for (x, half), (other, its_half) in itertools.pairwise(labels):
        assert x + half < other - its_half
    assert labels[-1][0] + labels[-1][1] <= picture.size[0]


def test_of_further_alternatives_only_the_differences_stand_out():
    alternatives = [(np.array([2, 0, 2]), 0.75), (np.array([2, 3, 0]), 0.25)]
    doc = annotated("heads", [2, 0, 2], PARTS, words=["a", "b", "c"], alternatives=alternatives)
    html = render(doc, jupyter=False, options={"alternatives": 2})
    first, second = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    names = {
        node[0].text: node[1].get("class")
        for node in ElementTree.fromstring(second).iter(f"{SVG}g")
        if "displacy-arrow" in node.get("class", "")
    }
    line = "displacy-arc sl-{}-stroke"
    assert names == {
        "b → a (0.90)": line.format("muted"),
        "c → b (0.00)": line.format("contrast"),
        "root → c (0.00)": line.format("contrast"),
    }
    assert 'contrast-stroke"' not in first and "2 arcs not in the first" in html
    # The probability of an arc of both structures is drawn in the first one only.
    assert first.count(">0.90<") == 1 and second.count(">0.90<") == 0
    gold = Doc(doc.vocab, words=["a", "b", "c"], heads=[1, 1, 0], deps=["x", "ROOT", "y"])
    beside = render(doc, gold=gold, jupyter=False, options={"alternatives": 2})
    assert "as in gold" in beside and "not in the first" not in beside


def test_words_without_gold_heads_are_no_gold_roots():
    doc = annotated("heads", [2, 0, 2], words=["a", "b", "c"])
    # CoNLL-U writes "_" for an unknown head, which spaCy makes a root.
    gold = Doc(doc.vocab, words=["a", "b", "c"], heads=[1, 1, 2], deps=["x", "", "_"])
    assert [token.has_head() for token in gold] == [True, False, True]
    root = ElementTree.fromstring(render(doc, gold=gold, jupyter=False))
    found = arrows(root)
    below = [arrow["title"] for arrow in found if arrow["turn"] > arrow["base"]]
    assert below == ["b → a (x)"]
    # Arcs to words whose head is unknown do not differ from the gold tree.
    assert not any(arrow["dashed"] for arrow in found)
    assert "1 of 1 arc as in gold" in render(doc, gold=gold, page=True, jupyter=False)
    (_, drawing) = make_drawings(doc, gold=gold)
    assert [arc["label"] for arc in drawing["arcs"]] == ["x"]
    nothing = Doc(doc.vocab, words=["a", "b", "c"], heads=[0, 1, 2], deps=["_"] * 3)
    assert "gold" not in render(doc, gold=nothing, jupyter=False)


def test_gold_that_leaves_the_span_is_left_out():
    doc = annotated("heads", [2, 0], words=["a", "b", "c"], end=2)
    gold = Doc(doc.vocab, words=["a", "b", "c"], heads=[2, 2, 2], deps=["x", "y", "ROOT"])
    assert len(arrows(ElementTree.fromstring(render(doc, gold=gold, jupyter=False)))) == 2


@pytest.mark.parametrize("words", [["a"], ["word"] * 10_000])
def test_one_word_and_ten_thousand(words):
    doc = annotated("heads", [0, *range(1, len(words))], words=words)
    heads = [0, *range(1, len(words))]
    numbered = annotated("heads", heads, {(h, m): 0.5 for m, h in enumerate(heads, 1)}, words=words)
    started = time.process_time()
    svg = render(doc, jupyter=False)
    assert render(numbered, jupyter=False).count(">0.50<") == len(words) - 1
    assert svg.count("displacy-word") == len(words)
    # Processor seconds do not depend on other programs. A linear algorithm needs about two.
    assert time.process_time() - started < 20


def test_one_word_is_described_as_one() -> None:
    picture = draw_tree(["Go"], [DrawnArc(None, 0, 1.0)], DrawingOptions({}), "tree")
    assert picture.description == "1 word, 1 arc from head to modifier: root → Go."
