"""Universal Dependencies English Web Treebank (Silveira et al. 2014) with gold heads.

Each doc has one sentence, or several sentences in their order.

    python -m spacy_latent.corpora.english_web_treebank corpus/ewt
    python -m spacy_latent.corpora.english_web_treebank corpus/ewt_docs --sentences 10

To learn from few trees, only a share of the training docs keeps its heads. These docs may be
repeated:

    python -m spacy_latent.corpora.english_web_treebank corpus/few_heads --head-share 0.1
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spacy.tokens import Doc

from spacy_latent.corpora.conllu import read_conllu
from spacy_latent.corpora.doc_files import write_parts
from spacy_latent.corpora.sources import Source, check_share, published, read_source, seeded_share
from spacy_latent.corpora.standard_streams import run

SOURCES = published("""
ud-english-ewt
train 3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b en_ewt-ud-train.conllu
dev 531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6 en_ewt-ud-dev.conllu
""")


def keep_heads(docs: Sequence[Doc], share: float, seed: int) -> tuple[list[Doc], list[Doc]]:
    """Return a seeded share of the docs, at least one, and the others with only their words."""
    kept = seeded_share(len(docs), share, seed)
    others = [
        Doc(doc.vocab, [token.text for token in doc], [bool(token.whitespace_) for token in doc])
        for i, doc in enumerate(docs)
        if i not in kept
    ]
    return [doc for i, doc in enumerate(docs) if i in kept], others


def write_sources(
    sources: dict[str, Source], output: Path, downloads: Path, sentences: int
) -> None:
    """Write a treebank, with a file of docs for each part."""
    parts = {
        name: read_conllu(read_source(source, downloads), sentences)
        for name, source in sources.items()
    }
    write_parts(output, parts, _noun(sentences))


def _noun(sentences: int) -> str:
    return "sentence" if sentences == 1 else "doc"


def main(
    output: Path,
    downloads: Path = Path("corpus/downloads"),
    sentences: int = 1,
    head_share: float = 1.0,
    repeats: int = 1,
    seed: int = 0,
) -> None:
    """Write train.spacy and dev.spacy to OUTPUT, with SENTENCES sentences in each doc.

    With a HEAD_SHARE below 1, only this share of the training docs keeps its annotation. Only these
    docs are in labelled.spacy, and they are REPEATS times in train.spacy.
    """
    check_share("head_share", head_share, repeats)
    names = SOURCES if head_share == 1 else ("dev",)
    write_sources({name: SOURCES[name] for name in names}, output, downloads, sentences)
    if head_share < 1:
        docs = list(read_conllu(read_source(SOURCES["train"], downloads), sentences))
        labelled, others = keep_heads(docs, head_share, seed)
        parts = {"labelled": labelled, "train": [*labelled * repeats, *others]}
        write_parts(output, parts, _noun(sentences))


if __name__ == "__main__":
    run(main)
