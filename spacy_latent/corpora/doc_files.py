"""Files of spaCy's docs (.spacy)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab


def stored_docs(path: Path, vocab: Vocab) -> Iterator[Doc]:
    """Yield the docs of a file.

    Raises:
        LatentError: if the file is damaged or has another format. The message names the file.
    """
    from spacy.tokens import DocBin

    try:
        yield from DocBin().from_disk(path).get_docs(vocab)
    except Exception as error:
        # The error comes from zlib, msgpack or spaCy, depending on how the file is broken.
        raise LatentError(
            f"{path} cannot be read as docs of spaCy ({type(error).__name__}: {error}). It was cut "
            "short, or is another kind of file. Write it again."
        ) from error


def write_docs(path: Path, docs: Iterable[Doc]) -> int:
    """Write docs with their user data, such as names of documents, and return their number."""
    from spacy.tokens import DocBin

    stored, has_user_data = DocBin(store_user_data=True), False
    for doc in docs:
        stored.add(doc)
        has_user_data = has_user_data or bool(doc.user_data)
    if not has_user_data:
        # spaCy takes 25 times as long to read docs with user data, even if these are empty.
        stored.store_user_data, stored.user_data = False, []
    path.parent.mkdir(parents=True, exist_ok=True)
    stored.to_disk(path)
    return len(stored)


def write_parts(output: Path, parts: Mapping[str, Iterable[Doc]], noun: str) -> None:
    """Write each part of a corpus to a directory, and print its number of docs.

    Args:
        noun: noun for the content of a doc, such as "sentence".
    """
    for name, docs in parts.items():
        path = output / f"{name}.spacy"
        print(f"{path}: {number_of(write_docs(path, docs), noun)}")
