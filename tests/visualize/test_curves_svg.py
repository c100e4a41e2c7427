"""The counters of a structure are drawn as curves under its words."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from spacy_latent.errors import LatentError
from spacy_latent.visualize import render, render_svg
from spacy_latent.visualize.curves_svg import GAP, HEIGHT
from tests.visualize.structures import annotated

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ["(", "a", "(", "b", ")", ")"]
COUNTERS = np.array([[1, 1, 2, 2, 1, 0], [0, 0, 0, -0.5, -0.5, -0.5]], dtype="float32").T


def drawn(kind: str = "heads", lang: str = "xx", **options: Any) -> ElementTree.Element:
    decoded = [0, 1, 1, 3, 3, 1] if kind == "heads" else [[0, 5], [2, 4]]
    doc = annotated(kind, decoded, words=WORDS, lang=lang, counters=COUNTERS)
    return ElementTree.fromstring(render_svg(doc, options={"counters": True, **options}))


def curves(root: ElementTree.Element) -> list[tuple[str, np.ndarray]]:
    """Return the title and the points of each curve."""
    found = []
    for group in root.iter(f"{SVG}g"):
        if group.get("class") == "sl-counter":
            title, _, curve, _ = group
            numbers = [float(x) for x in re.findall(r"-?[\d.]+", curve.get("d", ""))]
            found.append((title.text or "", np.array(numbers).reshape(-1, 2)))
    return found


@pytest.mark.parametrize("kind", ["heads", "spans"])
def test_a_curve_rises_under_the_words_that_add(kind: str) -> None:
    root = drawn(kind)
    (first, one), (second, two) = curves(root)
    assert first == "counter 1: 0.0 to 2.0" and second == "counter 2: -0.5 to 0.0"
    centers = [float(node.get("x", 0)) for node in root.iter(f"{SVG}text") if node.text in WORDS]
    for k, points in enumerate((one, two)):
        heights = (points[0, 1] - points[:, 1]) / HEIGHT
        values = np.concatenate([[0.0], COUNTERS[:, k]])
        np.testing.assert_allclose(heights, values / np.ptp(values), atol=0.02)
        # Each step of a curve is below its word.
        for center, (left, right) in zip(centers, zip(points[:, 0], points[1:, 0])):
            assert left < center < right
    assert two[:, 1].min() - one[:, 1].max() > GAP / 2
    size = [float(x) for x in root.get("viewBox", "").split()]
    assert two[:, 1].max() < size[3]


def test_right_to_left_is_the_mirror_image() -> None:
    ((_, left), _), ((_, right), _) = curves(drawn(lang="xx")), curves(drawn(lang="ar"))
    across = left[0, 0] + right[0, 0]
    np.testing.assert_allclose(right[:, 0], across - left[:, 0], atol=0.2)
    np.testing.assert_allclose(right[:, 1], left[:, 1], atol=0.2)


def test_they_are_drawn_and_told_only_if_asked_for() -> None:
    doc = annotated("heads", [0, 1, 1, 3, 3, 1], words=WORDS, counters=COUNTERS)
    plain = render(doc, jupyter=False)
    assert "sl-counter" not in plain and "Counters of the scorer" not in plain
    shown = render(doc, jupyter=False, options={"counters": True})
    assert shown.count('"sl-counter"') == 2
    assert "Counters of the scorer: 1: 0.0 to 2.0; 2: -0.5 to 0.0." in shown
    assert "sl-counter" not in render(doc, style="dep", jupyter=False, options={"counters": True})


def test_a_constant_counter_and_long_texts() -> None:
    words = ["word"] * 130
    counters = np.zeros((130, 1), dtype="float32")
    doc = annotated("heads", list(range(130)), words=words, counters=counters)
    root = ElementTree.fromstring(render_svg(doc, options={"counters": True}))
    ((title, points),) = curves(root)
    assert title == "counter 1: 0.0 to 0.0" and np.ptp(points[:, 1]) == 0.0
    # The curve is folded into rows together with the words.
    assert len(list(root.iter(f"{SVG}use"))) >= 1


def test_what_has_no_counters_is_refused() -> None:
    doc = annotated("heads", [0, 1, 1, 3, 3, 1], words=WORDS)
    with pytest.raises(LatentError, match=r"CounterScorer.*counters"):
        render(doc, jupyter=False, options={"counters": True})
