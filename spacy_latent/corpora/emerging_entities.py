"""WNUT-17 emerging entities (Derczynski et al. 2017): NER on noisy text, six types.

python -m spacy_latent.corpora.emerging_entities corpus/ner
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from spacy_latent.corpora.sources import Source, read_source
from spacy_latent.errors import LatentError

FOLDER = "ner-wnut17"
SOURCES = {
    "train": Source(
        FOLDER,
        "wnut17train.conll",
        "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5",
    ),
    "dev": Source(
        FOLDER,
        "emerging.dev.conll",
        "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
    ),
}


def read_iob(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """(tokens, tags) of each sentence of ``token TAB tag`` lines.

    Sentences end at a line that is blank after stripping: some files put a TAB there. A byte order
    mark is dropped, and an I- tag that opens an entity is read as B-.
    """
    tokens: list[str] = []
    tags: list[str] = []
    # Not splitlines(): it would also break at the odd Unicode separators inside tokens.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            if tokens:
                yield tokens, tags
                tokens, tags = [], []
            continue
        token, tab, tag = line.rstrip("\r\n").partition("\t")
        token = token.replace("\ufeff", "").strip()
        tag = tag.strip()
        if not tab or not (tag == "O" or tag[:2] in ("B-", "I-")):
            raise LatentError(f"Line {number}: {line!r} is not 'token TAB tag' with an IOB tag.")
        if not token:
            continue
        if tag.startswith("I-") and (not tags or tags[-1][2:] != tag[2:]):
            tag = f"B-{tag[2:]}"
        tokens.append(token)
        tags.append(tag)
    if tokens:
        yield tokens, tags


def write_sentences(path: Path, sentences: Sequence[tuple[list[str], list[str]]]) -> None:
    import spacy
    from spacy.tokens import Doc, DocBin

    vocab = spacy.blank("en").vocab
    docs = DocBin()
    for tokens, tags in sentences:
        docs.add(Doc(vocab, words=tokens, ents=tags))
    path.parent.mkdir(parents=True, exist_ok=True)
    docs.to_disk(path)


def main(output: Path, downloads: Path = Path("corpus/downloads")) -> None:
    """Write train.spacy and dev.spacy to OUTPUT."""
    for name, source in SOURCES.items():
        sentences = list(read_iob(read_source(source, downloads)))
        write_sentences(output / f"{name}.spacy", sentences)
        print(f"{output / name}.spacy: {len(sentences)} sentences")


if __name__ == "__main__":
    typer.run(main)
