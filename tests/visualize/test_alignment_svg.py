"""Alignments are drawn as lines and as heat maps."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from spacy_latent.annotations import write
from spacy_latent.errors import LatentError
from spacy_latent.visualize import render
from tests.visualize.structures import annotated
from tests.visualize.test_tree_svg import SVG, word_places

WORDS = ["a", "b", "x", "y", "z"]
PARTS = {(0, 0): 0.9, (0, 1): 0.1, (1, 2): 0.6, (1, 1): 0.4}


def aligned(lang="xx", **options):
    return annotated(
        "cells", [[0, 0], [1, 2]], PARTS, WORDS, lang, end=2, other_start=2, other_end=5, **options
    )


def cells(svg: str) -> dict[str, ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return {g[0].text or "": g for g in found if g.get("class") == "sl-cell"}


def test_lines_join_the_pairs_and_grow_with_probability():
    svg = render(aligned(), jupyter=False, options={"threshold": 0.05})
    heights = {
        node.text: float(node.get("y", 0))
        for node in ElementTree.fromstring(svg).iter(f"{SVG}text")
    }
    found = cells(svg)
    assert set(found) == {"a ~ x (0.90)", "a ~ y (0.10)", "b ~ z (0.60)", "b ~ y (0.40)"}
    for title, group in found.items():
        numbers = [float(x) for x in re.findall(r"-?[\d.]+", group[1].get("d", ""))]
        first, second = title.split(" (")[0].split(" ~ ")
        assert heights[first] == pytest.approx(numbers[1] + 5, abs=0.02)
        assert heights[second] == pytest.approx(numbers[-1] + 5, abs=0.02)
    by_probability = sorted(found, key=lambda title: title[-5:])
    for name, read in (
        ("opacity", lambda g: g.get("opacity")),
        ("width", lambda g: g[1].get("stroke-width")),
    ):
        values = [float(read(found[title])) for title in by_probability]
        assert all(a < b for a, b in itertools.pairwise(values)), name
    dashed = {title for title, g in found.items() if g[1].get("stroke-dasharray")}
    assert dashed == {"a ~ y (0.10)", "b ~ y (0.40)"}


def test_pieces_of_a_pair_are_numbered_and_those_beyond_a_thousand_words_left_out():
    for size, drawn in ((1, 3), (250, 2), (600, 1)):
        doc = annotated("cells", [[0, 0]], None, ["w"] * 6 * size, end=size)
        (one,) = doc._.latent["encoder"].spans
        starts = [(i * size, (3 + i) * size) for i in range(3)]
        spans = [
            replace(one, start=i, end=i + size, other_start=j, other_end=j + size)
            for i, j in starts
        ]
        write(doc, "encoder", spans)
        page = render(doc, page=True, jupyter=False)
        said = [f"piece {number + 1} of 3" for number in range(3)]
        assert [text in page for text in said] == [number < drawn for number in range(3)], size
        assert ("further pieces are not drawn" in page) == (drawn < 3)


def test_without_a_threshold_only_the_best_pairs_are_drawn():
    assert set(cells(render(aligned(), jupyter=False))) == {"a ~ x (0.90)", "b ~ z (0.60)"}
    assert set(cells(render(aligned(), jupyter=False, options={"threshold": 0.4}))) == {
        "a ~ x (0.90)",
        "b ~ z (0.60)",
        "b ~ y (0.40)",
    }


@pytest.mark.parametrize("style", ["alignment", "heatmap"])
def test_right_to_left(style):
    left, right = (
        word_places(ElementTree.fromstring(render(aligned(lang), style=style, jupyter=False)))
        for lang in ("en", "he")
    )
    if style == "alignment":
        assert left["a"] < left["x"] and right["a"] > right["x"]
    else:
        assert left["a"] < min(squares("en")) and right["a"] > max(squares("he"))
        assert squares("en") == sorted(squares("en"))
        assert squares("he") == sorted(squares("he"), reverse=True)


def squares(lang: str) -> list[float]:
    """Return the left edges of a cell in the first column and of one in the third."""
    found = cells(render(aligned(lang), style="heatmap", jupyter=False))
    return [float(found[title][1].get("x", 0)) for title in ("a ~ x (0.90)", "b ~ z (0.60)")]


def test_squares_darken_with_probability_and_the_best_are_framed():
    svg = render(aligned(), style="heatmap", jupyter=False, options={"threshold": 0.05})
    found = cells(svg)
    shades = [
        float(found[title][1].get("fill-opacity", 0))
        for title in sorted(found, key=lambda title: title[-5:])
    ]
    assert len(shades) == 4 and all(a < b for a, b in itertools.pairwise(shades))
    framed = {t for t, g in found.items() if len(list(g.iter(f"{SVG}rect"))) == 2}
    assert framed == {"a ~ x (0.90)", "b ~ z (0.60)"}
    rows = {title: float(group[1].get("y", 0)) for title, group in found.items()}
    assert rows["a ~ x (0.90)"] == rows["a ~ y (0.10)"] < rows["b ~ z (0.60)"]
    columns = {title: float(group[1].get("x", 0)) for title, group in found.items()}
    assert columns["a ~ y (0.10)"] == columns["b ~ y (0.40)"] < columns["b ~ z (0.60)"]
    assert ".90" in svg and ".10" in svg


def test_trees_and_tags_as_heat_maps():
    tree = annotated("heads", [2, 0], {(2, 1): 0.8, (0, 2): 1.0}, ["a", "b"])
    assert set(cells(render(tree, style="heatmap", jupyter=False))) == {
        "b ~ a (0.80)",
        "(root) ~ b (1.00)",
    }
    tags = annotated("tags", [2, 0], {(0, 2): 0.8, (1, 0): 0.5, (1, 1): 0.5}, ["a", "b"])
    svg = render(tags, style="heatmap", jupyter=False, options={"threshold": 0.1})
    assert set(cells(svg)) == {"2 ~ a (0.80)", "0 ~ b (0.50)", "1 ~ b (0.50)"}
    plain = annotated("heads", [2, 0], words=["a", "b"])
    assert set(cells(render(plain, style="heatmap", jupyter=False))) == {"b ~ a", "(root) ~ b"}


def test_alternatives_of_alignments():
    doc = aligned(alternatives=[(np.array([[0, 0]]), 0.5), (np.array([[1, 1]]), 0.5)])
    for style in ("alignment", "heatmap"):
        html = render(doc, style=style, jupyter=False, options={"alternatives": 2})
        assert html.count("<svg") == 2 and html.count("sl-cell") == 2


def test_styles_that_do_not_fit_are_refused():
    with pytest.raises(LatentError, match="alignment, heatmap"):
        render(aligned(), style="tree", jupyter=False)
    with pytest.raises(LatentError, match="tree, alignment"):
        render(aligned(), style="pie", jupyter=False)


def test_a_heat_map_leaves_no_probability_out_and_lines_stay_few():
    n = 12
    parts = {(i, j): 1 / n for i in range(n) for j in range(n)}
    doc = annotated("cells", [[0, 0]], parts, ["w"] * 2 * n, end=n, other_start=n, other_end=2 * n)
    options = {"threshold": 0.01}
    heat_map = render(doc, style="heatmap", jupyter=False, options=options)
    assert heat_map.count("sl-cell") == n * n
    assert render(doc, jupyter=False, options=options).count("sl-cell") == 6 * n
