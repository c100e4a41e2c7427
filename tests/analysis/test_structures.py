"""Statistics of single structures, against counts by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from spacy_latent.analysis.structures import (
    MEANINGS,
    SHARES,
    distribution,
    effective_number,
    own_heads,
    position_share,
    power_of_ten,
    sparkline,
    structure_statistics,
)
from spacy_latent.annotations import SpanStructure


def statistics(kind: str, decoded: Any, n: int) -> dict[str, float]:
    array = np.array(decoded, dtype="int32")
    found = structure_statistics(SpanStructure(0, n, "Some", kind, array))
    assert set(found) <= set(MEANINGS) and SHARES <= set(MEANINGS)
    return found


def test_trees_by_heads() -> None:
    # The arcs are a <- b -> c and c -> d, and b is the root.
    found = statistics("heads", [2, 0, 2, 3], 4)
    assert found["depth"] == 2 and found["root share"] == 0.25
    assert found["left-branching"] == pytest.approx(1 / 3)
    assert found["on the root"] == 0.75 and found["arc length"] == 1.0
    alone = statistics("heads", [0], 1)
    assert alone == {"tokens": 1, "depth": 0, "root share": 1}
    assert statistics("heads", np.zeros(0), 0) == {"tokens": 0, "depth": 0}
    assert own_heads([2, 0, 2, 3]).tolist() == [1, 1, 1, 2]


def test_binary_trees() -> None:
    words = [(i, i) for i in range(4)]
    left = statistics("spans", [*words, (0, 1), (0, 2), (0, 3)], 4)
    assert left["depth"] == 3 and left["left splits"] == 1.0
    right = statistics("spans", [*words, (2, 3), (1, 3), (0, 3)], 4)
    assert right["depth"] == 3 and right["left splits"] == 0.0
    balanced = statistics("spans", [*words, (0, 1), (2, 3), (0, 3)], 4)
    assert balanced["depth"] == 2 and balanced["left splits"] == 0.5
    assert "left splits" not in statistics("spans", [(0, 0), (1, 1), (0, 1)], 2)


def test_other_kinds() -> None:
    assert statistics("items", [0, 1, 4], 6) == {
        **{"tokens": 6, "rate": 0.5, "runs": 2, "first token": 1}
    }
    assert statistics("items", [], 3)["rate"] == 0.0
    tags = statistics("tags", [3, 3, 0, 3], 4)
    assert tags["switches"] == pytest.approx(2 / 3) and tags["commonest tag"] == 0.75
    arcs = statistics("arcs", [[0, 1], [3, 1], [1, 2]], 3)
    assert arcs["arcs per token"] == 1.0 and arcs["root share"] == pytest.approx(1 / 3)
    assert arcs["left-branching"] == 0.5 and arcs["arc length"] == 1.5
    segments = statistics("segments", [[0, 3, 1], [3, 4, 0]], 4)
    assert segments["segments"] == 2 and segments["segment length"] == 2.0
    # One of the phrases is there twice, with two labels.
    phrases = statistics("phrases", [[0, 4, 1], [0, 4, 0], [1, 3, 1], [2, 3, 0], [3, 4, 0]], 4)
    assert phrases["phrases"] == 5 and phrases["depth"] == 3
    assert phrases["phrase length"] == pytest.approx(12 / 5)
    assert statistics("phrases", [], 4)["depth"] == 0
    cells = statistics("cells", [[0, 0], [1, 2], [2, 1]], 4)
    assert cells["coverage"] == 0.75 and cells["monotonicity"] == 0.5
    assert cells["diagonal"] == pytest.approx(1 / 3)
    assert statistics("parts", [[1, 2, 3]], 4)["parts"] == 1


def test_tokens_of_an_alignment_are_those_of_both_texts() -> None:
    cells = np.array([[0, 0], [1, 2]], dtype="int32")
    pair = SpanStructure(0, 4, "Some", "cells", cells, other_start=4, other_end=7)
    found = structure_statistics(pair)
    assert found["tokens"] == 7 and found["coverage"] == 0.5


def test_a_distribution_is_that_of_its_finite_values() -> None:
    found = distribution("depth", [1.0, 2.0, 3.0, math.nan, math.inf])
    assert found is not None and found.count == 3 and found.mean == 2.0
    assert found.quartiles == (1.5, 2.0, 2.5) and sum(found.histogram) == 3
    share = distribution("rate", [0.25, 0.25])
    assert share is not None and (share.low, share.high) == (0.0, 1.0)
    assert distribution("depth", [math.nan]) is None
    # As many as the trees over a long text.
    for large in ([1e60], [1e60, 1e60], [1e60, np.nextafter(1e60, np.inf)]):
        found = distribution("effective number", large)
        assert found is not None and sum(found.histogram) == len(large)


def test_large_numbers_of_structures_are_powers_of_ten() -> None:
    assert [power_of_ten(value) for value in (1e7, 4e7, 7.9e249)] == ["10^7", "10^8", "10^250"]
    assert effective_number(2.0) == pytest.approx(math.exp(2.0))
    # The number of structures of a long text exceeds a float.
    assert power_of_ten(effective_number(5000.0)) == "over 10^304"


def test_sparklines() -> None:
    assert sparkline([0, 1, 8]) == " ▂█" and len(sparkline(range(16))) == 16
    assert sparkline([0, 1, 8], unicode=False) == ".:#"
    assert sparkline([]) == sparkline([0, 0]) == ""


def test_position_share_tells_what_the_length_alone_tells() -> None:
    texts = [[f"w{i}{j}" for j in range(5)] for i in range(6)]
    same = [np.array([0, 0, 1, 2, 3])] * 6
    assert position_share(texts, same) == (1.0, 30)
    # Each text has another head at each position, so the other texts do not predict it.
    different = [np.full(5, i) for i in range(6)]
    assert position_share(texts, different) == (0.0, 30)
    # Five texts agree, and the prediction for the sixth is wrong.
    assert position_share(texts, [*same[:5], np.full(5, 9)]) == (pytest.approx(5 / 6), 30)
    share, tokens = position_share([texts[0]] * 6, same)
    assert math.isnan(share) and tokens == 0, "one text, many times over, shows nothing"
    assert position_share([text[:3] for text in texts], [np.zeros(3)] * 6)[1] == 0
