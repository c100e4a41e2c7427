"""Biomedical corpora, each annotated for one label."""

from __future__ import annotations

import spacy

from spacy_latent.annotations import annotated_labels
from spacy_latent.corpora.biomedical import made_docs


def test_docs_know_for_which_label_they_were_annotated() -> None:
    vocab = spacy.blank("en").vocab
    sentences = [(["Aspirin", "helps"], ["B-Chemical", "O"])]
    (known,), (unknown,) = (made_docs(vocab, sentences, labels) for labels in (["Chemical"], None))
    assert set(annotated_labels(known) or ()) == {"Chemical"} and annotated_labels(unknown) is None
    for doc in (known, unknown):
        assert [(one.text, one.label_) for one in doc.ents] == [("Aspirin", "Chemical")]
