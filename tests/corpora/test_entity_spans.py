"""Conversion of entities to a group of spans."""

from __future__ import annotations

from pathlib import Path

import spacy
from spacy.tokens import Doc, DocBin

from spacy_latent.corpora.entity_spans import main


def test_entities_become_spans_and_documents_keep_their_names(tmp_path: Path) -> None:
    vocab = spacy.blank("en").vocab
    doc = Doc(vocab, ["Ada", "left"], ents=["B-PER", "O"])
    doc.user_data["document"] = "a"
    (tmp_path / "ner").mkdir()
    DocBin(docs=[doc], store_user_data=True).to_disk(tmp_path / "ner" / "dev.spacy")
    main(tmp_path / "ner", tmp_path / "spans")
    (found,) = DocBin().from_disk(tmp_path / "spans" / "dev.spacy").get_docs(vocab)
    assert [(one.text, one.label_) for one in found.spans["sc"]] == [("Ada", "PER")]
    assert found.user_data["document"] == "a"
