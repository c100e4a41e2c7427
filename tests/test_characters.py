"""Joined scripts are printed and drawn unchanged, but harmful characters are replaced."""

from __future__ import annotations

import numpy as np
import pytest

from spacy_latent.characters import (
    columns,
    escaped,
    escaped_lines,
    of_same_length,
    on_one_line,
    visible,
)
from spacy_latent.visualize import render
from spacy_latent.visualize.elements import inert_json, tag
from spacy_latent.visualize.elements import text as heading
from spacy_latent.visualize.terminal import format_annotation
from tests.visualize.structures import annotated

# Persian with a zero-width non-joiner, Hindi with a zero-width joiner, emoji of several characters,
# a soft hyphen, a mark of direction, special spaces, a private character, an emoji of Unicode 15.
GOOD = (
    *("می\u200cخواهم", "क्\u200dष", "👩\u200d👩\u200d👧", "❤\ufe0f", "Donau\xaddampf", "שלום\u200f"),
    *("10\xa0km", "日本\u3000語", "\ue000", "\U0001fae8"),
)
BAD = "a\u202eb", "a\u2066b", "a\x1b[2Jb", "a\x85b", "a\u2028b", "a\x00b", "a\ud800b"


@pytest.mark.parametrize("word", GOOD)
def test_good_text_is_left_as_it_is(word: str) -> None:
    assert on_one_line(word) == escaped(word) == visible(word) == heading(word) == word
    assert of_same_length(f"{word}\n\t{word}") == f"{word}\n\t{word}"
    doc = annotated("tags", [0, 1], words=[word, "x"])
    assert word in format_annotation(doc._.latent["encoder"])
    assert word in render(doc, style="tags", page=True, jupyter=False)


@pytest.mark.parametrize("word", BAD)
def test_what_steers_a_terminal_or_turns_what_follows_is_escaped(word: str) -> None:
    for shown in (on_one_line(word), escaped(word), visible(word), heading(word)):
        assert shown != word and word[1] not in shown and "b" in shown
    assert on_one_line(word) == f"'{escaped(word)}'"
    assert word[1] not in tag("h1", word, title=word)
    if word != BAD[-1]:
        assert word[1] not in inert_json({"words": [word]})


def test_what_has_nothing_to_see_is_told() -> None:
    for word in ("", " ", "\n\n", "\u200c", "\u200d", "\xa0", "\u200b\u200b"):
        assert on_one_line(word) == repr(word)
    assert escaped_lines("a\nb\r") == "a\nb\\r" and escaped("a\n") == "a\\n"


@pytest.mark.parametrize(
    ("text", "width"),
    [
        *(
            ("", 0),
            ("abc", 3),
            ("日本", 4),
            ("한국", 4),
            ("ｱ", 1),
            ("Ａ", 2),
            ("é", 1),
            ("e\u0301", 1),
        ),
        *(("می\u200cخواهم", 7), ("क्\u200dष", 2), ("Donau\xaddampf", 11), ("สวัสดี", 4)),
        *(
            ("👩\u200d👩\u200d👧", 2),
            ("👍🏽", 2),
            ("🇩🇪", 2),
            ("❤\ufe0f", 2),
            ("❤", 1),
            ("🤷\u200d♀\ufe0f", 2),
        ),
        ("\u1112\u1161\u11ab", 2),
    ],
)
def test_columns_of_a_terminal(text: str, width: int) -> None:
    assert columns(text) == width


def test_tags_stand_below_their_words_whatever_these_are() -> None:
    words = ["日本", "می\u200cخواهم", "👩\u200d👩\u200d👧", "a"]
    doc = annotated("tags", [1, 2, 3, 4], words=words)
    above, below = format_annotation(doc._.latent["encoder"]).split("\n")
    starts = [columns(above[: above.index(word)]) for word in words]
    assert [below[start] for start in starts] == ["1", "2", "3", "4"]


def test_lines_of_wide_text_are_broken_where_a_terminal_ends() -> None:
    doc = annotated("items", [0], words=["日本語"] * 40)
    lines = format_annotation(doc._.latent["encoder"]).split("\n")
    assert max(map(columns, lines)) <= 80 and len(lines) == int(np.ceil(40 / 11))
