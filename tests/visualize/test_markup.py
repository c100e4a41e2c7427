"""The markup of drawings is well-formed, runs no code and keeps the words in order for any text."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_latent.visualize import make_drawings, render, render_svg
from spacy_latent.visualize.markup import element, shortened, text, visible
from spacy_latent.visualize.picture import stylesheet
from spacy_latent.visualize.text_size import text_width, usual_width
from tests.visualize.structures import INJECTIONS, annotated, every_kind

TAGS = set(
    "html head meta title body div style figure figcaption header span svg desc g path rect text "
    "tspan table tr th td bdi p mark small strong br wbr h1 ul li".split()
)
DOCS = every_kind([word for word in INJECTIONS if word != "\ud800"])
STYLES = {
    "heads": ["tree", "heatmap"],
    "arcs": ["tree", "heatmap"],
    "items": ["rationale"],
    "tags": ["tags", "heatmap"],
    "spans": ["brackets"],
    "segments": ["brackets"],
    "phrases": ["brackets"],
    "cells": ["alignment", "heatmap"],
}
CASES = [(kind, style) for kind, styles in STYLES.items() for style in styles]


class Inspector(HTMLParser):
    """A parser that collects the elements and attributes that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, list[str]] = {}

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def check_inert(markup: str) -> None:
    seen = Inspector()
    seen.feed(markup)
    assert seen.tags <= TAGS
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert not {"href", "xlink:href", "src", "srcset", "action"} & seen.attributes.keys()
    assert not [style for style in seen.attributes.get("style", []) if "url(" in style]
    for bad in "\x00\x1b\x7f\x85\u2028\u202e\u2066\u2069\ufffe\r\t":
        assert bad not in markup


@pytest.mark.parametrize("kind, style", CASES)
@pytest.mark.parametrize("page", [True, False])
def test_trap_16_the_injection_corpus_is_inert(kind, style, page):
    options = {"alternatives": 2, "threshold": 0.1}
    for minify in (True, False):
        for given_options in (options, {"threshold": 0.1}):
            markup = render(
                DOCS[kind], "encoder", style, page, minify, jupyter=False, options=given_options
            )
            check_inert(markup)
            assert "&lt;script&gt;alert(1)" in markup


def test_labels_and_names_are_inert_too():
    bad = "</figcaption><script>alert(1)</script>"
    doc = annotated("heads", [0, 1], words=["a", "b"], name=bad)
    gold = Doc(doc.vocab, words=["a", "b"], heads=[0, 0], deps=["ROOT", "<script>"])
    for page in (True, False):
        check_inert(render(doc, page=page, jupyter=False, gold=gold))
    check_inert(render_svg(doc, gold=gold))
    labels = ("O", f"B-{bad}", f"L-{bad}")
    doc = annotated("tags", [1, 2], words=["a", "b"], labels=labels)
    for style in ("tags", "entities", "heatmap"):
        check_inert(render(doc, style=style, page=True, jupyter=False))
        check_inert(render_svg(doc, style=style).replace(stylesheet(), ""))


@pytest.mark.parametrize(
    "kind, style", [("heads", "dep"), ("items", "ent"), ("tags", "span"), ("phrases", "span")]
)
def test_drawings_of_displacy_are_inert_too(kind, style):
    for page in (True, False):
        seen = Inspector()
        markup = render(DOCS[kind], "encoder", style, page, jupyter=False)
        seen.feed(markup)
        assert not seen.tags & {"script", "img", "a", "b", "iframe"} and "日本語" in markup
        assert not [name for name in seen.attributes if name.startswith("on")]
        assert not set("\x00\x1b\x7f\x85\u2028\u202e\u2066\u2069\ufffe\r") & set(markup)
    # The drawn text is as long as the doc's, so that character offsets agree.
    whole = DOCS[kind].text.rstrip()
    for drawing in make_drawings(DOCS[kind]):
        assert len(drawing.get("text", whole).rstrip()) == len(whole)


def test_a_lone_surrogate_becomes_a_sign():
    assert text("\ud800") == "\ufffd" and visible("a\ufffeb") == "a\ufffdb"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_every_svg_is_well_formed_xml(words):
    doc = annotated("heads", list(range(len(words))), words=words)
    root = ElementTree.fromstring(render(doc, jupyter=False))
    drawn = [node for node in root.iter() if "displacy-word" in node.get("class", "")]
    assert len(drawn) == len(words)


def test_every_kind_of_svg_is_well_formed():
    for kind, style in CASES:
        svg = render_svg(DOCS[kind], style=style, options={"alternatives": 2, "threshold": 0.1})
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        title, description = root[0], root[1]
        assert title.tag.endswith("title") and description.tag.endswith("desc")
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert title.text and description.text


def test_signs_for_what_is_not_seen():
    assert visible("\x00\x1b") == "␀␛" and visible("\n") == "␊" and visible("\x7f") == "␡"
    assert visible("  ") == "␣␣" and visible("") == visible("\u200b") == "␣"
    assert visible("\u202eabc") == "[RLO]abc"
    assert visible("a b") == "a b" and visible("می\u200cخواهم") == "می\u200cخواهم"
    assert shortened("x" * 41) == "x" * 39 + "…" and shortened("x" * 40) == "x" * 40


def test_attributes_are_escaped():
    made = element("a", {"b": "\"'<&", "c": None, "d": 1.5, "e": 2.0}, "x")
    assert made == '<a b="&quot;&#x27;&lt;&amp;" d="1.5" e="2">x</a>'


def test_wide_scripts_get_more_room():
    assert text_width("日本", 10) > text_width("ab", 10)
    assert text_width("WWW", 10) > text_width("xxx", 10) > usual_width("iii", 10)
    assert text_width("e\u0301", 10) == text_width("é", 10) == text_width("e", 10)
    # Widths allow for boxes in place of characters without a font, and for monospace fonts.
    assert text_width("นี้", 10) >= 18 and text_width("illicit", 10) >= 42
    assert usual_width("illicit", 10) < text_width("illicit", 10)
    assert usual_width("👩\u200d👩\u200d👧", 10) == usual_width("👩", 10) > 10
    assert usual_width("\u0301", 10) > 0


def test_running_text_as_svg_is_as_wide_as_its_boxes_in_any_font():
    root = ElementTree.fromstring(render_svg(annotated("items", [0, 1], words=["will", "WWWW"])))
    nodes = [node for node in root.iter() if "displacy-word" in node.get("class", "")]
    for node, word in zip(nodes, ["will", "WWWW"]):
        assert float(node.get("textLength", 0)) == pytest.approx(usual_width(word, 16), abs=0.01)
