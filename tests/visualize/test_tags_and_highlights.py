"""Tag sequences and rationales are drawn as running text."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from spacy.tokens import Doc

from spacy_latent.errors import LatentError
from spacy_latent.visualize import render, render_svg
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.palette import CATEGORIES, COLORS, category_color
from spacy_latent.visualize.tag_rows import DrawnTag, TagRow, draw_tags
from spacy_latent.visualize.terminal import format_annotation
from tests.visualize.structures import annotated
from tests.visualize.test_tree_svg import SVG

WORDS = ["a", "b", "c"]


def rows(html: str) -> list[list[str]]:
    """Return the words of each cell of each row of all tables."""
    return [
        [re.sub("<[^>]*>", " ", cell).split() for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in re.findall(r"<tr.*?</tr>", html)
    ]


def test_tags_below_their_words_with_alternatives():
    parts = {(0, 1): 0.9, (1, 0): 0.5, (1, 2): 0.4, (2, 2): 1.0}
    alternatives = [(np.array([1, 0, 2]), 0.75), (np.array([1, 2, 2]), 0.25)]
    doc = annotated("tags", [1, 0, 2], parts, WORDS, alternatives=alternatives)
    assert rows(render(doc, jupyter=False)) == [
        [[], ["a"], ["b"], ["c"]],
        [[], ["1", "0.90"], ["0", "0.50"], ["2", "1.00"]],
    ]
    html = render(doc, jupyter=False, options={"alternatives": 2, "threshold": 0.3})
    assert "weight of each structure" in html
    assert rows(html)[1:] == [
        [["0.75"], ["1", "0.90"], ["0", "0.50"], ["2", "1.00"]],
        [["0.25"], ["1"], ["2"], ["2"]],
        [["else"], [], ["2", "0.40"], []],
    ]
    # Tags that differ from the first sequence are dashed.
    assert html.count("sl-tag sl-tag-other") == 2
    plain = render(doc, jupyter=False, options={"probabilities": False})
    assert rows(plain)[1] == [[], ["1"], ["0"], ["2"]]


def test_parts_of_an_entity_share_a_color_and_the_outside_has_none():
    names = ["O", "B-PER", "I-PER", "U-LOC"]
    row = TagRow([[DrawnTag(i, name)] for i, name in enumerate(names)])
    html = draw_tags([*"abcd"], [row], DrawingOptions(), "title").content
    colors = re.findall(r"border-color:(#\w+)", html)
    assert len(colors) == 3 and colors[0] == colors[1] != colors[2]
    look = DrawingOptions.from_options({"colors": {"PER": "#111111", "U-LOC": "#222222"}})
    html = draw_tags([*"abcd"], [row], look, "title").content
    assert re.findall(r"border-color:(#\w+)", html) == ["#111111", "#111111", "#222222"]


def test_long_sequences_are_folded():
    doc = annotated("tags", [0] * 60, words=["word"] * 60)
    wide, narrow = (render(doc, jupyter=False, options={"fold": fold}) for fold in (10**6, 400))
    assert wide.count("<table") == 1 and narrow.count("<table") > 6
    assert wide.count(">word<") == narrow.count(">word<") == 60


def marks(html: str) -> dict[str, tuple[str, float]]:
    """Return "faint" or "", and the opacity, of each highlighted word."""
    found = re.findall(r"<mark(.*?)rgba\(.*?,([\d.]+)\).*?<bdi>(.*?)</bdi>", html)
    return {word: ("faint" if "sl-faint" in kind else "", float(a)) for kind, a, word in found}


def test_highlights_darken_with_probability():
    doc = annotated("items", [0, 2], {(0,): 0.9, (1,): 0.3, (2,): 0.5}, WORDS)
    found = marks(render(doc, jupyter=False))
    assert set(found) == {"a", "c"} and found["a"][1] > found["c"][1]
    found = marks(render(doc, jupyter=False, options={"threshold": 0.2}))
    assert {word: kind for word, (kind, _) in found.items()} == {"a": "", "b": "faint", "c": ""}
    assert "0.90" in render(doc, jupyter=False)
    assert "0.90" not in render(doc, jupyter=False, options={"probabilities": False})


def test_alternative_rationales_and_direction():
    alternatives = [(np.array([0]), 0.6), (np.array([1, 2]), 0.4)]
    doc = annotated("items", [0], words=WORDS, lang="he", alternatives=alternatives)
    html = render(doc, jupyter=False, options={"alternatives": 2})
    assert html.count("<mark") == 3 and ">weight of this structure 0.60<" in html
    assert ">weight of this structure 0.40<" in html
    assert html.count('<p class="sl-text" dir="rtl"') == 2


TAGS = ("O", "B-PER", "I-PER", "L-PER", "U-PER")


def entities(**options):
    alternatives = [(np.array([1, 3, 0]), 0.7), (np.array([0, 4, 0]), 0.3)]
    parts = {(0, 1): 0.8, (1, 3): 0.8, (2, 0): 1.0}
    found = {"entity_probabilities": np.array([0.75]), "alternatives": alternatives, **options}
    return annotated("tags", [1, 3, 0], parts, WORDS, labels=TAGS, **found)


def test_entities_are_marked_with_label_and_probability():
    html = render(entities(), jupyter=False)
    (mark,) = re.findall("<mark.*?</mark>", html)
    assert re.sub("<[^>]*>", " ", mark).split() == ["a", "b", "PER", "0.75"]
    assert "<mark" not in render(entities(), jupyter=False, options={"threshold": 0.8})
    html = render(entities(), jupyter=False, options={"alternatives": 2})
    found = [re.sub("<[^>]*>", " ", mark).split() for mark in re.findall("<mark.*?</mark>", html)]
    assert found == [["a", "b", "PER"], ["b", "PER"]] and html.index("0.70") < html.index("0.30")
    names = [cell[0] for cell in rows(render(entities(), style="tags", jupyter=False))[1] if cell]
    assert names == ["B-PER", "L-PER", "O"]
    with pytest.raises(LatentError, match="names"):
        render(annotated("tags", [0], words=["a"]), style="entities", jupyter=False)


def luminance(color: tuple[float, ...]) -> float:
    """Return the relative luminance of WCAG for a colour of numbers from 0 to 255."""
    linear = [v / 3294.6 if v <= 10.31 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in color]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("dark", [False, True])
def test_text_on_marks_of_every_color_can_be_read(dark):
    """The contrast is at least 4.5, as WCAG requires for small text."""
    ink, ground = (
        tuple(int(COLORS[name][dark][i : i + 2], 16) for i in (1, 3, 5))
        for name in ("ink", "ground")
    )
    seen = set()
    for label in "ABCDEFG":
        doc = annotated("tags", [1], {(0, 1): 1.0}, ["a"], labels=("O", f"U-{label}"))
        found = re.search(
            r"<mark[^>]*rgba\((\d+),(\d+),(\d+),([\d.]+)\)", render(doc, jupyter=False)
        )
        assert found is not None
        alpha = float(found[4])
        mark = [alpha * int(c) + (1 - alpha) * g for c, g in zip(found.groups()[:3], ground)]
        light, other = sorted((luminance(ink), luminance(tuple(mark))), reverse=True)
        assert (light + 0.05) / (other + 0.05) >= 4.5, label
        seen.add(category_color(ord(label)))
    assert seen == set(CATEGORIES)


def differing(words=None, **options):
    """Return a doc whose best tags have the entity "b c" and whose second best have "a" and "c"."""
    words = words or ["x"] * 8 + ["a", "b", "c"]
    first, second = np.zeros(len(words), dtype=int), np.zeros(len(words), dtype=int)
    first[-2:] = 1, 3
    second[-3], second[-1] = 4, 4
    found = {
        "entity_probabilities": np.array([0.75]),
        "alternatives": [(first, 0.6), (second, 0.3)],
        "alternative_probabilities": [np.array([0.75]), np.array([0.125, 0.25])],
        **options,
    }
    parts = {(i, int(tag)): 0.9 for i, tag in enumerate(first)}
    return annotated("tags", first, parts, words, labels=TAGS, **found)


def test_of_further_alternatives_only_what_differs_is_told():
    doc = differing()
    (annotation,) = doc._.latent.values()
    gone, new = annotation.differences(1)
    assert [(e.start, e.end, e.probability) for e in gone] == [(9, 11, 0.75)]
    assert [(e.start, e.end, e.probability) for e in new] == [(8, 9, 0.125), (10, 11, 0.25)]
    assert annotation.differences(0) == ([], [])
    shown = format_annotation(annotation).split("\n\n")
    assert shown[0].startswith("weight of this structure 0.60") and "[b c PER 0.75]" in shown[0]
    lines = ["weight of this structure 0.30", "- b c PER 0.75", "+ a PER 0.12", "+ c PER 0.25"]
    assert shown[1].splitlines() == lines
    # A word that occurs twice is told apart by its position.
    twice = differing(words=["a", "x", "a", "b", "c"])._.latent
    (annotation,) = twice.values()
    assert "+ a PER 0.12 (token 2)" in format_annotation(annotation)
    (again,) = Doc(doc.vocab).from_bytes(doc.to_bytes())._.latent.values()
    assert again.differences(1) == (gone, new)


def test_a_drawn_alternative_has_what_differs_and_what_is_near():
    html = render(differing(), jupyter=False, options={"alternatives": 2})
    marks = [re.sub("<[^>]*>", " ", mark).split() for mark in re.findall("<mark.*?</mark>", html)]
    assert marks == [["b", "c", "PER", "0.75"], ["a", "PER", "0.12"], ["c", "PER", "0.25"]]
    assert "without b c PER 0.75; with a PER 0.12, c PER 0.25" in html
    other = html.split("without b c")[1]
    assert other.count(">x<") == 5 and "…" in other
    svg = render_svg(differing(words=["<i>", "<b>", "c"]), options={"alternatives": 2})
    assert "&lt;i&gt;" in svg and "<i>" not in svg and "with" in svg
    # A drawn alternative shows an entity of the first sequence faintly if it overlaps no other.
    first, second = np.array([4, 0, 0]), np.array([0, 0, 4])
    apart = entities(alternatives=[(first, 0.7), (second, 0.3)])
    html = render(apart, jupyter=False, options={"alternatives": 2})
    assert html.count("sl-faint") == render(apart, jupyter=False).count("sl-faint") + 1


def text_places(svg: str, name: str) -> list[tuple[str, float, float]]:
    return [
        (node.text or "", float(node.get("x", 0)), float(node.get("y", 0)))
        for node in ElementTree.fromstring(svg).iter(f"{SVG}text")
        if name in node.get("class", "")
    ]


@pytest.mark.parametrize("lang", ["en", "he"])
def test_text_as_svg_is_folded_in_the_direction_of_writing(lang):
    words = [f"word{i}" for i in range(60)]
    for kind, decoded in (("tags", [0] * 60), ("items", list(range(0, 60, 3)))):
        doc = annotated(kind, decoded, words=words, lang=lang)
        places = text_places(render_svg(doc, options={"fold": 500}), "displacy-word")
        assert [word for word, _, _ in places] == words
        lines = [list(line) for _, line in itertools.groupby(places, key=lambda place: place[2])]
        assert len(lines) > 5
        for line in lines:
            across = [x for _, x, _ in line]
            assert across == sorted(across, reverse=lang == "he")
            assert 0 <= min(across) and max(across) <= 540


def test_highlights_and_tags_as_svg():
    svg = render_svg(entities(), options={"alternatives": 2})
    assert svg.count("sl-highlight") == 3 and svg.count(">PER<") == 2
    assert "PER 0.75" in render_svg(entities())
    svg = render_svg(entities(), style="tags", options={"alternatives": 2})
    chips = [name for name, _, _ in text_places(svg, "displacy-tag")]
    assert chips == ["B-PER", "L-PER", "O", "O", "U-PER", "O"]
    assert svg.count("stroke-dasharray") == 2 and ">0.70<" in svg and ">0.80<" in svg
    items = annotated("items", [0], {(0,): 0.9, (1,): 0.3}, WORDS)
    svg = render_svg(items, options={"threshold": 0.2})
    assert svg.count("sl-highlight") == 2 and svg.count("stroke-dasharray") == 1
