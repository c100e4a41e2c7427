"""Reviews that are made from short opinions with known aspects.

The training, dev and test parts share no phrase.
"""

import os
import random
from pathlib import Path

import pytest
import spacy

from spacy_latent.corpora.product_aspects import (
    ASPECTS,
    SOURCES,
    Phrase,
    make_doc,
    make_docs,
    read_phrases,
    split_phrases,
)
from spacy_latent.corpora.sources import DATA_VARIABLE, read_source
from spacy_latent.errors import LatentError

DATA = Path(os.environ.get(DATA_VARIABLE, Path(__file__).parents[3] / "shared" / "data"))
TEXTS = {
    "pros": "<Pros>Great pictures, small &amp; light; easy to use</Pros>\n<Pros>low price</Pros>",
    "cons": "<Cons>Eats batteries! easy to use... heavy battery</Cons>\n\n<Cons>slow</Cons>\n",
}


def test_phrases_have_a_side_and_at_most_one_aspect():
    # Single words are too short, "easy to use" is on both sides, and "heavy battery" has two
    # aspects.
    assert read_phrases(TEXTS) == [
        Phrase(("eats", "batteries"), "BATTERY", False),
        Phrase(("great", "pictures"), "PICTURE", True),
        Phrase(("low", "price"), "PRICE", True),
    ]


def test_a_score_is_the_share_of_praise_and_its_words_are_marked():
    review = [
        Phrase(("great", "pictures"), "PICTURE", True),
        Phrase(("never", "used", "it"), None, False),
        Phrase(("dark", "photos"), "PICTURE", False),
        Phrase(("low", "price"), "PRICE", True),
    ]
    doc = make_doc(spacy.blank("en").vocab, review)
    assert doc.text.strip() == "great pictures , never used it , dark photos , low price"
    assert doc.cats == {"PICTURE": 2.5, "PRICE": 5.0}
    marked = [(span.text, span.label_) for span in doc.spans["rationale"]]
    assert marked == [
        ("great pictures", "PICTURE"),
        ("dark photos", "PICTURE"),
        ("low price", "PRICE"),
    ]


def test_parts_share_no_phrase_and_reviews_speak_of_every_aspect():
    rng = random.Random(0)
    phrases = [
        Phrase((str(i), str(rng.random())), aspect, i % 2 == 0)
        for i, aspect in enumerate([*ASPECTS, None] * 200)
    ]
    parts = split_phrases(phrases, seed=1)
    assert [len(part) for part in parts.values()] == [100, 100, 800]
    assert len({phrase.words for part in parts.values() for phrase in part}) == len(phrases)
    vocab = spacy.blank("en").vocab
    docs = list(make_docs(vocab, parts["train"], 5, seed=3))
    assert [doc.text for doc in docs] == [
        doc.text for doc in make_docs(vocab, parts["train"], 5, seed=3)
    ]
    for doc in docs:
        assert set(doc.cats) == set(ASPECTS) == {span.label_ for span in doc.spans["rationale"]}
        assert all(0.0 <= score <= 5.0 for score in doc.cats.values())


def test_reviews_need_a_phrase_of_each_kind():
    with pytest.raises(LatentError, match=r"PICTURE.*pros"):
        next(
            make_docs(
                spacy.blank("en").vocab,
                [Phrase((str(i),), "BATTERY", i > 0) for i in range(2)],
                1,
                seed=0,
            )
        )


@pytest.mark.skipif(not (DATA / SOURCES["pros"].folder).is_dir(), reason="no data here")
def test_the_published_phrases(monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    phrases = read_phrases({side: read_source(source, DATA) for side, source in SOURCES.items()})
    assert len(phrases) > 30_000
    for aspect in ASPECTS:
        for praise in (True, False):
            found = [p for p in phrases if p.aspect == aspect and p.praise == praise]
            assert len(found) > 300
