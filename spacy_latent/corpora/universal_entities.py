"""Universal NER (Mayhew et al. 2024) of UD English EWT: persons, organizations and locations.

    python -m spacy_latent.corpora.universal_entities corpus/uner

The development set is the released one. The training set is an earlier draft of the released one,
which its publishers called not tested. Its entities of a fourth kind, OTH, and entities that are
tagged with the kind "O" are not read, as in the release. There are 7,005 entities, and the release
counts 7,022. Use the development set for evaluation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from spacy_latent.corpora.conllu import split_documents
from spacy_latent.corpora.doc_files import write_parts
from spacy_latent.corpora.iob import Sentence, read_iob, sentence_docs
from spacy_latent.corpora.sources import DATA_VARIABLE, Source, published, read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError

FOLDER = "ner-uner-ewt"
SOURCES = published("""
ner-uner-ewt
train 2d986b063bb92df99540e37de34b1415eb2a22958b86de3e4698ec3be05e339f en_ewt-ud-train.iob2
dev 0cafd881cf31d39897b6d588420fab8fbbe4423d271725c59921ac9dd49c0713 en_ewt-ud-dev.iob2
""")
# The draft with the kinds below replaced by O, which some copies of the data contain instead.
WITHOUT_OTHERS = Source(
    FOLDER,
    "en_ewt-ud-train.derived.iob2",
    "4af8b2d108fd7e457c3d4855ce44078b1e52ffa1b02b80b8bfa24a5194b32ec8",
)
# Kinds of the draft that are not in the release.
OTHERS = frozenset({"OTH", "O"})
SHARES = 5


def read_documents(text: str) -> Iterator[list[Sentence]]:
    """Yield the sentences of each document, without entities of OTHERS."""
    for _, blocks in split_documents(text):
        document = "\n\n".join(blocks)
        yield list(read_iob(document, columns=(1, 2), comments=True, left_out=OTHERS))


def train_source() -> Source:
    """Return the training set, in a copy without OTH if the data folder has one."""
    data = os.environ.get(DATA_VARIABLE)
    if data and (Path(data) / FOLDER / WITHOUT_OTHERS.name).is_file():
        return WITHOUT_OTHERS
    return SOURCES["train"]


def main(output: Path, downloads: Path = Path("corpus/downloads/uner"), held_out: int = 0) -> None:
    """Write train.spacy and dev.spacy to OUTPUT.

    With --held-out, this number of every five training documents is left out, and written to
    held_out.spacy.
    """
    if not 0 <= held_out < SHARES:
        raise LatentError(f"--held-out is {held_out}; expected 0 to {SHARES - 1} of {SHARES}.")
    train = list(read_documents(read_source(train_source(), downloads)))
    kept = SHARES - held_out
    parts = {
        "train": [document for i, document in enumerate(train) if i % SHARES < kept],
        "dev": list(read_documents(read_source(SOURCES["dev"], downloads))),
    }
    if held_out:
        parts["held_out"] = [document for i, document in enumerate(train) if i % SHARES >= kept]
    docs = {}
    for name, documents in parts.items():
        numbers = [i for i, document in enumerate(documents) for _ in document]
        docs[name] = sentence_docs(chain.from_iterable(documents), numbers)
    write_parts(output, docs, "sentence")


if __name__ == "__main__":
    run(main)
