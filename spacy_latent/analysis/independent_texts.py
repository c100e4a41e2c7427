"""Texts that count as independent: docs, or documents of which docs are pieces.

Predictions in one document are often right or wrong together. If ``doc.user_data["document"]``
names the document of each doc, bounds on precision count documents as independent, not docs.
``DocBin(store_user_data=True)`` keeps the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spacy_latent.annotations import DOCUMENT, document_of
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.tokens import Doc

    from spacy_latent.analysis.judged_entities import JudgedEntities


@dataclass(frozen=True)
class IndependentTexts:
    """Numbers of the independent texts of docs.

    Attributes:
        numbers: number of the text of each doc, ``(D,)``, in the order of first occurrence.
        are_documents: whether the texts are named documents. Otherwise each doc is a text.
    """

    numbers: list[int]
    count: int
    are_documents: bool

    def group(self, found: JudgedEntities) -> JudgedEntities:
        """Return predictions with the numbers of these texts.

        Args:
            found: predictions with the numbers of their docs.
        """
        texts = [self.numbers[doc] for doc in found.texts]
        return replace(found, texts=texts, by_document=self.are_documents)


def independent_texts(docs: Iterable[Doc]) -> IndependentTexts:
    """Return the independent texts of annotated docs.

    Raises:
        LatentError: if some docs name their document and others do not, or if a name is neither a
            string nor a whole number.
    """
    names = [document_of(doc) for doc in docs]
    unnamed = names.count(None)
    if unnamed == len(names):
        return IndependentTexts(list(range(len(names))), len(names), False)
    if unnamed:
        raise LatentError(
            f"{number_of(unnamed, 'doc')} of {len(names)} have no name of a document in "
            f"doc.user_data[{DOCUMENT!r}], and the others have one. Name the document of each, or "
            "of none. A doc that is no piece of a document needs a name of its own."
        )
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return IndependentTexts([places[name] for name in names], len(places), True)
