"""Sentence polarity (Pang and Lee 2005): 10,662 sentences of film reviews, positive or negative.

There is no official split. Ours is seeded, stratified by class, 80/10/10, and keeps copies of a
sentence in one part.

    python -m spacy_latent.corpora.sentence_polarity corpus/sentiment

To learn from few labels, only a share of the training sentences keeps its label. These sentences
may be repeated:

    python -m spacy_latent.corpora.sentence_polarity corpus/few_labels --labelled-share 0.05
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora.doc_files import write_parts
from spacy_latent.corpora.sources import check_share, published, read_source, seeded_share
from spacy_latent.corpora.standard_streams import run

if TYPE_CHECKING:
    from spacy.tokens import Doc

POSITIVE, NEGATIVE = "POSITIVE", "NEGATIVE"
SOURCES = published("""
mr-sentence-polarity sentence_polarity.zip
POSITIVE c2dc6b2f55bcf725725372916287cc3f8f9b19402edaa9167de5287cb3ade421 rt-polarity.pos
NEGATIVE 614274f81185a850e5a88d533d4679f916d6f62e9af6f0b4ec71fb94bf466ea5 rt-polarity.neg
""")
SPLITS = ("train", "dev", "test")


def split_lines(texts: dict[str, str], seed: int) -> dict[str, list[tuple[str, str]]]:
    """Return the shuffled (sentence, label) of each part."""
    rng = random.Random(seed)
    parts: dict[str, list[tuple[str, str]]] = {name: [] for name in SPLITS}
    for label in sorted(texts):
        sentences = sorted({line.strip() for line in texts[label].splitlines() if line.strip()})
        rng.shuffle(sentences)
        tenth = len(sentences) // 10
        bounds = {"dev": (0, tenth), "test": (tenth, 2 * tenth), "train": (2 * tenth, None)}
        for name, (start, end) in bounds.items():
            parts[name] += [(sentence, label) for sentence in sentences[start:end]]
    for examples in parts.values():
        rng.shuffle(examples)
    return parts


def keep_labels(
    examples: Sequence[tuple[str, str]], share: float, seed: int
) -> tuple[list[tuple[str, str]], list[tuple[str, None]]]:
    """Return a seeded share of the examples, at least one, and the others without labels."""
    kept = seeded_share(len(examples), share, seed)
    labelled = [example for i, example in enumerate(examples) if i in kept]
    return labelled, [(text, None) for i, (text, _) in enumerate(examples) if i not in kept]


def polarity_docs(examples: Iterable[tuple[str, str | None]]) -> Iterator[Doc]:
    """Yield a doc of each (sentence, label), whose words are separated by spaces."""
    import spacy
    from spacy.tokens import Doc

    vocab = spacy.blank("en").vocab
    for sentence, label in examples:
        doc = Doc(vocab, words=sentence.split())
        if label is not None:
            doc.cats = {POSITIVE: float(label == POSITIVE), NEGATIVE: float(label == NEGATIVE)}
        yield doc


def main(
    output: Path,
    downloads: Path = Path("corpus/downloads"),
    seed: int = 0,
    labelled_share: float = 1.0,
    repeats: int = 1,
) -> None:
    """Write train.spacy, dev.spacy and test.spacy to OUTPUT.

    With a LABELLED_SHARE below 1, only this share of the training sentences keeps its label. Only
    these sentences are in labelled.spacy, and they are REPEATS times in train.spacy.
    """
    check_share("labelled_share", labelled_share, repeats)
    texts = {label: read_source(source, downloads) for label, source in SOURCES.items()}
    split = split_lines(texts, seed)
    parts: dict[str, Sequence[tuple[str, str | None]]] = dict(split)
    if labelled_share < 1:
        labelled, others = keep_labels(split["train"], labelled_share, seed)
        parts |= {"labelled": labelled, "train": [*labelled * repeats, *others]}
    docs = {name: polarity_docs(examples) for name, examples in parts.items()}
    write_parts(output, docs, "sentence")


if __name__ == "__main__":
    run(main)
