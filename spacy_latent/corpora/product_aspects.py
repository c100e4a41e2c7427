"""Synthetic reviews of products with a score for each of four aspects, 0 to 5.

The task is regression of several aspects as on BeerAdvocate (McAuley et al. 2012), whose reviews
may not be redistributed.

A review is a list of short phrases that people wrote under "pros" or "cons" of a product
(Ganapathibhotla and Liu 2008). One or two phrases are about each aspect. Its score is the share of
its phrases that are pros, times five. Four to eight other phrases are about none of the aspects.
The words of the phrases about an aspect are the rationale, in ``doc.spans["rationale"]``, with the
aspect as label. No phrase occurs in two of the three parts. The relevant words are known by
construction, but no person wrote these texts as a whole.

    python -m spacy_latent.corpora.product_aspects corpus/aspects
"""

from __future__ import annotations

import html
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora.doc_files import write_parts
from spacy_latent.corpora.sources import published, read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

KEY = "rationale"
PROS, CONS = "pros", "cons"
SOURCES = published("""
pros-cons pros_cons.zip
pros 02ea8cbe09ed68f3d6064c850b5b2459e69b60c35b2813ff13c7acf8f3f4b1ef IntegratedPros.txt
cons 42c424e0d50bbc36fc4631bca6844ebbb4b04ec0444bb0949c6862cae5d23c58 IntegratedCons.txt
""")
# Words of each aspect. A phrase with words of several aspects is left out.
ASPECTS = {
    "BATTERY": "battery batteries charge charger power",
    "PICTURE": "picture pictures image images photo photos",
    "PRICE": "price priced cost cheap expensive inexpensive pricey money",
    "SIZE": "size small compact light lightweight weight heavy big bulky large tiny thin pocket",
}
HIGHEST = 5.0
SHORTEST, LONGEST = 2, 6
OF_ASPECT, OTHERS = (1, 2), (4, 8)
SIZES = {"train": 12000, "dev": 1000, "test": 1000}
_ASPECT_OF = {word: aspect for aspect, words in ASPECTS.items() for word in words.split()}
_BETWEEN = re.compile(r"[,;:/!?.&()]+|\band\b|\bbut\b|--+", re.IGNORECASE)


@dataclass(frozen=True)
class Phrase:
    """Phrase of a review.

    Attributes:
        aspect: aspect of the phrase, or None.
    """

    words: tuple[str, ...]
    aspect: str | None
    praise: bool


def lines_of_side(text: str, side: str) -> list[str]:
    """Return the texts of a published file that are tagged as one side."""
    found = re.findall(rf"<{side}>(.*?)</{side}>", text, re.IGNORECASE)
    return [html.unescape(line) for line in found]


def read_phrases(texts: Mapping[str, str]) -> list[Phrase]:
    """Return the phrases of two to six words, in alphabetical order.

    Phrases that occur on both sides, or are about several aspects, are left out.

    Args:
        texts: published file of each side.
    """
    sides: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for side, text in texts.items():
        for line in lines_of_side(text, side):
            for part in _BETWEEN.split(line):
                words = tuple(re.findall(r"[a-z0-9][a-z0-9'-]*", part.lower()))
                if SHORTEST <= len(words) <= LONGEST:
                    sides[words].add(side)
    found = []
    for words in sorted(sides):
        aspects = {_ASPECT_OF[word] for word in words if word in _ASPECT_OF}
        if len(sides[words]) == 1 and len(aspects) <= 1:
            found.append(Phrase(words, next(iter(aspects), None), PROS in sides[words]))
    return found


def split_phrases(phrases: Sequence[Phrase], seed: int) -> dict[str, list[Phrase]]:
    """Split the phrases: eight tenths for training, and one tenth for each other part."""
    shuffled = list(phrases)
    random.Random(seed).shuffle(shuffled)
    tenth = len(shuffled) // 10
    return {
        "dev": shuffled[:tenth],
        "test": shuffled[tenth : 2 * tenth],
        "train": shuffled[2 * tenth :],
    }


def make_review(
    phrases: Mapping[tuple[str | None, bool], list[Phrase]], rng: random.Random
) -> list[Phrase]:
    """Draw the phrases of one review, in their order.

    Args:
        phrases: phrases by aspect and side.
    """
    chosen = [
        rng.choice(phrases[aspect, rng.random() < 0.5])
        for aspect in (*ASPECTS, None)
        for _ in range(rng.randint(*(OTHERS if aspect is None else OF_ASPECT)))
    ]
    rng.shuffle(chosen)
    return chosen


def make_doc(vocab: Vocab, review: Sequence[Phrase]) -> Doc:
    """Make a doc with scores in ``doc.cats``, rationales, and commas between phrases."""
    from spacy.tokens import Doc, Span

    words: list[str] = []
    about: list[tuple[int, int, str]] = []
    praise: dict[str, list[bool]] = defaultdict(list)
    for phrase in review:
        if words:
            words.append(",")
        if phrase.aspect is not None:
            about.append((len(words), len(words) + len(phrase.words), phrase.aspect))
            praise[phrase.aspect].append(phrase.praise)
        words += phrase.words
    doc = Doc(vocab, words=words)
    doc.spans[KEY] = [Span(doc, start, end, aspect) for start, end, aspect in about]
    doc.cats = {
        aspect: HIGHEST * sum(opinions) / len(opinions)
        for aspect, opinions in sorted(praise.items())
    }
    return doc


def make_docs(vocab: Vocab, phrases: Sequence[Phrase], count: int, seed: int) -> Iterator[Doc]:
    """Yield ``count`` reviews of these phrases."""
    by_kind: dict[tuple[str | None, bool], list[Phrase]] = defaultdict(list)
    for phrase in phrases:
        by_kind[phrase.aspect, phrase.praise].append(phrase)
    for aspect in (*ASPECTS, None):
        for praise, side in ((True, PROS), (False, CONS)):
            if not by_kind[aspect, praise]:
                raise LatentError(
                    f"Among {len(phrases)} phrases there is none about {aspect or 'no aspect'} "
                    f"on the side of {side}; reviews need one of each kind. Give the whole "
                    "published corpus."
                )
    rng = random.Random(seed)
    for _ in range(count):
        yield make_doc(vocab, make_review(by_kind, rng))


def main(output: Path, downloads: Path = Path("corpus/downloads"), seed: int = 0) -> None:
    """Write train.spacy, dev.spacy and test.spacy to OUTPUT."""
    import spacy

    vocab = spacy.blank("en").vocab
    phrases = read_phrases(
        {side: read_source(source, downloads) for side, source in SOURCES.items()}
    )
    split = split_phrases(phrases, seed)
    parts = {name: make_docs(vocab, part, SIZES[name], seed) for name, part in split.items()}
    write_parts(output, parts, "review")


if __name__ == "__main__":
    run(main)
