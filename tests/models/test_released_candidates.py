"""Candidate words of the first training stage and of later ones, and errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry

from spacy_latent.errors import LatentError
from spacy_latent.models.candidates import AllWords, ContentWords
from spacy_latent.models.released_candidates import (
    build_released_candidates_v1,
    present_candidates,
)

NO_STOP_WORDS = ContentWords()
NO_PUNCTUATION = ContentWords(stop_words=True)
NO_SPACE = ContentWords(punctuation=True, stop_words=True)
TEXT = "it is good , so"


class Long:
    """Words of at least some length.

    The class does not say whether its words are a subset of other candidates, so docs are checked.
    """

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, docs: Sequence[Doc]) -> list[np.ndarray]:
        return [np.array([len(token) >= self.least for token in doc]) for doc in docs]


def first_of_doc(docs: Sequence[Doc]) -> list[np.ndarray]:
    return [np.arange(len(doc)) == 0 for doc in docs]


def chosen(candidates: Any, update: int | None, text: str = TEXT) -> str:
    doc = spacy.blank("en").make_doc(text)
    (may,) = present_candidates(candidates, [doc], update)
    return " ".join(token.text for token, one in zip(doc, may) if one)


def test_restricted_candidates_come_first_and_the_free_ones_predict() -> None:
    made = build_released_candidates_v1(NO_STOP_WORDS, NO_SPACE, 2)
    assert [chosen(made, update) for update in (0, 1, 2, 9)] == ["good"] * 2 + [TEXT] * 2
    assert chosen(made, None) == TEXT
    doc = spacy.blank("en").make_doc(TEXT)
    assert made([doc])[0].all(), "as any candidates they are called without an update"
    assert chosen(build_released_candidates_v1(NO_STOP_WORDS, None, 1), None) == TEXT


def test_releases_one_after_another_however_they_are_nested() -> None:
    left = build_released_candidates_v1(
        build_released_candidates_v1(NO_STOP_WORDS, NO_PUNCTUATION, 1), None, 3
    )
    right = build_released_candidates_v1(
        NO_STOP_WORDS, build_released_candidates_v1(NO_PUNCTUATION, None, 3), 1
    )
    for made in (left, right, copy.deepcopy(left), pickle.loads(pickle.dumps(right))):
        found = [chosen(made, update) for update in (0, 1, 2, 3, None)]
        assert found == ["good", "it is good so", "it is good so", TEXT, TEXT]


@pytest.mark.parametrize(
    "restricted, free, names",
    [
        (NO_PUNCTUATION, NO_STOP_WORDS, ("stop_words=True", "stop_words=False")),
        (AllWords(), NO_SPACE, ("AllWords()", "ContentWords(punctuation=True, stop_words=True)")),
        (
            build_released_candidates_v1(NO_STOP_WORDS, None, 1),
            NO_STOP_WORDS,
            ("AllWords()", "ContentWords(punctuation=False, stop_words=False)"),
        ),
    ],
)
def test_a_release_to_fewer_words_is_refused_with_both(
    restricted: Any, free: Any, names: tuple[str, str]
) -> None:
    with pytest.raises(LatentError, match="release") as refused:
        build_released_candidates_v1(restricted, free, 3)
    before, after = str(refused.value).split(" to ")[:2]
    assert names[0] in before and names[1] in after


def test_what_is_not_known_is_looked_at_in_docs_of_training() -> None:
    fine = build_released_candidates_v1(Long(4), Long(3), 2)
    assert chosen(fine, 0, "a good new film") == "good film"
    assert chosen(fine, 2, "a good new film") == "good new film"
    wrong = build_released_candidates_v1(Long(3), Long(4), 2)
    assert chosen(wrong, 0, "a good film") == "good film"
    with pytest.raises(LatentError, match=r"Long.*Long.*'a new film'.*'new'"):
        chosen(wrong, 1, "a new film")
    # After the release and in prediction there is only one set, so nothing is compared.
    assert chosen(wrong, 2, "a new film") == chosen(wrong, None, "a new film") == "film"
    function = build_released_candidates_v1(first_of_doc, Long(3), 2)
    with pytest.raises(LatentError, match=r"first_of_doc.*Long.*'a'"):
        chosen(function, 0, "a new film")


def test_a_stage_after_the_next_is_looked_at_too() -> None:
    made = build_released_candidates_v1(
        Long(4), build_released_candidates_v1(AllWords(), Long(1), 4), 2
    )
    assert chosen(made, 0, "a new film") == "film"
    with pytest.raises(LatentError, match=r"AllWords\(\).*Long"):
        wrong = build_released_candidates_v1(
            Long(4), build_released_candidates_v1(AllWords(), Long(2), 4), 2
        )
        chosen(wrong, 0, "a new film")


@pytest.mark.parametrize("release_at", [0, -1, 1.5, True, float("inf"), None])
def test_a_release_that_never_comes_or_was_before_training_is_refused(release_at: Any) -> None:
    with pytest.raises(LatentError, match=r"release_at.*AllWords.*ContentWords"):
        build_released_candidates_v1(NO_STOP_WORDS, None, release_at)


def test_configs_resolve() -> None:
    block = {
        "@misc": "spacy-latent.ReleasedCandidates.v1",
        "release_at": 2,
        "restricted": {"@misc": "spacy-latent.ContentWords.v1", "stop_words": False},
        "free": None,
    }
    made = registry.resolve({"candidates": block})["candidates"]
    assert [chosen(made, update) for update in (1, 2)] == ["good", TEXT]
