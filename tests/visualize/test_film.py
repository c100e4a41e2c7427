"""Films are well-formed XML, show their last frame without animation, and load no other files."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError
from spacy_latent.kinds import Kind, register_kind
from spacy_latent.visualize.film import (
    LAST_STANDS,
    SECONDS,
    SEEN,
    Film,
    Frame,
    animated_svg,
    film_page,
)

NLP = spacy.blank("en")


def tree(*heads: int, words: str = "one two three") -> Doc:
    doc = NLP(words)
    decoded = np.array(heads, dtype="int32")
    write(doc, "encoder", [SpanStructure(0, len(doc), "SpanningTree", "heads", decoded)])
    return doc


@pytest.fixture
def film() -> Film:
    trees = [tree(0, 1, 1), tree(0, 1, 2), tree(2, 0, 2)]
    return Film("encoder", [Frame(f"step {100 * i}", doc) for i, doc in enumerate(trees)])


def test_the_animation_is_a_frame_for_each_evaluation(film: Film) -> None:
    root = ElementTree.fromstring(animated_svg(film))
    frames = [node for node in root if node.get("class") == "film-frame"]
    delays = [float(re.findall(r"delay:(-[\d.]+)s", frame.get("style", ""))[0]) for frame in frames]
    round_takes = SECONDS * (2 + LAST_STANDS)
    assert np.allclose(delays, [SECONDS * i - round_takes for i in range(3)])
    assert ["step 0", "step 100", "step 200"] == [
        "".join(frame.find("{http://www.w3.org/2000/svg}text").itertext()) for frame in frames
    ]


def test_who_asked_for_less_motion_sees_the_last_frame(film: Film) -> None:
    rules = animated_svg(film).split("<style>")[1].split("</style>")[0]
    before, moving = rules.split("@media(prefers-reduced-motion:no-preference)")
    assert ".film-frame{visibility:hidden}.film-frame:last-of-type{visibility:visible}" in before
    assert "animation" not in before and "animation:film" in moving


def test_pages_fetch_nothing(film: Film) -> None:
    page = film_page([film], "Films")
    addresses = set(re.findall(r"https?://[\w./]+", page + animated_svg(film)))
    assert {re.sub(r"^https?://www\.w3\.org/.*", "", address) for address in addresses} == {""}
    assert page.index("<h1>Films</h1>") < page.index(SEEN) < page.index("<section")
    assert "default-src 'none'" in page and page.count("<figcaption>step ") == 3


def test_markup_in_texts_is_shown_not_obeyed() -> None:
    words = '<img/src=x> & "\x07'
    film = Film("<b>", [Frame("<i>", tree(0, 1, 1, words="a b c"))])
    page = film_page([film], words)
    assert "<img/src" not in page and "<b>" not in page and "\x07" not in page
    film = Film("encoder", [Frame("<i>", tree(0, 1, 1, 1, words=words))])
    ElementTree.fromstring(animated_svg(film))
    assert "<i>" not in film_page([film], "Films")


def test_what_is_drawn_as_text_moves_as_well() -> None:
    doc = NLP("a good film")
    items = SpanStructure(0, 3, "KOfN", "items", np.array([1], dtype="int32"))
    write(doc, "encoder", [items])
    film = Film("encoder", [Frame("step 0", doc)])
    ElementTree.fromstring(animated_svg(film))
    assert "data:image/svg+xml" in film_page([film], "Films")


def test_what_is_not_drawn_says_so() -> None:
    doc = NLP("a good film")
    register_kind(Kind("test_film.undrawn", drawings={}))
    parts = SpanStructure(0, 3, "Own", "test_film.undrawn", np.array([[1, 2]], dtype="int32"))
    write(doc, "encoder", [parts])
    film = Film("encoder", [Frame("step 0", doc)])
    page = film_page([film], "Films")
    assert "no drawing" in page and "data:image" not in page
    with pytest.raises(LatentError, match="Own"):
        animated_svg(film)


def test_a_film_without_frames_is_nothing() -> None:
    assert animated_svg(Film("encoder", [])) == ""
