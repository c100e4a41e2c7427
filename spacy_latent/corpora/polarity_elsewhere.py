"""Polarity of texts from other sources than :mod:`sentence_polarity`, for tests only.

They show whether a classifier of film review sentences also works elsewhere. There are two corpora.
"products" has texts that people wrote under "pros" or "cons" of a product (Ganapathibhotla and Liu
2008), a thousand of each side. "reviews" has whole film reviews and their revisions, edited to
reverse the sentiment (Kaushik et al. 2020), from the development set. Words are in lower case, as
in the training sentences of the classifier.

    python -m spacy_latent.corpora.polarity_elsewhere corpus/elsewhere
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from spacy_latent.corpora import edited_reviews, product_aspects
from spacy_latent.corpora.doc_files import write_parts
from spacy_latent.corpora.product_aspects import lines_of_side
from spacy_latent.corpora.sentence_polarity import NEGATIVE, POSITIVE, polarity_docs
from spacy_latent.corpora.sources import read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError

LABELS = {product_aspects.PROS: POSITIVE, product_aspects.CONS: NEGATIVE}
SHORTEST = 3
OF_EACH_SIDE = 1000


def read_products(texts: Mapping[str, str], seed: int, count: int) -> list[tuple[str, str]]:
    """Return (text, label), ``count`` of each side, shuffled.

    Texts have three words or more. Duplicates, and texts that occur on both sides, are left out.

    Args:
        texts: published file of each side.
    """
    sides = {
        side: {" ".join(line.lower().split()) for line in lines_of_side(text, side)}
        for side, text in texts.items()
    }
    both = set.intersection(*sides.values())
    rng = random.Random(seed)
    found: list[tuple[str, str]] = []
    for side, label in LABELS.items():
        own = sorted(text for text in sides[side] - both if len(text.split()) >= SHORTEST)
        if len(own) < count:
            raise LatentError(
                f"The side {side} has {len(own)} texts of {SHORTEST} words and more that the "
                f"other side lacks; expected {count}. Give the whole published corpus."
            )
        found += [(text, label) for text in rng.sample(own, count)]
    rng.shuffle(found)
    return found


def read_reviews(table: str) -> list[tuple[str, str]]:
    """Return (text, label) of both versions of each review."""
    pairs = edited_reviews.read_pairs(table)
    return [(text.lower(), label) for versions in pairs for text, label in versions]


def main(output: Path, downloads: Path = Path("corpus/downloads"), seed: int = 0) -> None:
    """Write products.spacy and reviews.spacy to OUTPUT."""
    import spacy

    sides = {
        side: read_source(source, downloads) for side, source in product_aspects.SOURCES.items()
    }
    table = read_source(edited_reviews.SOURCES["dev"], downloads)
    corpora = {"products": read_products(sides, seed, OF_EACH_SIDE), "reviews": read_reviews(table)}
    tokenizer = spacy.blank("en").tokenizer
    parts = {}
    for name, examples in corpora.items():
        split = [
            (" ".join(token.text for token in tokenizer(text) if not token.is_space), label)
            for text, label in examples
        ]
        parts[name] = polarity_docs(split)
    write_parts(output, parts, "text")


if __name__ == "__main__":
    run(main)
