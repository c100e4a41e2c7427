"""Agreement of structures with controls and with each other, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spacy_latent.analysis.agreement import (
    agreement,
    common_parts,
    head_words,
    nearest_head_word,
    reference_brackets,
    tag_information,
)
from spacy_latent.annotations import SpanStructure
from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind


def test_the_nearest_head_word_is_that_of_words_that_mostly_have_modifiers() -> None:
    words = "[MAX 2 [MIN 4 7 ] 3 ]".split()
    heading = head_words([words], [[0, 0, 0, 2, 2, 2, 0, 0]])
    assert heading == {"[MAX", "[MIN"}
    assert nearest_head_word(words, heading) == [0, 0, 0, 2, 2, 2, 2, 2]
    assert nearest_head_word(["a", "b", "c"], frozenset("b")) == [1, 1, 1]
    assert nearest_head_word(["a", "b"], frozenset()) == [0, 0]
    assert nearest_head_word([], frozenset()) == []
    # "2" is three times in the texts, and has a modifier only once.
    assert head_words([["2", "3"], ["2", "2"]], [[0, 0], [0, 1]]) == frozenset()


@pytest.mark.parametrize("n", [0, 1, 2, 6])
def test_controls_of_a_span(n: int) -> None:
    trees = find_kind("heads").controls(["w"] * n, frozenset("w"), ())
    assert set(trees) == {"left-branching", "right-branching", "flat", "balanced", "nearest"}
    assert all(len(heads) == n for heads in trees.values())
    for brackets in find_kind("spans").controls(["w"] * n, frozenset(), ()).values():
        assert brackets.shape == (max(0, n - 1), 2)
    if n == 6:
        assert trees["left-branching"].tolist() == [1, 2, 3, 4, 5, 5]
        assert trees["right-branching"].tolist() == [0, 0, 1, 2, 3, 4]
        right = find_kind("spans").controls(["w"] * n, frozenset(), ())["right-branching"]
        assert {tuple(b) for b in right.tolist()} == {(i, 5) for i in range(5)}
    assert find_kind("items").controls(["w"], frozenset(), ()) == {}


def test_common_parts() -> None:
    assert common_parts("heads", np.array([0, 1, 1]), np.array([0, 1, 0])) == (4, 6)
    ours, theirs = np.array([[0, 0], [0, 1], [0, 2]]), np.array([[1, 1], [1, 2], [0, 2]])
    assert common_parts("spans", ours, theirs) == (2, 4)
    assert common_parts("items", np.array([1, 2]), np.array([2])) == (2, 3)
    assert common_parts("items", np.zeros(0), np.zeros(0)) == (0, 0)


def test_tags_agree_whatever_their_names_are() -> None:
    first, renamed = [np.array([0, 0, 1, 2])], [np.array([2, 2, 0, 1])]
    assert tag_information(first, renamed) == pytest.approx(1.0)
    assert tag_information([np.array([0, 0, 1, 1])], [np.array([0, 1, 0, 1])]) == pytest.approx(0.0)
    assert tag_information([np.zeros(3)], [np.ones(3)]) == 1.0
    assert np.isnan(tag_information([], []))


def test_brackets_of_a_reference_are_its_gapless_subtrees() -> None:
    # The second token's modifier is the fourth, so its subtree has a gap.
    assert reference_brackets([0, 0, 0, 1]) == {(0, 3)}
    assert reference_brackets([1, 1, 1, 2]) == {(0, 3), (2, 3)}
    assert reference_brackets([]) == reference_brackets([0]) == set()
    with pytest.raises(LatentError, match="cycle"):
        reference_brackets([1, 0])


def structure(kind: str, decoded: Any, start: int = 0, end: int = 3) -> SpanStructure:
    return SpanStructure(start, end, "Some", kind, np.array(decoded, dtype="int32"))


def test_agreement_of_models() -> None:
    ours = {0: [structure("heads", [0, 1, 1])], 1: [structure("heads", [0, 1, 2])]}
    theirs = {0: [structure("heads", [0, 1, 2])], 1: [structure("heads", [0, 1, 2])]}
    assert agreement(ours, theirs) == (pytest.approx(5 / 6), 2)
    assert agreement(ours, {0: theirs[0]}) == (pytest.approx(2 / 3), 1)
    shifted = {0: [structure("heads", [0, 1], 0, 2)]}
    share, compared = agreement(ours, shifted)
    assert np.isnan(share) and compared == 0
    # One pipeline has two sentences where the other has one; the last sentence is the same.
    last = structure("heads", [0, 1, 2], 4, 7)
    split = {0: [structure("heads", [0, 1], 0, 2), structure("heads", [0, 1], 2, 4), last]}
    assert agreement(split, {0: [structure("heads", [0, 1, 1, 1], 0, 4), last]}) == (1.0, 1)
    tags = {0: [structure("tags", [0, 1, 0])]}
    assert agreement(tags, {0: [structure("tags", [1, 0, 1])]})[0] == pytest.approx(1.0)
