"""Drawings of long sentences are folded into rows of bounded width that show each part once."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from spacy_latent.visualize import render, render_svg
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.picture import LONG, Picture, folded
from spacy_latent.visualize.text_size import text_width
from tests.visualize.structures import annotated
from tests.visualize.test_tree_svg import SVG, word_places


def rows(markup: str) -> list[tuple[float, float, float]]:
    """Return three positions for each row.

    They are the start and the end of the piece of the drawing that it shows, and its own start.
    """
    found = []
    for svg in ElementTree.fromstring(markup).iter(f"{SVG}svg"):
        if svg.get("y") is not None:
            left, _, wide, _ = map(float, svg.get("viewBox", "").split())
            assert wide == pytest.approx(float(svg.get("width", 0)), abs=0.1)
            found.append((left, left + wide, float(svg.get("x", 0))))
    return found


@pytest.mark.parametrize("lang", ["en", "he"])
@pytest.mark.parametrize("kind", ["heads", "spans"])
def test_long_sentences_go_on_below(kind: str, lang: str) -> None:
    words = [f"word{i}" for i in range(LONG + 30)]
    decoded = list(range(len(words))) if kind == "heads" else [[0, len(words) - 1], [3, 70]]
    doc = annotated(kind, decoded, words=words, lang=lang)
    svg = render(doc, jupyter=False, options={"fold": 700})
    found = rows(svg)
    assert len(found) > 3 and all(end - start <= 700 for start, end, _ in found)
    in_order = sorted(found, reverse=lang == "he")
    assert found == in_order
    pieces = sorted((start, end) for start, end, _ in found)
    assert pieces[0][0] == 0.0
    for (_, end), (start, _) in zip(pieces, pieces[1:]):
        assert end == pytest.approx(start, abs=0.1)
    # Rows end between words, and each word occurs once.
    places = word_places(ElementTree.fromstring(svg))
    assert len(places) == len(words)
    for x in places.values():
        assert all(abs(x - end) > 5 for _, end in pieces[:-1])
    assert all((x == 0) == (lang == "en") for _, _, x in found[-1:])
    assert rows(render_svg([doc, doc], options={"fold": 700}))


def test_shorter_ones_and_one_that_is_wider_than_a_row() -> None:
    doc = annotated("heads", list(range(LONG)), words=["word"] * LONG)
    assert not rows(render(doc, jupyter=False))
    picture = Picture("<g/>", "", "", (1000.0, 10.0))
    ends = [10.0 * i for i in range(1, LONG)] + [900.0, 1000.0]
    wide = folded(picture, ends, DrawingOptions(fold=50.0))
    assert wide.size is not None and wide.size[0] == 900.0 - 10.0 * (LONG - 1)


@pytest.mark.parametrize("lang", ["en", "he"])
def test_no_row_ends_within_a_label(lang: str) -> None:
    words = [f"w{i}" for i in range(LONG + 60)]
    # Every third word is a root, and heads the two words after it.
    heads = [0 if i % 3 == 0 else i - i % 3 + 1 for i in range(len(words))]
    parts = {(head, i): 0.5 for i, head in enumerate(heads, 1)}
    doc = annotated("heads", heads, parts, words=words, lang=lang)
    for fold in range(400, 460, 6):
        svg = render(doc, jupyter=False, options={"fold": fold})
        ends = sorted(end for _, end, _ in rows(svg))[:-1]
        labels = [
            (float(label.get("x", 0)), text_width(label.text or "", 10) / 2)
            for label in ElementTree.fromstring(svg).iter(f"{SVG}text")
            if "displacy-label" in label.get("class", "")
        ]
        assert len(ends) > 1 and len(labels) == len(words)
        for x, half in labels:
            assert all(abs(x - end) >= half - 0.5 for end in ends)


def test_the_legend_explains_rows_if_there_are_any() -> None:
    long, short = (
        annotated("heads", list(range(n)), words=["word"] * n) for n in (LONG + 30, LONG)
    )
    pages = [render(doc, page=True, jupyter=False, options={"fold": 700}) for doc in (long, short)]
    assert ["next row" in page for page in pages] == [True, False]
