"""Entities in ``token TAB tag`` lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from spacy_latent.corpora.sources import Source, read_source
from spacy_latent.errors import LatentError


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


def convert(sources: dict[str, Source], output: Path, downloads: Path) -> None:
    """Write ``NAME.spacy`` to ``output`` for each source."""
    for name, source in sources.items():
        sentences = list(read_iob(read_source(source, downloads)))
        write_sentences(output / f"{name}.spacy", sentences)
        print(f"{output / name}.spacy: {len(sentences)} sentences")
