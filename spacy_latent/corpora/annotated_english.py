"""UD English EWT with the entities of Universal NER, and posts of WNUT-17 with only entities.

    python -m spacy_latent.corpora.annotated_english corpus/english

Training reads train.spacy, 18 of 20 documents of the treebank's training set, and the posts, whose
tags, lemmas and trees are missing. The other two documents are in held_out.spacy, to calibrate on.
One of them is also in dev.spacy, to choose the checkpoint. The development set of the treebank is
in test.spacy. No choice depends on it, so scores on it are scores on new texts. Each doc names its
document in ``doc.user_data["document"]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import spacy
from spacy.tokens import Doc, Span

from spacy_latent.annotations import name_document
from spacy_latent.corpora import emerging_entities, english_web_treebank, universal_entities
from spacy_latent.corpora.conllu import read_conllu, split_documents
from spacy_latent.corpora.doc_files import write_docs
from spacy_latent.corpora.iob import OUTSIDE, Sentence, read_iob
from spacy_latent.corpora.sources import read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import number_of

# Labels of Universal NER for labels of WNUT-17. Two other labels have no counterpart.
LABELS = {"person": "PER", "location": "LOC", "corporation": "ORG", "group": "ORG"}
LEFT_OUT = frozenset({"product", "creative-work"})
SENTENCES = 10
SHARES = 20
# Places in each run of SHARES documents. Both are for calibration, since a few documents contain
# most of the entities: one long weblog has 43 % of the entities of the second place.
CHOOSES, ONLY_CALIBRATES = 5, 15
NAME = re.compile(r"^# sent_id = (.*?)\s*$", re.MULTILINE)


def read_entities(text: str) -> dict[str, Sentence]:
    """Return the tokens and entity tags of each sentence of IOB ``text``, by its name."""
    found = {}
    for block in re.split(r"\n\s*\n", text):
        for name in NAME.findall(block):
            (found[name],) = read_iob(
                block, columns=(1, 2), comments=True, left_out=universal_entities.OTHERS
            )
    return found


def set_entities(doc: Doc, tokens: list[str], tags: list[str]) -> None:
    """Write entities to the doc of a sentence.

    They stay missing if the two corpora have different tokens, since Universal NER annotates an
    older version of the treebank.
    """
    if tokens == [token.text for token in doc]:
        named = Doc(doc.vocab, words=tokens, ents=tags).ents
        doc.set_ents([Span(doc, one.start, one.end, one.label) for one in named])


def read_documents(trees: str, entities: str) -> Iterator[list[Doc]]:
    """Yield docs of at most ten sentences for each document of the treebank, with its name."""
    named = read_entities(entities)
    for document_name, blocks in split_documents(trees):
        document = "\n\n".join(blocks)
        sentences = list(read_conllu(document))
        for name, sentence in zip(NAME.findall(document), sentences, strict=True):
            set_entities(sentence, *named.get(name, ([], [])))
        docs = []
        for start in range(0, len(sentences), SENTENCES):
            part = sentences[start : start + SENTENCES]
            # The type hints of spaCy lack this argument.
            doc = Doc.from_docs(part, exclude=["user_data"])  # type: ignore[call-arg]
            assert doc is not None
            if document_name is not None:
                name_document(doc, document_name)
            docs.append(doc)
        yield docs


def read_posts(text: str) -> Iterator[Doc]:
    """Yield a doc of each post of WNUT-17, with the labels of Universal NER."""
    vocab = spacy.blank("en").vocab
    for i, (tokens, tags) in enumerate(read_iob(text, left_out=LEFT_OUT)):
        named = [tag if tag == OUTSIDE else f"{tag[:2]}{LABELS[tag[2:]]}" for tag in tags]
        doc = Doc(vocab, words=tokens, ents=named)
        name_document(doc, f"post {i}")
        yield doc


def parts_of(place: int) -> tuple[str, ...]:
    """Return the parts that a document of the training set is in, by its place in its run."""
    if place == CHOOSES:
        return "dev", "held_out"
    return ("held_out",) if place == ONLY_CALIBRATES else ("train",)


def main(output: Path, downloads: Path = Path("corpus/downloads")) -> None:
    """Write train.spacy, dev.spacy, held_out.spacy and test.spacy to OUTPUT."""
    parts: dict[str, list[Doc]] = {"train": [], "dev": [], "held_out": [], "test": []}
    for source, entities in (
        ("train", universal_entities.train_source()),
        ("dev", universal_entities.SOURCES["dev"]),
    ):
        trees = read_source(english_web_treebank.SOURCES[source], downloads)
        named = read_source(entities, downloads / "uner")
        for i, docs in enumerate(read_documents(trees, named)):
            for part in parts_of(i % SHARES) if source == "train" else ("test",):
                parts[part] += docs
    parts["train"] += read_posts(read_source(emerging_entities.SOURCES["train"], downloads))
    for name, docs in parts.items():
        path, words = output / f"{name}.spacy", number_of(sum(map(len, docs)), "word")
        print(f"{path}: {number_of(write_docs(path, docs), 'doc')}, {words}")


if __name__ == "__main__":
    run(main)
