"""Universal Dependencies English Web Treebank (Silveira et al. 2014): gold heads, one doc per
sentence, or of several sentences in their order.

python -m spacy_latent.corpora.english_web_treebank corpus/ewt
python -m spacy_latent.corpora.english_web_treebank corpus/ewt_docs --sentences 10
"""

from __future__ import annotations

from pathlib import Path

import typer

from spacy_latent.corpora.sources import Source, read_source

FOLDER = "ud-english-ewt"
SOURCES = {
    "train": Source(
        FOLDER,
        "en_ewt-ud-train.conllu",
        "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
    ),
    "dev": Source(
        FOLDER,
        "en_ewt-ud-dev.conllu",
        "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
    ),
}


def write_trees(path: Path, text: str, sentences: int = 1) -> int:
    """Write the sentences of CoNLL-U ``text``, so many in a doc, and count the docs.

    Tokens are the syntactic words, so "don't" is two; empty nodes, which only enhanced
    dependencies have, are left out.
    """
    from spacy.tokens import DocBin
    from spacy.training.converters import conllu_to_docs

    docs = DocBin(docs=conllu_to_docs(text, n_sents=sentences, no_print=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    docs.to_disk(path)
    return len(docs)


def write_sources(
    sources: dict[str, Source], output: Path, downloads: Path, sentences: int
) -> None:
    """Write a treebank: for each part a file of docs."""
    for name, source in sources.items():
        path = output / f"{name}.spacy"
        count = write_trees(path, read_source(source, downloads), sentences)
        print(f"{path}: {count} {'sentences' if sentences == 1 else 'docs'}")


def main(output: Path, downloads: Path = Path("corpus/downloads"), sentences: int = 1) -> None:
    """Write train.spacy and dev.spacy to OUTPUT, with as many SENTENCES in a doc."""
    write_sources(SOURCES, output, downloads, sentences)


if __name__ == "__main__":
    typer.run(main)
