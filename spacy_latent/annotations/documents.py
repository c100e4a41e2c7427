"""Name of the document that a doc is a piece of: ``doc.user_data["document"]``.

``DocBin(store_user_data=True)`` keeps it.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from spacy.tokens import Doc

from spacy_latent.errors import LatentError

# Key in doc.user_data.
DOCUMENT = "document"


def document_of(doc: Doc) -> str | int | None:
    """Return the name of the document that a doc is a piece of, None if it is not named.

    Raises:
        LatentError: if the name is neither a string nor a whole number.
    """
    user_data: dict[Any, Any] = doc.user_data
    name = user_data.get(DOCUMENT)
    if name is None or is_document_name(name):
        return name
    raise LatentError(
        f"doc.user_data[{DOCUMENT!r}] of {doc.text[:60]!r} is {name!r}; expected the name of the "
        "document that the doc is a piece of, a string or a whole number."
    )


def name_document(doc: Doc, name: str | int) -> None:
    """Write the name of the document that a doc is a piece of."""
    user_data: dict[Any, Any] = doc.user_data
    user_data[DOCUMENT] = name


def is_document_name(name: object) -> bool:
    """Return whether a value can name a document: a string with characters or a whole number."""
    if isinstance(name, str):
        return bool(name)
    return isinstance(name, Integral) and not isinstance(name, bool)
