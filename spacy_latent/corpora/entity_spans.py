"""Entities as labelled spans: a copy of ``doc.ents`` in ``doc.spans``.

python -m spacy_latent.corpora.entity_spans corpus/bc5cdr corpus/bc5cdr_spans
"""

from __future__ import annotations

from pathlib import Path

from spacy_latent.corpora.doc_files import stored_docs, write_docs
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError, number_of


def write_spans(source: Path, target: Path, key: str) -> int:
    """Copy docs with their entities in ``doc.spans[key]``, and count the entities."""
    import spacy

    docs = list(stored_docs(source, spacy.blank("xx").vocab))
    for doc in docs:
        doc.spans[key] = list(doc.ents)
    write_docs(target, docs)
    return sum(len(doc.ents) for doc in docs)


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
