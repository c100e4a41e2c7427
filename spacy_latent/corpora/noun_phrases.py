"""Nested noun phrases: whole subtrees of UD English EWT, labelled by their role.

    python -m spacy_latent.corpora.noun_phrases corpus/phrases

Noun phrases of another treebank, from a CoNLL-U file:

    python -m spacy_latent.corpora.noun_phrases corpus/phrases --treebank en_gum-ud-test.conllu
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spacy.tokens import Doc, Span

from spacy_latent.corpora.conllu import read_conllu
from spacy_latent.corpora.doc_files import write_docs
from spacy_latent.corpora.english_web_treebank import SOURCES
from spacy_latent.corpora.sources import read_source
from spacy_latent.corpora.standard_streams import run
from spacy_latent.corpora.text_files import read_text
from spacy_latent.errors import number_of

KEY = "sc"
HEADS = frozenset({"NOUN", "PROPN", "PRON"})
# Roles by relations of Universal Dependencies, without their subtypes.
ROLES = {
    "nsubj": "subject",
    "obj": "object",
    "iobj": "object",
    "obl": "oblique",
    "nmod": "modifier",
    "conj": "conjunct",
    "appos": "apposition",
}


def noun_phrases(doc: Doc) -> Iterator[Span]:
    """Yield the contiguous subtrees of nouns, names and pronouns with a role of :data:`ROLES`.

    Predicates, which have a subject or a copula as modifier, are left out, since their subtrees are
    clauses.
    """
    subtrees = [{token.i} for token in doc]
    for token in doc:
        for ancestor in token.ancestors:
            subtrees[ancestor.i].add(token.i)
    for token in doc:
        role = ROLES.get(token.dep_.split(":")[0])
        below = {child.dep_.split(":")[0] for child in token.children}
        if role is None or token.pos_ not in HEADS or below & {"nsubj", "csubj", "cop"}:
            continue
        subtree = subtrees[token.i]
        start, end = min(subtree), max(subtree) + 1
        if end - start == len(subtree):
            yield Span(doc, start, end, label=role)


def write_phrases(path: Path, text: str) -> tuple[int, int]:
    """Write the sentences of CoNLL-U ``text``, and count sentences and noun phrases."""
    docs = list(read_conllu(text))
    for doc in docs:
        doc.spans[KEY] = list(noun_phrases(doc))
    return write_docs(path, docs), sum(len(doc.spans[KEY]) for doc in docs)


def main(
    output: Path, downloads: Path = Path("corpus/downloads"), treebank: Path | None = None
) -> None:
    """Write train.spacy and dev.spacy to OUTPUT, or one file with the name of a TREEBANK."""
    if treebank is None:
        texts = {name: read_source(source, downloads) for name, source in SOURCES.items()}
    else:
        texts = {treebank.stem: read_text(treebank)}
    for name, text in texts.items():
        path = output / f"{name}.spacy"
        sentences, phrases = write_phrases(path, text)
        found = number_of(sentences, "sentence"), number_of(phrases, "noun phrase")
        print(f"{path}: {', '.join(found)}")


if __name__ == "__main__":
    run(main)
