"""Files of spaCy's docs (.spacy)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab


def stored_docs(path: Path, vocab: Vocab) -> Iterator[Doc]:
    """Yield the docs of a file.

    Raises:
        LatentError: if the file is damaged or has another format; it names the file.
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
