"""Paraphrases (Cohn et al. 2008), as a task without alignments, and gold alignments to evaluate.

The task is to decide whether the second sentence is a paraphrase of the first. For each paraphrase
there are two negative pairs with another second sentence: the one that shares most words, and a
random one. The references of the held-out paraphrases have the gold alignments, to evaluate the
alignments of a classifier. Sentences of the multiple-translation corpora are left out, since two of
their pairs may be translations of the same sentence.

    python -m spacy_latent.corpora.edinburgh_alignment corpus/alignment
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spacy_latent.corpora.doc_files import write_docs
from spacy_latent.corpora.sources import published, read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError, number_of

# The links of "possible" are the sure and the possible ones together.
SOURCES = published("""
edinburgh-alignment
sure b4fd7e1f3f39dcf935037994901f3e127b16b08c1fda4934617b1ba74bfdcffe gold.train.sure.json
possible ab6dcbcf9d5bd9607e1f13b3212ab6f47798fd91069bfda24ee096b41a345199 gold.train.sure+poss.json
""")
SEVERAL_TRANSLATIONS = "mtc"
PARAPHRASE, OTHER = "PARAPHRASE", "OTHER"


@dataclass(frozen=True)
class Paraphrase:
    """Pair of sentences with their alignment.

    Attributes:
        sure, possible: links (word of first, word of second). Sure links are also possible.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    sure: tuple[tuple[int, int], ...]
    possible: tuple[tuple[int, int], ...]


def read_paraphrases(sure: str, possible: str) -> list[Paraphrase]:
    """Read the pairs of the two files in their order, without multiple translations."""
    found = []
    for one, other in zip(json.loads(sure), json.loads(possible), strict=True):
        if (one["id"], one["source"]) != (other["id"], other["source"]):
            raise LatentError(f"The files differ at the pair {one['id']!r}.")
        if one["id"].startswith(SEVERAL_TRANSLATIONS):
            continue
        first, second = tuple(one["source"].split()), tuple(one["target"].split())
        links = [_links(pair["sureAlign"], first, second) for pair in (one, other)]
        found.append(Paraphrase(first, second, links[0], tuple(sorted({*links[0], *links[1]}))))
    return found


def _links(
    text: str, first: tuple[str, ...], second: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    links = []
    for link in text.split():
        i, j = map(int, link.split("-"))
        if not (0 <= i < len(first) and 0 <= j < len(second)):
            raise LatentError(f"The link {link} is outside of sentences {first} and {second}.")
        links.append((i, j))
    return tuple(sorted(links))


def split_paraphrases(
    paraphrases: list[Paraphrase], seed: int
) -> dict[str, list[tuple[Paraphrase, str]]]:
    """Split the pairs into "train" and "dev", four fifths and one fifth.

    Returns:
        Shuffled (pair, label) of each part, including the negative pairs.
    """
    rng = random.Random(seed)
    order = list(paraphrases)
    rng.shuffle(order)
    fifth = len(order) // 5
    parts = {}
    for name, part in (("train", order[fifth:]), ("dev", order[:fifth])):
        examples = [(pair, PARAPHRASE) for pair in part]
        known = {pair.second: {word.lower() for word in pair.second} for pair in part}
        for pair in part:
            own = {word.lower() for word in pair.first}
            others = [words for words in known if words != pair.second]
            rng.shuffle(others)
            # The share of common words (Jaccard).
            shared = {words: len(own & known[words]) / len(own | known[words]) for words in others}
            closest = sorted(others, key=lambda words: shared[words])[-1:]
            examples += [
                (Paraphrase(pair.first, words, (), ()), OTHER)
                for words in dict.fromkeys([*closest, *others[:1]])
            ]
        rng.shuffle(examples)
        parts[name] = examples
    return parts


def write_examples(path: Path, examples: list[tuple[Paraphrase, str]], gold: bool) -> None:
    """Write examples to a file.

    Args:
        gold: whether the docs of paraphrases get their alignments, as annotations of the components
            "sure" and "possible".
    """
    import spacy

    from spacy_latent import annotations
    from spacy_latent.annotations import SpanStructure
    from spacy_latent.corpora.text_pairs import make_pair_doc

    nlp, docs = spacy.blank("en"), []
    for pair, label in examples:
        doc = make_pair_doc(nlp, pair.first, pair.second)
        doc.cats = {PARAPHRASE: float(label == PARAPHRASE), OTHER: float(label == OTHER)}
        if gold and label == PARAPHRASE:
            size = len(pair.first)
            for component, links in (("sure", pair.sure), ("possible", pair.possible)):
                cells = np.array(links, dtype="int32").reshape(-1, 2)
                span = SpanStructure(0, size, "gold", "cells", cells)
                span.other_start, span.other_end = size, len(doc)
                annotations.write(doc, component, [span])
        docs.append(doc)
    write_docs(path, docs)


def main(output: Path, downloads: Path = Path("corpus/downloads"), seed: int = 0) -> None:
    """Write train.spacy and dev.spacy to OUTPUT."""
    texts = {name: read_source(source, downloads) for name, source in SOURCES.items()}
    for name, examples in split_paraphrases(read_paraphrases(**texts), seed).items():
        write_examples(output / f"{name}.spacy", examples, gold=name == "dev")
        print(f"{output / name}.spacy: {number_of(len(examples), 'pair')}")


if __name__ == "__main__":
    run(main)
