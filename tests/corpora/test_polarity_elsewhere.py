"""Texts of other domains with a polarity: unique, with one label each, and in lower case."""

import os
from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin

from spacy_latent.corpora.polarity_elsewhere import main, read_products, read_reviews
from spacy_latent.corpora.sources import DATA_VARIABLE
from spacy_latent.errors import LatentError

DATA = Path(os.environ.get(DATA_VARIABLE, Path(__file__).parents[3] / "shared" / "data"))
SIDES = {
    "pros": "<Pros>Easy to  use</Pros>\n<Pros>easy to use</Pros>\n<Pros>Nice</Pros>\n"
    "<Pros>Price &amp; size are fine</Pros>\n<Pros>none at all</Pros>",
    "cons": "<Cons>None at all</Cons>\n<Cons>It broke after a week</Cons>\n"
    "<Cons>far too big</Cons>",
}


def test_texts_stand_once_and_on_one_side():
    assert sorted(read_products(SIDES, seed=0, count=2)) == [
        ("easy to use", "POSITIVE"),
        ("far too big", "NEGATIVE"),
        ("it broke after a week", "NEGATIVE"),
        ("price & size are fine", "POSITIVE"),
    ]


def test_too_few_texts_are_an_error():
    with pytest.raises(LatentError, match=r"pros.*2.*3"):
        read_products(SIDES, seed=0, count=3)


def test_both_versions_of_a_review():
    table = "Sentiment\tText\tbatch_id\nNegative\tA bad film.\t7\nPositive\tA good film.\t7\n"
    assert read_reviews(table) == [("a bad film.", "NEGATIVE"), ("a good film.", "POSITIVE")]


@pytest.mark.skipif(not DATA.is_dir(), reason="no data here")
def test_the_published_texts(monkeypatch, tmp_path):
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    main(tmp_path)
    vocab = spacy.blank("en").vocab
    for name, count in (("products", 2000), ("reviews", 490)):
        docs = list(DocBin().from_disk(tmp_path / f"{name}.spacy").get_docs(vocab))
        assert len(docs) == count
        assert sum(doc.cats["POSITIVE"] for doc in docs) == count / 2
        assert not any(token.is_upper or token.is_space for doc in docs for token in doc)
