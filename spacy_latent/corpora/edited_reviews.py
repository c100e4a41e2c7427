"""Film reviews that people edited to reverse the sentiment (Kaushik et al. 2020), in English.

There are 1,952 pairs of an original and its revision. The words of a text that its twin does not
have are marked as its rationale, in ``doc.spans["rationale"]``. This replaces a human rationale.
Somebody had to change these words, but they need not be all words that express the sentiment, and
may be more than these. A text from which nothing was removed has no rationale.

    python -m spacy_latent.corpora.edited_reviews corpus/reviews
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from difflib import SequenceMatcher
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora.doc_files import write_parts
from spacy_latent.corpora.sources import published, read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.tokens import Doc

POSITIVE, NEGATIVE = "POSITIVE", "NEGATIVE"
KEY = "rationale"
SOURCES = published("""
cad-nli-sentiment/sentiment
train 7ac50ca3d70890f80e11ee59955cdbfc43f26b5078d0603717817ab224d2af18 train_paired.tsv
dev 4c2d8a70cbce23eba27fb1f0bb5043cf044811912435cf8d10c3ea6fc7a51363 dev_paired.tsv
""")


def read_pairs(table: str) -> list[list[tuple[str, str]]]:
    """Return (text, label) of the two versions of each review."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for row in csv.DictReader(StringIO(table), delimiter="\t"):
        text = " ".join(row["Text"].replace("<br />", " ").split())
        pairs.setdefault(row["batch_id"], []).append((text, row["Sentiment"].upper()))
    for name, versions in pairs.items():
        if {label for _, label in versions} != {POSITIVE, NEGATIVE} or len(versions) != 2:
            raise LatentError(
                f"Review {name} has versions of the sentiments {[label for _, label in versions]}; "
                "expected a positive and a negative one. Give the table of pairs as published."
            )
    return list(pairs.values())


def edited(words: Sequence[str], twin: Sequence[str]) -> list[tuple[int, int]]:
    """Return (start, end) of the words that the twin does not have in this place."""
    matcher = SequenceMatcher(None, list(words), list(twin), autojunk=False)
    return [
        (start, end)
        for kind, start, end, _, _ in matcher.get_opcodes()
        if kind != "equal" and end > start
    ]


def make_docs(versions: Sequence[tuple[str, str]], docs: Sequence[Doc]) -> list[Doc]:
    """Put labels and rationales on the docs of a pair."""
    from spacy.tokens import Span

    words = [[token.text for token in doc] for doc in docs]
    for (_, label), doc, own, twin in zip(versions, docs, words, words[::-1]):
        doc.cats = {POSITIVE: float(label == POSITIVE), NEGATIVE: float(label == NEGATIVE)}
        doc.spans[KEY] = [Span(doc, start, end, KEY) for start, end in edited(own, twin)]
    return list(docs)


def main(output: Path, downloads: Path = Path("corpus/downloads")) -> None:
    """Write train.spacy and dev.spacy to OUTPUT."""
    import spacy

    nlp = spacy.blank("en")
    parts = {
        name: [
            doc
            for versions in read_pairs(read_source(source, downloads))
            for doc in make_docs(versions, [nlp.make_doc(text) for text, _ in versions])
        ]
        for name, source in SOURCES.items()
    }
    write_parts(output, parts, "review")


if __name__ == "__main__":
    run(main)
