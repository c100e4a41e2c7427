"""Scores of tags, against counts by hand."""

from __future__ import annotations

import pytest
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from spacy.vocab import Vocab

from spacy_latent.analysis.tags import score_tags


def example(gold: str, found: str) -> Example:
    """Return an example with one-letter tags. A dot is a token without a tag."""
    docs = [
        Doc(Vocab(), words=[str(i) for i in range(len(tags))], tags=[t.strip(".") for t in tags])
        for tags in (found, gold)
    ]
    return Example(*docs)


def test_by_tag_by_doc_and_up_to_the_first_wrong_one() -> None:
    scores = score_tags([example("AAB.", "AABX"), example("ABBA", "AABA")])
    assert scores["tag_acc"] == pytest.approx(6 / 7)
    # Four of five found A are right, and four of four gold ones are found. For B it is two of two
    # and two of three.
    assert scores["tag_macro_f"] == pytest.approx((8 / 9 + 4 / 5) / 2)
    assert scores["tag_whole"] == 0.5
    assert scores["tag_prefix"] == pytest.approx((1 + 1 / 4) / 2)


def test_without_tags_there_is_nothing_to_score() -> None:
    assert set(score_tags([example("..", "AB")]).values()) == {None}
    assert set(score_tags([]).values()) == {None}


def test_a_tag_that_is_never_found_counts_as_0() -> None:
    assert score_tags([example("AB", "AA")])["tag_macro_f"] == pytest.approx(1 / 3)


def test_other_tokens_are_aligned() -> None:
    gold = Doc(Vocab(), words=["ab", "c"], spaces=[False, False], tags=["A", "B"])
    found = Doc(Vocab(), words=["a", "b", "c"], spaces=[False] * 3, tags=["A", "A", "B"])
    assert score_tags([Example(found, gold)])["tag_acc"] == 1.0


def test_it_is_registered() -> None:
    assert registry.get("scorers", "spacy-latent.tag_scorer.v1")() is score_tags
