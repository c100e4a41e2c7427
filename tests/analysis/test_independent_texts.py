"""Documents whose pieces are docs, as independent units of statistics."""

from __future__ import annotations

from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, DocBin

from spacy_latent.analysis.independent_texts import independent_texts
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.errors import LatentError


def docs(*names: Any) -> list[Doc]:
    made = [spacy.blank("en")("A doc") for _ in names]
    for doc, name in zip(made, names):
        if name is not None:
            doc.user_data["document"] = name
    return made


def test_documents_are_numbered_as_they_come_also_after_storage() -> None:
    found = independent_texts(docs("b", "a", "b", 3))
    assert found.numbers == [0, 1, 0, 2] and (found.count, found.are_documents) == (3, True)
    stored = DocBin(docs=docs("x", "x", "y"), store_user_data=True).to_bytes()
    read = DocBin().from_bytes(stored).get_docs(spacy.blank("en").vocab)
    assert independent_texts(read).numbers == [0, 0, 1]
    judged = JudgedEntities([0.9] * 3, [True] * 3, ["A"] * 3, 3, texts=[3, 0, 2])
    grouped = found.group(judged)
    assert grouped.texts == [2, 0, 0] and grouped.by_document


def test_a_doc_that_names_no_document_is_a_text_of_its_own() -> None:
    found = independent_texts(docs(None, None))
    assert found.numbers == [0, 1] and not found.are_documents
    assert independent_texts([]).count == 0


@pytest.mark.parametrize("names", [("a", None), ("a", ["b"]), ("a", ""), (True,), (1.5,)])
def test_what_names_no_document_is_refused(names: Any) -> None:
    with pytest.raises(LatentError, match="document"):
        independent_texts(docs(*names))
