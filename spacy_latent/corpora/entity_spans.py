"""Entities as labelled spans: a copy of ``doc.ents`` in ``doc.spans``.

python -m spacy_latent.corpora.entity_spans corpus/bc5cdr corpus/bc5cdr_spans
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora.doc_files import stored_docs, write_docs
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.tokens import Doc


def write_spans(source: Path, target: Path, key: str) -> int:
    """Copy docs with their entities in ``doc.spans[key]``, and count the entities."""
    import spacy

    count = 0

    def with_spans() -> Iterator[Doc]:
        nonlocal count
        for doc in stored_docs(source, spacy.blank("xx").vocab):
            doc.spans[key] = list(doc.ents)
            count += len(doc.ents)
            yield doc

    write_docs(target, with_spans())
    return count


def main(folder: Path, output: Path, key: str = "sc") -> None:
    """Write each .spacy file of FOLDER to OUTPUT."""
    paths = sorted(folder.glob("*.spacy"))
    if not paths:
        raise LatentError(
            f"{folder} has no .spacy file. Give a folder of them, such as corpus/ner."
        )
    for path in paths:
        count = write_spans(path, output / path.name, key)
        print(f"{output / path.name}: {number_of(count, 'span')}")


if __name__ == "__main__":
    run(main)
