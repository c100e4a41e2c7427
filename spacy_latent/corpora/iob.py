"""Entities in lines of a token and its tag."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from spacy_latent.corpora.sources import Source, read_source
from spacy_latent.errors import LatentError, number_of

Sentence = tuple[list[str], list[str]]


def read_iob(
    text: str,
    *,
    columns: tuple[int, int] = (0, 1),
    comments: bool = False,
    left_out: Collection[str] = (),
) -> Iterator[Sentence]:
    """(tokens, tags) of each sentence of lines whose columns stand between tabulators.

    Sentences end at a line that is blank after stripping: some files put a TAB there. A byte order
    mark is dropped, and an I- tag that opens an entity is read as B-.

    columns: where the token is, and its tag. comments: lines that begin with "#" are none of a
        sentence. left_out: types of entities whose tags are read as O.

    Raises LatentError for a line without the columns, or whose tag is none of O, B- and I-.
    """
    tokens: list[str] = []
    tags: list[str] = []
    # Not splitlines(): it would also break at the odd Unicode separators inside tokens.
    for number, line in enumerate(text.split("\n"), 1):
        if comments and line.startswith("#"):
            continue
        if not line.strip():
            if tokens:
                yield tokens, tags
                tokens, tags = [], []
            continue
        cells = line.rstrip("\r\n").split("\t")
        found = [cells[place].strip() for place in columns if place < len(cells)]
        token, tag = found if len(found) == 2 else ("", "")
        if not (tag == "O" or tag[:2] in ("B-", "I-")):
            expected = "'token TAB tag'"
            if columns != (0, 1):
                expected = (
                    f"a line with token and tag in columns {columns[0] + 1}, {columns[1] + 1}"
                )
            raise LatentError(f"Line {number}: {line!r} is not {expected} with an IOB tag.")
        token = token.replace("\ufeff", "").strip()
        if not token:
            continue
        if tag[2:] in left_out:
            tag = "O"
        if tag.startswith("I-") and (not tags or tags[-1][2:] != tag[2:]):
            tag = f"B-{tag[2:]}"
        tokens.append(token)
        tags.append(tag)
    if tokens:
        yield tokens, tags


def write_sentences(path: Path, sentences: Sequence[Sentence]) -> None:
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
        print(f"{output / name}.spacy: {number_of(len(sentences), 'sentence')}")
