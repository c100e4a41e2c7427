"""Edited reviews: pairs are read completely, and the edits are found in both versions."""

import os
from pathlib import Path

import pytest
import spacy

from spacy_latent.corpora.edited_reviews import SOURCES, edited, make_docs, read_pairs
from spacy_latent.corpora.sources import DATA_VARIABLE, read_source
from spacy_latent.errors import LatentError

DATA = Path(os.environ.get(DATA_VARIABLE, Path(__file__).parents[3] / "shared" / "data"))
TABLE = (
    "Sentiment\tText\tbatch_id\n"
    "Negative\tA bad film.<br /><br />Avoid it\t7\n"
    'Positive\t"A very good ""film"". Avoid it"\t7\n'
)


def test_edits_are_marked_in_both_versions():
    (versions,) = read_pairs(TABLE)
    assert versions[0] == ("A bad film. Avoid it", "NEGATIVE")
    nlp = spacy.blank("en")
    docs = make_docs(versions, [nlp.make_doc(text) for text, _ in versions])
    assert [span.text for span in docs[0].spans["rationale"]] == ["bad"]
    assert docs[1].spans["rationale"][0].text.startswith("very good")
    assert docs[0].cats == {"POSITIVE": 0.0, "NEGATIVE": 1.0}


def test_insertions_leave_no_mark_on_the_other_version():
    words, longer = "a good film".split(), "not a good film at all".split()
    assert edited(words, longer) == []
    assert edited(longer, words) == [(0, 1), (4, 6)]


def test_a_broken_table_is_refused():
    with pytest.raises(LatentError, match=r"7.*'NEGATIVE', 'NEGATIVE'"):
        read_pairs(TABLE.replace("Positive", "Negative"))


@pytest.mark.skipif(not (DATA / SOURCES["dev"].folder).is_dir(), reason="no data here")
def test_the_published_tables(monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    pairs = read_pairs(read_source(SOURCES["dev"], DATA))
    assert len(pairs) == 245
    assert sum(len(edited(a.split(), b.split())) > 0 for (a, _), (b, _) in pairs) > 230
